"""The documentation site: complete navigation, no broken link, no request to a network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.reporting import browser

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def test_the_navigation_has_every_page_once():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = Counter(re.findall(r"(?:- |: )(\S+\.md)$", navigation, re.M))
    pages = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    assert pages - set(listed) == set()
    assert max(listed.values()) == 1


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.slow
def test_the_site_builds_without_a_warning(site):
    assert (site / "index.html").is_file()
    for page in ("api/index.html", "commands.html", "repository/CHANGELOG.html"):
        assert (site / page).is_file()
    linked = re.findall(r"\]\(\.\./(bench/results/\S+)\.md", (DOCS / "benchmarks.md").read_text())
    assert all((site / "repository" / f"{record}.html").is_file() for record in linked)
    assert "hasten.train" in (site / "api" / "index.html").read_text(encoding="utf-8")
    asked = re.compile(
        r"<(?:script|img|iframe)[^>]+src=\"?https?:|<link[^>]+stylesheet[^>]+https?:"
    )
    loading = [p.name for p in site.rglob("*.html") if asked.search(p.read_text(encoding="utf-8"))]
    assert loading == []


@pytest.mark.slow
@pytest.mark.skipif(browser.missing() is not None, reason=browser.missing() or "")
def test_pages_fit_and_search_works_from_files(site, tmp_path):
    with browser.started(tmp_path) as chromium:
        chromium.call("url", {"url": "about:blank"})
        chromium.requests()
        for page in ("index.html", "models/sasrec.html", "api/index.html", "configuration.html"):
            for width in (390, 1280):
                chromium.open(site / page, width, dark=width == 390)
                assert chromium.evaluate("document.documentElement.scrollWidth") == width
                back = chromium.evaluate("getComputedStyle(document.body).backgroundColor")
                assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 200) == (width == 390)
        chromium.evaluate("document.querySelector('[for=__search]').click() || 1")
        (box,) = chromium.call("element/active").values()
        chromium.call(f"element/{box}/value", {"text": "reproducibility"})
        found = "document.querySelectorAll('.md-search-result__link').length"
        for _ in range(50):
            if chromium.evaluate(found):
                break
            time.sleep(0.2)
        assert chromium.evaluate(found) > 0
        assert chromium.console() == []
        local = (site.resolve().as_uri(), "data:", "about:")
        assert [name for name in chromium.requests() if not name.startswith(local)] == []
