"""A bar on a terminal only, with what one wants to know, that costs nothing to speak of."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from hasten.runs import progress as module
from hasten.runs.progress import Progress


class Terminal(io.StringIO):
    # pytest puts its own stderr in place when a test begins: later than fixtures
    attach: Callable[[], None]

    def isatty(self) -> bool:
        return True

    def frames(self) -> list[str]:
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())
        return [frame.strip() for frame in re.split(r"[\r\n]+", plain) if frame.strip()]


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    stream = Terminal()
    stream.attach = lambda: monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """A clock that stands still unless it is set."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_it_tells_what_one_wants_to_know(terminal, clock):
    terminal.attach()
    with Progress(3, quiet=False) as progress:
        progress.start_epoch(2, 10)
        for _ in range(10):
            progress.advance(0.5)
        clock[0] += 30
        progress.note(**{"ndcg@10": 0.0312, "examples_per_second": 12345.6})
    last = terminal.frames()[-1]
    for text in (
        "epoch 2/3",
        "10/10",
        "loss 0.5000",
        "ndcg@10 0.0312",
        "12,346 examples/s",
        "0:30 left",
    ):
        assert text in last


def test_the_time_left_heeds_the_time_limit(terminal, clock):
    terminal.attach()
    with Progress(100, quiet=False, limit=60) as progress:
        progress.start_epoch(1, 10)
        clock[0] += 45
        progress.advance()
        assert "0:15 left" in terminal.frames()[-1]


@pytest.mark.parametrize("why", ["quiet", "no terminal", "dumb terminal"])
def test_it_is_silent_otherwise(monkeypatch, terminal, why):
    terminal.attach()
    if why == "no terminal":
        monkeypatch.setattr(terminal, "isatty", lambda: False)
        monkeypatch.setenv("FORCE_COLOR", "1")
    if why == "dumb terminal":
        monkeypatch.setenv("TERM", "dumb")
    progress = Progress(3, quiet=why == "quiet")
    assert not progress.enabled
    with progress:
        progress.start_epoch(1, 10)
        progress.advance(0.5)
        progress.note(ndcg=0.5)
    assert terminal.getvalue() == ""


def test_lines_printed_meanwhile_stand_on_their_own(terminal):
    terminal.attach()
    with Progress(1, quiet=False) as progress:
        progress.start_epoch(1, 5)
        print("epoch 1 [red]done[/red]", file=sys.stderr)
        progress.advance()
    assert "epoch 1 [red]done[/red]" in terminal.frames()


def test_names_are_not_taken_for_markup(terminal):
    terminal.attach()
    with Progress(1, quiet=False) as progress:
        progress.note(**{"[bold]x[/]": 1.0})
    assert "[bold]x[/] 1.0000" in terminal.frames()[-1]


def test_time_left_is_of_the_whole_run(terminal, clock):
    terminal.attach()
    with Progress(12, quiet=False) as progress:
        progress.start_epoch(3, 100)  # resumed: two epochs were done before
        for _ in range(50):
            clock[0] += 1.0
            progress.advance()
        progress.note()
    # 50 steps took 50 s; 50 of this epoch and 9 epochs are left
    assert "15:50 left" in terminal.frames()[-1]


def test_it_is_drawn_at_most_ten_times_a_second(terminal, clock, monkeypatch):
    terminal.attach()
    draws: list[float] = []
    with Progress(1, quiet=False) as progress:
        original = progress._draw

        def draw() -> None:
            draws.append(clock[0])
            original()

        monkeypatch.setattr(progress, "_draw", draw)
        progress.start_epoch(1, 512)
        for _ in range(512):
            clock[0] += 1 / 1024
            progress.advance()
    assert len(draws) == 5  # at the start and four times in the half second after it
    assert all(b - a >= 0.1 for a, b in pairwise(draws))
