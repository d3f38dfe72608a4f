"""The processes of a run: ranks, collectives and error handling.

Every collective goes through :class:`Processes`, which waits in slices of a second. If a process
fails or hangs, the others report its rank instead of hanging too. A run in one process uses the
same object; its collectives return at once.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from hasten.config import DistributedOptions
from hasten.distributed import error_relay
from hasten.distributed.device import resolve_device
from hasten.distributed.heartbeat import Heartbeat
from hasten.distributed.launch import Launch, launched
from hasten.distributed.rendezvous import rendezvous, resolve_backend
from hasten.errors import HastenError, ProcessesError, first_line

T = TypeVar("T")
_SLICE = timedelta(seconds=1)


class Processes:
    """This process and its collectives; a context manager that leaves the process group.

    activity: what this process is doing, for error messages. All processes must call collectives in
    the same order; these raise ProcessesError naming the rank that failed.
    """

    def __init__(self, device: torch.device, launch: Launch | None = None) -> None:
        self.device = device
        self.launch = launch
        self.rank = 0 if launch is None else launch.rank
        self.world = 1 if launch is None else launch.world
        self.backend: str | None = None
        self.activity = "the start"
        self.timeout = DistributedOptions().timeout
        self._store: Any = None
        self._heartbeat: Heartbeat | None = None

    @classmethod
    def join(cls, device: str, options: DistributedOptions) -> Processes:
        """Join the processes that the launcher started, if any.

        device: as configured; ``cuda`` becomes the device of this process. Raises HastenError.
        """
        launch = launched()
        target = resolve_device(device, launch)
        processes = cls(target, launch)
        if launch is None:
            return processes
        try:
            processes._meet(launch, options)
        except HastenError as error:
            atexit.register(error_relay.exit_now, error.exit_code)
            if launch.rank == 0:
                raise
            # rank 0 may never hear of it, so each rank reports its own error
            where = f"rank {launch.rank} on {socket.gethostname()}"
            raise ProcessesError(f"{where}: {error}") from error
        return processes

    def _meet(self, launch: Launch, options: DistributedOptions) -> None:
        self.timeout = options.timeout
        self.backend = resolve_backend(options.backend, self.device)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # nccl works on the current device
        store = rendezvous(launch, options, self.device, self.backend)
        self._store = PrefixStore("hasten", store)
        # a new prefix: a launcher's store outlives its processes
        token = self.run_on_rank0(lambda: secrets.token_hex(8))
        holder = "the launcher" if launch.keeps_store else "rank 0"
        heartbeat_store = PrefixStore(token, store.clone())
        heartbeat = Heartbeat(
            heartbeat_store, holder, self.rank, self.world, options.heartbeat, lambda: self.activity
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
    def is_rank0(self) -> bool:
        """Whether this is rank 0, which writes the run folder and the output."""
        return self.rank == 0

    @property
    def restarts(self) -> int:
        """How often the launcher has restarted the processes."""
        return 0 if self.launch is None else self.launch.restarts

    @property
    def local_world(self) -> int:
        """How many of the processes run on this machine."""
        return 1 if self.launch is None else self.launch.local_world

    def describe(self) -> list[str]:
        """A line for the log, if a launcher started the processes."""
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
            self.raise_if_lost()
        return tensor

    def max_(self, tensor: Tensor, what: str) -> Tensor:
        """Replace a tensor by its elementwise maximum over all processes."""
        if self.world > 1:
            maximum = dist.ReduceOp.MAX
            self._run(what, lambda: dist.all_reduce(tensor, maximum, async_op=True), tensor)
        return tensor

    def sum_at_(self, tensor: Tensor, what: str, target: int) -> Tensor:
        """Replace a tensor by its sum over processes on rank ``target``; undefined on others."""
        if self.world > 1:
            self._run(what, lambda: dist.reduce(tensor, target, async_op=True), tensor)
        return tensor

    def broadcast_(self, tensor: Tensor, what: str, source: int = 0) -> Tensor:
        """Replace a tensor by that of rank ``source``."""
        if self.joined:
            self._run(what, lambda: dist.broadcast(tensor, source, async_op=True), tensor)
        return tensor

    def all_gather(self, tensor: Tensor, what: str, group: Any = None) -> Tensor:
        """[P, n] the vectors [n] of all processes, by rank. group: None: that of all others."""
        vectors = tensor.new_empty(self.world, len(tensor))
        each = list(vectors.unbind())
        self._run(what, lambda: dist.all_gather(each, tensor, group, async_op=True), tensor)
        return vectors

    def all_to_all(self, tensor: Tensor, given: list[int], taken: list[int], what: str) -> Tensor:
        """Send ``given`` rows of a tensor to each process, and get ``taken`` from each, by rank."""
        rows = tensor.new_empty(sum(taken), *tensor.shape[1:])
        begin = partial(dist.all_to_all_single, rows, tensor.contiguous(), taken, given)
        self._run(what, lambda: begin(async_op=True), tensor)
        return rows

    def gather(self, value: Any, what: str = "an all-gather") -> list[Any]:
        """A JSON value of every process, in the order of ranks, on every process."""
        if not self.joined:
            return [value]
        content = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        sizes = self.all_gather(torch.tensor([len(content)]), what).flatten().tolist()
        padded = torch.zeros(max(sizes), dtype=torch.uint8)
        padded[: len(content)] = content
        received = self.all_gather(padded, what)
        return [json.loads(t[:n].numpy().tobytes()) for t, n in zip(received, sizes, strict=True)]

    def run_on_rank0(self, make: Callable[[], Any], what: str = "a value of rank 0") -> Any:
        """Call ``make`` on rank 0 and return its JSON value, or raise its error, on all ranks."""
        if not self.joined:
            return make()
        answer: dict[str, Any] = {}
        problem: HastenError | None = None
        if self.is_rank0:
            try:
                answer = {"value": make()}
            except HastenError as error:
                problem, answer = error, error_relay.describe_error(error)
        answer = self.gather(answer, what)[0]
        if problem is not None:
            problem.agreed = True
            raise problem
        if "error" in answer:
            raise error_relay.relayed_error(answer, "")
        return answer["value"]

    def run_on_all_ranks(self, what: str, function: Callable[[], T]) -> T:
        """Call ``function`` on every rank and return its result; raise on all if one raises."""
        if not self.joined:
            return function()
        self.activity = what
        problem: HastenError | None = None
        result: T | None = None
        try:
            result = function()
        except HastenError as error:
            problem = error
        described = None if problem is None else error_relay.describe_error(problem)
        outcomes = self.gather(described, what)
        failed = [(rank, outcome) for rank, outcome in enumerate(outcomes) if outcome is not None]
        if failed:
            if problem is not None and len(failed) == self.world:
                problem.agreed = True
                raise problem
            rank, outcome = failed[0]
            raise error_relay.relayed_error(outcome, f"rank {rank}: ") from problem
        return result  # type: ignore[return-value]

    def save_job_state(self, name: str, value: str) -> None:
        """Save a text in the launcher's store (such as torchrun's), in memory, until the job ends.

        The processes of the next restart read it. Without such a store, do nothing.
        """
        if self._store is not None and self.launch is not None and self.launch.keeps_store:
            self._store.set(name, value)

    def load_job_state(self, name: str) -> str | None:
        """The text that :meth:`save_job_state` saved before a restart, or None."""
        keeps = self.launch is not None and self.launch.keeps_store
        if self._store is None or not keeps or not self._store.check([name]):
            return None
        return bytes(self._store.get(name)).decode()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if not self.joined:
            return
        assert self._heartbeat is not None
        agreed = error is None or (isinstance(error, HastenError) and error.agreed)
        left = False
        try:
            if agreed and self._heartbeat.lost is None:
                self._leave(self._heartbeat)
                left = True
            elif not isinstance(error, ProcessesError):
                self._heartbeat.tell_failure(f"{type(error).__name__}: {error}")
        finally:
            if not left:
                self._heartbeat.stop(wait=False)
                atexit.register(error_relay.exit_now, error_relay.exit_code_of(error))
        self._store = None

    def _leave(self, heartbeat: Heartbeat) -> None:
        """Leave the process group together with the others."""
        self.activity = "the end"
        self.gather(None, "the end")
        heartbeat.stop()
        # rank 0 may hold the store, which must outlive the heartbeats of all
        self.gather(None, "the end of the heartbeats")
        dist.destroy_process_group()

    def _run(self, what: str, begin: Callable[[], Any], tensor: Tensor) -> None:
        """Begin a collective and wait for it; with NCCL the device waits."""
        self.raise_if_lost()
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
                self.raise_if_lost()
                if time.monotonic() - started > self.timeout:
                    seen = "no heartbeat was received yet"
                    raise ProcessesError(
                        f"rank {self.rank} waited {self.timeout:g} s for the others in {what}, at "
                        f"{self.activity} (distributed.timeout): "
                        f"{self._heartbeat.last_seen() if self._heartbeat else seen}"
                    ) from error

    def raise_if_lost(self) -> None:
        if self._heartbeat is not None and self._heartbeat.lost is not None:
            lost = self._heartbeat.lost
            raise ProcessesError(f"rank {self.rank} ends at {self.activity}: {lost}")

    def _broken(self, what: str, error: RuntimeError, since: float) -> ProcessesError:
        why = None if self._heartbeat is None else self._heartbeat.explain(since)
        where = f"rank {self.rank} ends at {self.activity}, in {what}"
        return ProcessesError(f"{where}: {why or first_line(error)}")
