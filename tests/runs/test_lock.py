"""One process holds a run folder; the second is told who; death releases."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hasten.errors import RunFolderError
from hasten.runs.lock import RunLock

HOLD = """
import sys, time
from pathlib import Path
from hasten.runs.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
if sys.argv[2:]:  # a child of the holder that outlives it
    import os
    if os.fork() == 0:
        os.close(1)
        time.sleep(60)
print(os.getpid() if sys.argv[2:] else "held", flush=True)
time.sleep(60)
"""


def hold(folder: Path, *more: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), *more],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert holder.stdout is not None
    holder.stdout.readline()
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout is not None
    os.killpg(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()


def test_the_second_is_refused_with_the_name_of_the_holder(tmp_path):
    holder = hold(tmp_path)
    try:
        with pytest.raises(RunFolderError, match=rf"in use by process {holder.pid} on .+ since \d"):
            RunLock(tmp_path)
    finally:
        end(holder)
    RunLock(tmp_path).release()


def test_death_of_the_holder_releases_even_while_its_child_lives(tmp_path):
    holder = hold(tmp_path, "with a child")
    try:
        with pytest.raises(RunFolderError, match="in use"):
            RunLock(tmp_path)
        holder.kill()
        holder.wait()
        # the child may not have come to let go yet
        for attempt in range(100):
            try:
                RunLock(tmp_path).release()
            except RunFolderError:
                assert attempt < 99, "the child keeps the lock"
                time.sleep(0.05)
            else:
                break
    finally:
        end(holder)


def test_within_a_process_too(tmp_path):
    with RunLock(tmp_path), pytest.raises(RunFolderError, match=f"process {os.getpid()} "):
        RunLock(tmp_path)
    with RunLock(tmp_path) as lock:
        lock.release()
        lock.release()
        RunLock(tmp_path).release()


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}"])
def test_a_holder_without_a_name_is_another_process(tmp_path, content):
    with RunLock(tmp_path):
        (tmp_path / ".lock").write_bytes(content)
        with pytest.raises(RunFolderError, match="in use by another process"):
            RunLock(tmp_path)


def test_a_folder_that_cannot_be_locked(tmp_path):
    with pytest.raises(RunFolderError, match="cannot lock the run"):
        RunLock(tmp_path / "absent")
