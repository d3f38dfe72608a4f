"""Heartbeats: errors name who is silent, who failed and who holds the store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from hasten.distributed.heartbeat import Heartbeat

TIMEOUT = 0.4


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """A clock that goes on by an interval with each heartbeat of rank 0: counts instead of time."""
    clock = SimpleNamespace(now=0.0, sleep=time.sleep)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr("hasten.distributed.heartbeat.time", clock)
    monkeypatch.setattr("hasten.distributed.heartbeat.PATIENCE", 60.0)
    return clock


@pytest.fixture
def beats(clock) -> Iterator[list[Heartbeat]]:
    """Three processes' heartbeats over one store, each with a connection of its own."""
    held = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = []
    for rank in range(3):
        store = dist.PrefixStore("test", held.clone())
        made.append(Heartbeat(store, "rank 0", rank, 3, TIMEOUT, lambda rank=rank: f"step {rank}"))
    for beat in made:
        beat.first_beat()
        assert beat.store.timeout == timedelta(seconds=TIMEOUT)
        beat.store.set_timeout(timedelta(seconds=60))
    write = made[0]._write

    def write_and_go_on(number: int) -> None:
        write(number)
        clock.now += made[0].interval

    made[0]._write = write_and_go_on
    for beat in made:
        beat.start()
    until(lambda: all(len(beat._beats) == 2 for beat in made))
    yield made
    for beat in made:
        beat.stop()


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def heard(beats: list[Heartbeat]) -> int:
    """How many heartbeats each has heard of every other."""
    return min(json.loads(text)[0] for beat in beats for text in beat._beats.values())


def test_nobody_is_lost_while_all_beat(beats):
    until(lambda: heard(beats) > 15)
    assert [beat.lost for beat in beats] == [None] * 3
    assert "rank 2 was last seen 0 s ago at step 2" in beats[0].last_seen()


def test_processes_that_were_stopped_together_go_on(beats, clock):
    """As after Ctrl-Z and fg: the clock of all of them jumps."""
    clock.now += 100.0
    before = heard(beats)
    until(lambda: heard(beats) > before + 15)
    assert [beat.lost for beat in beats] == [None] * 3
    beats[2].stop()
    until(lambda: beats[0].lost and beats[1].lost)


def test_a_silent_process_is_named_with_its_place(beats):
    beats[2].stop()
    until(lambda: beats[0].lost and beats[1].lost)
    for beat in beats[:2]:
        assert beat.lost.startswith("rank 2 sent no heartbeat for 0.4 s")
        assert "at step 2" in beat.lost


def test_a_broken_connection_is_put_down_to_who_stopped_beating(beats, clock):
    beats[1].stop()
    why = beats[0].explain(clock.monotonic())
    assert why.startswith("rank 1 died (rank 1 was last seen")


def test_a_failure_is_told_to_all(beats):
    beats[1].tell_failure("ValueError: 7 is not even")
    until(lambda: beats[0].lost and beats[2].lost)
    assert beats[0].lost == "rank 1 failed at step 1: ValueError: 7 is not even"
    assert beats[1].lost is None


def test_a_store_that_is_gone_is_its_holders_death(beats, clock):
    def broken(keys: list[str]) -> None:
        raise dist.DistNetworkError("Connection reset by peer\nand a long trace")

    beats[1].store = BrokenStore(beats[1].store, broken)
    since = clock.monotonic()
    until(lambda: beats[1]._store_gone)
    why = beats[1].explain(since)
    assert why.startswith("rank 0, where all processes report, died (")
    assert why.endswith("Connection reset by peer")


class BrokenStore:
    """A store whose reads fail as torch's do when the other side has gone."""

    def __init__(self, store, multi_get) -> None:
        self.store, self.multi_get = store, multi_get

    def __getattr__(self, name):
        return getattr(self.store, name)


def test_a_store_that_does_not_answer_is_noticed_by_the_clock(beats):
    """The thread that reads it hangs, as in a process whose store is stopped."""
    noticed = threading.Event()

    def hangs(keys: list[str]) -> None:
        noticed.wait(60)
        raise dist.DistNetworkError("too late")

    beats[1].store = BrokenStore(beats[1].store, hangs)
    until(lambda: beats[1].lost)
    beats[1]._stopping.set()
    noticed.set()
    assert "has not answered for 0.4 s: it stands still" in beats[1].lost


ENDS_WHILE_A_HEARTBEAT_IS_IN_THE_STORE = """
import sys, threading, time
from datetime import timedelta
from types import SimpleNamespace
from torch.distributed import TCPStore
from hasten.config import DistributedOptions
from hasten.distributed.processes import Processes

asked = threading.Event()

def check(keys):
    asked.set()
    try:
        sys.other.wait(["absent"], timedelta(seconds=1))
    except RuntimeError:
        return False

class EndsSlowly:
    def __del__(self, sleep=time.sleep):
        sleep(1.5)

sys.ends_slowly = EndsSlowly()
sys.other = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
with Processes.join("cpu", DistributedOptions()) as processes:
    processes._heartbeat.store = SimpleNamespace(set=lambda *_: None, check=check)
    assert asked.wait(60)
print("left")
"""


def test_no_heartbeat_outlives_the_interpreter():
    """A thread that returns from the store while the interpreter ends aborts the process."""
    variables = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    found = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_A_HEARTBEAT_IS_IN_THE_STORE],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "left\n", "")
