"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, or a skip with the reason."""
    root = Path(__file__).parent.parent
    folder = Path(os.environ.get("HASTEN_TEST_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data sets absent: no folder {folder} (set HASTEN_TEST_DATA)")
    return folder
