"""Fixtures shared by all tests."""

from __future__ import annotations

import fcntl
import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run: what a change broke is told from what was found by chance. New
# ones are drawn with HYPOTHESIS_PROFILE=random.
settings.register_profile("same", derandomize=True)
settings.register_profile("random", derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Triton's kernels are tested in its interpreter, which must be chosen before torch.compile imports
# Triton. On a device the kernels themselves run.
if "HASTEN_TEST_DEVICE" not in os.environ:
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nothing of a test goes into the cache of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HASTEN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Thousands of small files are written; tests of durability run in processes of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which still refuses what is no open file
        patch.delattr(fcntl, "F_FULLFSYNC", raising=False)
        yield


@pytest.fixture(scope="module", autouse=True)
def _collect_only_what_tests_make() -> None:
    """Full collections skip modules and collected tests, which took most of their time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test that uses the real data sets carries the mark ``data``."""
    for item in items:
        if "shared_data" in getattr(item, "fixturenames", ()):
            item.add_marker("data")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets, or a skip with the reason."""
    root = Path(__file__).parent.parent
    folder = Path(os.environ.get("HASTEN_TEST_DATA", root.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"real data sets absent: no folder {folder} (set HASTEN_TEST_DATA)")
    return folder
