"""The processes of a run: who they are, and everything that they do together.

Every collective goes through :class:`Processes`, which waits in slices and so can say who did not
come instead of hanging. A run in one process uses the same object, and then nothing is exchanged.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hasten.config import DistributedOptions
from hasten.distributed.device import resolve_device
from hasten.distributed.heartbeat import Heartbeat
from hasten.distributed.launch import Launch, launched
from hasten.distributed.rendezvous import first_line, meet, resolve_backend
from hasten.distributed.semaphores import Semaphores
from hasten.errors import HastenError, ProcessesError

T = TypeVar("T")
_SLICE = timedelta(seconds=1)


class Processes:
    """This process among those of the run; a context in which they are joined.

    place: what this process is at, for the messages of the others. Collectives must be called by
    all processes in the same order; they raise ProcessesError naming who failed.
    """

    def __init__(self, device: torch.device, launch: Launch | None = None) -> None:
        self.device = device
        self.launch = launch
        self.rank = 0 if launch is None else launch.rank
        self.world = 1 if launch is None else launch.world
        self.backend: str | None = None
        self.place = "the start"
        self.timeout = DistributedOptions().timeout
        self._store: Any = None
        self._heartbeat: Heartbeat | None = None

    @classmethod
    def join(cls, device: str, options: DistributedOptions) -> Processes:
        """Meet the other processes that the launcher started, if it started any.

        device: as configured; ``cuda`` becomes the one of this process. Raises HastenError.
        """
        launch = launched()
        target = resolve_device(device, launch)
        processes = cls(target, launch)
        if launch is None:
            return processes
        try:
            processes._meet(launch, options)
        except HastenError as error:
            atexit.register(_leave, error.exit_code)
            if launch.rank == 0:
                raise
            # the first may never hear of it: each says for itself who could not come
            where = f"rank {launch.rank} on {socket.gethostname()}"
            raise ProcessesError(f"{where}: {error}") from error
        return processes

    def _meet(self, launch: Launch, options: DistributedOptions) -> None:
        self.timeout = options.timeout
        self.backend = resolve_backend(options.backend, self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # nccl works on the current device
        store = meet(launch, options, self.device, self.backend)
        self._store = PrefixStore("hasten", store)
        # keys that no group before this one has used: a launcher's store outlives its processes
        token = self.from_first(lambda: secrets.token_hex(8))
        holder = "the launcher" if launch.keeps_store else "rank 0"
        own = PrefixStore(token, store.clone())
        heartbeat = Heartbeat(
            own, holder, self.rank, self.world, options.heartbeat, lambda: self.place
        )
        heartbeat.first_beat()
        self.gather(None)
        heartbeat.start()
        self._heartbeat = heartbeat

    @property
    def joined(self) -> bool:
        """Whether there is a process group, of one process or several."""
        return self._store is not None

    @property
    def first(self) -> bool:
        """Whether this process writes the run folder and speaks for all."""
        return self.rank == 0

    @property
    def restarts(self) -> int:
        """How often the launcher has begun again."""
        return 0 if self.launch is None else self.launch.restarts

    @property
    def local_world(self) -> int:
        """How many of the processes run on this machine."""
        return 1 if self.launch is None else self.launch.local_world

    @property
    def one_machine(self) -> bool:
        """Whether all processes run on this machine."""
        return self.launch is None or self.launch.one_node

    def describe(self) -> list[str]:
        """A line for the log, where there are several."""
        if self.launch is None:
            return []
        return [
            f"rank {self.rank} of {self.world}, process {os.getpid()} on {socket.gethostname()}, "
            f"{self.device}, {torch.get_num_threads()} threads, {self.backend}"
            + (f", begun again {self.restarts} times" if self.restarts else "")
        ]

    def sum_(self, tensor: Tensor, what: str) -> Tensor:
        """Replace a tensor by its sum over all processes, the same bytes on each."""
        if self.world > 1:
            self._run(what, lambda: dist.all_reduce(tensor, async_op=True), tensor)
        else:
            self._raise_if_lost()
        return tensor

    def meet(self, semaphores: Semaphores, what: str) -> None:
        """Go on when all processes have come here; for those that share memory."""
        self._raise_if_lost()
        started = time.monotonic()
        semaphores.tell()
        while not semaphores.come(_SLICE.total_seconds()):
            self._raise_if_lost()
            if semaphores.ended():
                gone = RuntimeError("a process has ended")
                raise self._broken(what, gone, time.monotonic()) from gone
            if time.monotonic() - started > self.timeout:
                raise self._nobody(what)

    def broadcast_(self, tensor: Tensor, what: str) -> Tensor:
        """Replace a tensor by that of the first process."""
        if self.joined:
            self._run(what, lambda: dist.broadcast(tensor, 0, async_op=True), tensor)
        return tensor

    def gather(self, value: Any, what: str = "an exchange") -> list[Any]:
        """A JSON value of every process, in the order of ranks, on every process."""
        if not self.joined:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        size = torch.tensor([len(content)])
        self._run(what, lambda: dist.all_gather(sizes, size, async_op=True), size)
        longest = max(int(each) for each in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(content)] = content
        found = [torch.empty_like(padded) for _ in range(self.world)]
        self._run(what, lambda: dist.all_gather(found, padded, async_op=True), padded)
        texts = (t[: int(n)].numpy().tobytes() for t, n in zip(found, sizes, strict=True))
        return [json.loads(text) for text in texts]

    def from_first(self, make: Callable[[], Any], what: str = "word of rank 0") -> Any:
        """What ``make`` returns on the first process (JSON), on all; its error too."""
        if not self.joined:
            return make()
        answer: dict[str, Any] = {}
        problem: HastenError | None = None
        if self.first:
            try:
                answer = {"value": make()}
            except HastenError as error:
                problem, answer = error, _describe(error)
        content = json.dumps(answer).encode()
        size = torch.tensor([len(content)])
        self.broadcast_(size, what)
        buffer = torch.zeros(int(size), dtype=torch.uint8)
        if self.first:
            buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self.broadcast_(buffer, what)
        if problem is not None:
            problem.agreed = True
            raise problem
        answer = json.loads(buffer.numpy().tobytes())
        if "error" in answer:
            raise _repeated(answer, "")
        return answer["value"]

    def together(self, what: str, function: Callable[[], T]) -> T:
        """Run ``function`` on every process; where it fails on one, it fails on all."""
        if not self.joined:
            return function()
        self.place = what
        problem: HastenError | None = None
        result: T | None = None
        try:
            result = function()
        except HastenError as error:
            problem = error
        outcomes = self.gather(None if problem is None else _describe(problem), what)
        failed = [(rank, told) for rank, told in enumerate(outcomes) if told is not None]
        if failed:
            if problem is not None and len(failed) == self.world:
                problem.agreed = True
                raise problem
            rank, told = failed[0]
            raise _repeated(told, f"rank {rank}: ") from problem
        return result  # type: ignore[return-value]

    def largest(self, value: int) -> int:
        """The largest of a number over all processes."""
        return int(max(self.gather(value)))

    def remember(self, name: str, value: str) -> None:
        """Keep a text for the processes that the launcher starts after a failure of these."""
        if self._store is not None and self.launch is not None and self.launch.keeps_store:
            self._store.set(name, value)

    def recall(self, name: str) -> str | None:
        """What :meth:`remember` kept, before the launcher began again."""
        keeps = self.launch is not None and self.launch.keeps_store
        if self._store is None or not keeps or not self._store.check([name]):
            return None
        return bytes(self._store.get(name)).decode()

    def __enter__(self) -> Processes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.joined:
            return
        assert self._heartbeat is not None
        agreed = error is None or (isinstance(error, HastenError) and error.agreed)
        if agreed and self._heartbeat.lost is None:
            self.place = "the end"
            self.gather(None, "the end")
            self._heartbeat.stop()
            dist.destroy_process_group()
        else:
            if not isinstance(error, ProcessesError):
                self._heartbeat.tell_failure(f"{type(error).__name__}: {error}")
            self._heartbeat.stop()
            atexit.register(_leave, _exit_code(error))
        self._store = None

    def _run(self, what: str, begin: Callable[[], Any], tensor: Tensor) -> None:
        """Begin a collective and wait for it; nccl's are waited for by the device."""
        self._raise_if_lost()
        if tensor.device.type == "cuda" and self.backend == "nccl":
            begin().wait()
            return
        started = time.monotonic()
        try:
            work = begin()
        except RuntimeError as error:
            raise self._broken(what, error, started) from error
        while True:
            try:
                work.wait(_SLICE)
                return
            except RuntimeError as error:
                if work.is_completed():
                    raise self._broken(what, error, time.monotonic()) from error
                self._raise_if_lost()
                if time.monotonic() - started > self.timeout:
                    raise self._nobody(what) from error

    def _nobody(self, what: str) -> ProcessesError:
        return ProcessesError(
            f"rank {self.rank} waited {self.timeout:g} s for the others in {what}, at "
            f"{self.place} (distributed.timeout): {self._places()}"
        )

    def _raise_if_lost(self) -> None:
        if self._heartbeat is not None and self._heartbeat.lost is not None:
            raise ProcessesError(f"rank {self.rank} ends at {self.place}: {self._heartbeat.lost}")

    def _broken(self, what: str, error: RuntimeError, since: float) -> ProcessesError:
        why = None if self._heartbeat is None else self._heartbeat.explain(since)
        return ProcessesError(
            f"rank {self.rank} ends at {self.place}, in {what}: {why or first_line(error)}"
        )

    def _places(self) -> str:
        return "nobody was heard yet" if self._heartbeat is None else self._heartbeat.places()


def _describe(error: HastenError) -> dict[str, Any]:
    return {"error": str(error), "code": error.code, "exit_code": error.exit_code}


def _repeated(told: dict[str, Any], where: str) -> HastenError:
    """The error of another process, raised here too."""
    error = HastenError(where + told["error"])
    error.code, error.exit_code, error.agreed = told["code"], told["exit_code"], True
    return error


def _exit_code(error: BaseException | None) -> int:
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.exit_code if isinstance(error, HastenError) else 1


def _leave(code: int) -> None:
    """End at once: what torch has under way with a lost process would hold this one up."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
