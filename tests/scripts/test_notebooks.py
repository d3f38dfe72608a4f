"""The notebooks are those of their pages, and run from top to bottom."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.notebooks import FOLDER, notebook

ROOT = Path(__file__).parents[2]
PAGES = sorted(FOLDER.glob("*.md"))
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@each_page
def test_the_notebook_is_that_of_the_page(page):
    written = page.with_suffix(".ipynb").read_text(encoding="utf-8")
    assert written == notebook(page.read_text(encoding="utf-8")), "python -m scripts.notebooks"


@pytest.mark.slow
@each_page
def test_the_notebook_runs(page, tmp_path):
    pytest.importorskip("nbmake")
    copied = shutil.copy(page.with_suffix(".ipynb"), tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "--nbmake", "-p", "no:cacheprovider", copied]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
