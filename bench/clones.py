"""Baselines that run from the user's clone of their repository, named by a variable."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def clone(variable: str, repository: str) -> Path:
    """The folder that the environment variable names; without one, exit with status 2."""
    folder = os.environ.get(variable)
    if not folder or not Path(folder).is_dir():
        print(f"set {variable} to the folder of a clone of {repository}", file=sys.stderr)
        raise SystemExit(2)
    return Path(folder).resolve()


def clone_version(folder: Path) -> str:
    """The commit of a clone, for the record of a result."""
    return subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--short=12", "HEAD"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
