"""Semaphores between processes: nobody is ahead, nobody is missed, and who has ended is known."""

from __future__ import annotations

import mmap
import subprocess
import sys
import threading
import time

import pytest

from hasten.distributed.semaphores import Semaphores, size_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is shared on Linux alone")

OFFSET = 64


def made(world: int) -> list[Semaphores]:
    """Those of all ranks, in this process: they differ in nothing but who waits."""
    memory = mmap.mmap(-1, OFFSET + size_of(world))
    found = [Semaphores(memory, OFFSET, rank, world) for rank in range(world)]
    found[0].prepare()
    return found


@pytest.mark.parametrize("world", [2, 3, 5])
def test_nobody_leaves_a_meeting_before_all_have_come(world):
    rounds = 300
    semaphores = made(world)
    written = [0] * world
    wrong: list[tuple[int, int, list[int]]] = []

    def work(rank: int) -> None:
        own = semaphores[rank]
        for number in range(1, rounds + 1):
            if (number * 7 + rank) % 50 == 0:
                time.sleep(0.002)  # in turns everyone is the last
            written[rank] = number
            own.tell()
            while not own.come(0.01):
                pass
            seen = list(written)
            if min(seen) < number or max(seen) > number + 1:
                wrong.append((rank, number, seen))

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert written == [rounds] * world
    assert not wrong


def test_waiting_ends_after_its_time_and_goes_on_where_it_was():
    first, second, third = made(3)
    first.tell()
    second.tell()
    begin = time.monotonic()
    assert not first.come(0.1)
    assert 0.08 < time.monotonic() - begin < 5
    third.tell()
    assert first.come(5)
    assert third.come(5)
    assert second.come(5)


def test_a_second_meeting_is_not_begun_before_the_first_has_ended():
    first, _ = made(2)
    first.tell()
    with pytest.raises(AssertionError, match="has not ended"):
        first.tell()


def test_a_process_that_has_ended_is_known():
    own, _ = made(2)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        own.processes = [0, other.pid]
        assert not own.ended()
        other.kill()
        deadline = time.monotonic() + 20
        while not own.ended():  # though nobody has asked for its exit status
            assert time.monotonic() < deadline
            time.sleep(0.01)
        other.wait()
        assert own.ended()
