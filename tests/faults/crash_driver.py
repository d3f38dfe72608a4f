"""Kills writers of checkpoints and looks at what they leave; run as a process of its own.

``python -m tests.faults.crash_driver SCENARIO FOLDER [count]`` prints one JSON object. Writers are
forked, so that torch is imported once. A writer dies by ``os._exit`` right before its k-th call to
one of the system calls below, for every k, or by SIGKILL at a random moment.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from hasten.errors import CheckpointError
from hasten.runs import tensor_file
from hasten.runs.checkpoint import (
    checkpoint_name,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)

CALLS = ("mkdir", "fsync", "rename", "replace", "unlink", "rmdir")
DIED, SURVIVED = 9, 10


def tensors(number: int, size: int = 2000) -> dict[str, dict[str, torch.Tensor]]:
    value = torch.full((size,), float(number))
    return {"weights": {"table": value}, "optimiser": {"first": value + 1, "second": value + 2}}


def write(folder: Path, number: int, size: int = 2000) -> None:
    write_checkpoint(folder, tensors(number, size), {"number": number})


def whole(folder: Path) -> int:
    """The number of a checkpoint whose tensors and state belong together."""
    found = read_checkpoint(folder)
    number = found.state["number"]
    for group, named in tensors(number, len(found.tensors["weights"]["table"])).items():
        for name, tensor in named.items():
            assert torch.equal(found.tensors[group][name], tensor), (folder, group, name)
    return int(number)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def fork(work: Callable[[], None]) -> int:
    """Run the work in a child; its exit status."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def interrupted(at: int, act: Callable[[str], None]) -> Callable[[], bool]:
    """Let ``act`` happen before the ``at``-th call, or when a file is half written.

    Returns whether that stage was reached.
    """
    count = 0

    def counted(name: str, original: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == at:
                act(name)
            return original(*arguments, **named)

        return call

    for name in CALLS:
        setattr(os, name, counted(name, getattr(os, name)))
    write_tensors, write_bytes = tensor_file.TensorFile.write, Path.write_bytes

    def half_tensors(self: tensor_file.TensorFile, path: Path) -> str:
        nonlocal count
        count += 1
        digest = write_tensors(self, path)
        if count == at:
            os.truncate(path, self.bytes // 2)
            act("half a file of tensors")
        return digest

    def half_bytes(self: Path, content: bytes) -> int:
        nonlocal count
        count += 1
        if count == at:
            write_bytes(self, content[: len(content) // 2])
            act("half a file of JSON")
        return write_bytes(self, content)

    tensor_file.TensorFile.write = half_tensors  # type: ignore[method-assign]
    Path.write_bytes = half_bytes  # type: ignore[method-assign, assignment]
    return lambda: count >= at


def every_stage(folder: Path, prepare, work, check, act) -> dict[str, object]:
    """Interrupt the work at every stage in turn, each in a fresh folder, and check."""
    seen: list[object] = []
    at = 0
    while True:
        at += 1
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        prepare(folder)

        def attempt(at: int = at) -> None:
            reached = interrupted(at, act)
            work(folder)
            if reached():
                os._exit(SURVIVED)

        status = fork(attempt)
        assert status in (0, DIED, SURVIVED), f"stage {at}: exit status {status}"
        seen.append(check(folder))
        if status == 0:
            return {"stages": at - 1, "seen": seen}


def die(name: str) -> None:
    os._exit(DIED)


def overwrite(folder: Path) -> dict[str, object]:
    """Overwriting best/: at every stage the old or the new one is there."""

    def check(folder: Path) -> int:
        number = whole(folder / "best")
        write(folder / "best", 3)
        assert whole(folder / "best") == 3
        assert names_in(folder) == ["best"], names_in(folder)
        return number

    return every_stage(
        folder, lambda f: write(f / "best", 1), lambda f: write(f / "best", 2), check, die
    )


def save_and_prune(folder: Path) -> dict[str, object]:
    """A save with pruning: at every stage the newest valid one is at most one save behind."""

    def prepare(folder: Path) -> None:
        for number in (1, 2):
            write(folder / checkpoint_name(number, 0), number)

    def work(folder: Path) -> None:
        write(folder / checkpoint_name(3, 0), 3)
        prune_checkpoints(folder, 2)

    def check(folder: Path) -> int:
        warnings: list[str] = []
        found = newest_checkpoint(folder, warnings.append)
        assert found is not None
        assert not warnings, warnings
        number = whole(found.path)
        write(folder / checkpoint_name(4, 0), 4)
        prune_checkpoints(folder, 2)
        expected = [checkpoint_name(number, 0), checkpoint_name(4, 0)]
        assert names_in(folder) == expected, names_in(folder)
        return number

    return every_stage(folder, prepare, work, check, die)


def full_disk(folder: Path) -> dict[str, object]:
    """No room, found at any stage: the earlier one stays, the message has the figures."""

    def no_room(name: str) -> None:
        raise OSError(28, "No space left on device")

    def work(folder: Path) -> None:
        try:
            write(folder / "best", 2)
        except CheckpointError as error:
            message = str(error)
            assert "bytes needed" in message, message
            assert "bytes free" in message, message
            assert names_in(folder) == ["best"], names_in(folder)
            os._exit(DIED)

    return every_stage(
        folder, lambda f: write(f / "best", 1), work, lambda f: whole(f / "best"), no_room
    )


def file_limit(folder: Path) -> dict[str, object]:
    """The system refuses to let a file grow: met in the tensors, the state and the manifest."""
    write(folder / "best", 1)
    state = {"number": 2, "text": "x" * 50_000}
    outcomes = []
    for limit in (0, 5, 300, 7_000, 8_050, 9_000, 20_000, 50_000, 60_000):

        def attempt(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            try:
                write_checkpoint(folder / "best", tensors(2), state)
            except CheckpointError as error:
                message = str(error)
                assert "bytes needed" in message, message
                os._exit(DIED)

        outcomes.append(fork(attempt))
        assert names_in(folder) == ["best"], names_in(folder)
        assert whole(folder / "best") == (1 if outcomes[-1] == DIED else 2)
    return {"outcomes": outcomes}


def killed(folder: Path, count: int) -> dict[str, object]:
    """SIGKILL at random moments of saving, overwriting best/ and pruning, over and over."""
    choice = random.Random(0)
    checkpoints, best = folder / "checkpoints", folder / "best"
    number = done = 0
    progress = folder / "progress"
    progress.touch()
    for _ in range(count):
        child = os.fork()
        if child == 0:
            while True:
                number += 1
                write(checkpoints / checkpoint_name(number, 0), number, 50_000)
                write(best, number, 50_000)
                prune_checkpoints(checkpoints, 2)
                progress.write_text(str(number))
        time.sleep(choice.uniform(0.0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        warnings: list[str] = []
        found = newest_checkpoint(checkpoints, warnings.append)
        assert not warnings, warnings
        done = int(progress.read_text() or done)  # died between emptying and writing it
        if found is None:
            assert done == 0
            continue
        number = whole(found.path)
        assert number >= done, (number, done)
        if best.exists() or done > 0:
            assert done <= whole(best) <= number, (done, number)
    return {"kills": count, "saves": number}


def concurrent(folder: Path, count: int) -> dict[str, object]:
    """Reading ``count`` versions while another process overwrites: all whole, none fails."""
    write(folder / "best", 0)
    child = os.fork()
    if child == 0:
        os.fsync = lambda descriptor: None  # type: ignore[assignment] - as often as possible
        number = 0
        while True:
            number += 1
            write(folder / "best", number)
            time.sleep(0.005)
    try:
        numbers: list[int] = []
        while len(set(numbers)) < count:
            numbers.append(whole(folder / "best"))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert numbers == sorted(numbers)
    return {"reads": len(numbers), "different": len(set(numbers))}


if __name__ == "__main__":
    torch.set_num_threads(1)
    scenario, place, *rest = sys.argv[1:]
    Path(place).mkdir(exist_ok=True)
    print(json.dumps(globals()[scenario](Path(place), *map(int, rest))))
