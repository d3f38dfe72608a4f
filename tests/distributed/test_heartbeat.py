"""Heartbeats: errors name who is silent, who failed and who holds the store."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from hasten.distributed.heartbeat import Heartbeat


@pytest.fixture
def beats() -> Iterator[list[Heartbeat]]:
    """Three processes' heartbeats over one store, each with a connection of its own."""
    held = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    made = []
    for rank in range(3):
        store = dist.PrefixStore("test", held.clone())
        made.append(Heartbeat(store, "rank 0", rank, 3, 1.0, lambda rank=rank: f"step {rank}"))
    for beat in made:
        beat.first_beat()
    for beat in made:
        beat.start()
    yield made
    for beat in made:
        beat.stop()


def until(condition: Callable[[], object], seconds: float = 4.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_nobody_is_lost_while_all_beat(beats):
    time.sleep(1.5)
    assert [beat.lost for beat in beats] == [None] * 3
    assert "rank 2 was last seen 0 s ago at step 2" in beats[0].last_seen()


def test_processes_that_were_stopped_together_go_on(beats, monkeypatch):
    """As after Ctrl-Z and fg: the clock of all of them jumps."""
    monotonic, stopped = time.monotonic, [0.0]
    clock = SimpleNamespace(monotonic=lambda: monotonic() + stopped[0], sleep=time.sleep)
    monkeypatch.setattr("hasten.distributed.heartbeat.time", clock)
    time.sleep(0.3)
    stopped[0] = 100.0
    time.sleep(1.5)
    assert [beat.lost for beat in beats] == [None] * 3
    beats[2].stop()
    until(lambda: beats[0].lost and beats[1].lost)


def test_a_silent_process_is_named_with_its_place(beats):
    time.sleep(0.3)
    beats[2].stop()
    until(lambda: beats[0].lost and beats[1].lost)
    for beat in beats[:2]:
        assert beat.lost.startswith("rank 2 sent no heartbeat for 1 s")
        assert "at step 2" in beat.lost


def test_a_broken_connection_is_put_down_to_who_stopped_beating(beats):
    time.sleep(0.3)
    beats[1].stop()
    why = beats[0].explain(time.monotonic())
    assert why.startswith("rank 1 died (rank 1 was last seen")


def test_a_failure_is_told_to_all(beats):
    beats[1].tell_failure("ValueError: 7 is not even")
    until(lambda: beats[0].lost and beats[2].lost)
    assert beats[0].lost == "rank 1 failed at step 1: ValueError: 7 is not even"
    assert beats[1].lost is None


def test_a_store_that_is_gone_is_its_holders_death(beats):
    def broken(keys: list[str]) -> None:
        raise dist.DistNetworkError("Connection reset by peer\nand a long trace")

    time.sleep(0.3)
    beats[1].store = BrokenStore(beats[1].store, broken)
    since = time.monotonic()
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

    def hangs(keys: list[str]) -> None:
        time.sleep(3)
        raise dist.DistNetworkError("too late")

    beats[1].store = BrokenStore(beats[1].store, hangs)
    until(lambda: beats[1].lost)
    assert "has not answered for 1 s: it stands still" in beats[1].lost


def test_the_store_waits_no_longer_than_the_silence(beats):
    assert beats[0].store.timeout == timedelta(seconds=1)


ENDS_WHILE_A_HEARTBEAT_IS_IN_THE_STORE = """
import sys, time
from datetime import timedelta
from types import SimpleNamespace
from torch.distributed import TCPStore
from hasten.config import DistributedOptions
from hasten.distributed.processes import Processes

def check(keys):
    try:
        sys.other.wait(["absent"], timedelta(seconds=3))
    except RuntimeError:
        return False

class EndsSlowly:
    def __del__(self, sleep=time.sleep):
        sleep(3)

sys.ends_slowly = EndsSlowly()
sys.other = TCPStore("127.0.0.1", 0, 1, is_master=True, wait_for_workers=False)
with Processes.join("cpu", DistributedOptions()) as processes:
    processes._heartbeat.store = SimpleNamespace(set=lambda *_: None, check=check)
    time.sleep(1)
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
