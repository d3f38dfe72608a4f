"""Signals as a terminal sends them."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _without_nohup() -> Iterator[None]:
    """A suite that was started with nohup ignores SIGHUP, and so would the runs in its tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
