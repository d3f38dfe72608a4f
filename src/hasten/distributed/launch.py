"""Start several processes on this machine, and read the environment that a launcher sets.

``--devices N`` starts N processes of the same command and waits for them. torchrun and other
launchers set the distributed environment: rank, world size, master address. This module does not
import torch.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from hasten.errors import HastenError, UsageError
from hasten.runs.environment import usable_cpus

LOOPBACK = "127.0.0.1"
#: set for the processes that are started here: the launcher's process id, the store's open socket
LAUNCHER, STORE_SOCKET = "HASTEN_LAUNCHER", "HASTEN_STORE_SOCKET"
#: seconds that the others have to end by themselves once one has failed
GRACE = 8.0
#: processes for each usable core, at most
_PER_CORE = 8
_LOOK = 0.05
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True)
class Launch:
    """The distributed environment of a process. restarts: how often torchrun has restarted it."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    address: str
    port: int
    restarts: int = 0
    #: whether the launcher holds the store, so that it outlives the processes
    keeps_store: bool = False
    store_socket: int | None = None

    @property
    def one_node(self) -> bool:
        return self.local_world == self.world


def launched(variables: Mapping[str, str] = os.environ) -> Launch | None:
    """The distributed environment; None if no launcher set it. Raises UsageError."""
    if "WORLD_SIZE" not in variables:
        return None
    world = _number(variables, "WORLD_SIZE", 1, None)
    names = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in variables]
    if missing and world > 1:
        raise UsageError(
            f"WORLD_SIZE={world} says that this is one of {world} processes, but "
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not set: start with "
            "--devices or torchrun, or unset WORLD_SIZE"
        )
    rank = _number(variables, "RANK", 0, 0)
    if rank >= world:
        raise UsageError(f"RANK={rank} does not fit WORLD_SIZE={world}: ranks begin at 0")
    address = variables.get("MASTER_ADDR", LOOPBACK)
    alone = world if address in (LOOPBACK, "localhost", "::1") else 1
    sockets = variables.get(STORE_SOCKET)
    return Launch(
        rank=rank,
        world=world,
        local_rank=_number(variables, "LOCAL_RANK", 0, 0),
        local_world=_number(variables, "LOCAL_WORLD_SIZE", 1, alone),
        address=address,
        port=_number(variables, "MASTER_PORT", 0, 0),
        restarts=_number(variables, "TORCHELASTIC_RESTART_COUNT", 0, 0),
        keeps_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        store_socket=None if sockets is None else int(sockets),
    )


def _number(variables: Mapping[str, str], name: str, least: int, default: int | None) -> int:
    text = variables.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.strip().isdigit() or int(text) < least:
        raise UsageError(f"{name}={text} (an environment variable): expected a number from {least}")
    return int(text)


def processes_to_start(devices: int, given: bool, port: int) -> int:
    """How many processes to start: 0 if this process does the work itself.

    devices: as configured; given: on the command line, where it must not contradict a launcher.
    """
    launch = launched()
    if launch is None:
        return devices if devices > 1 else 0
    if LAUNCHER in os.environ:
        return 0
    if given and devices != launch.local_world:
        raise UsageError(
            f"--devices {devices}, but a launcher has started {launch.local_world} "
            f"{'process' if launch.local_world == 1 else 'processes'} on this machine: leave "
            "--devices out, or start hasten without the launcher"
        )
    if port not in (0, launch.port):
        raise UsageError(
            f"--master-port {port}, but the launcher chose {launch.port}: give the port to the "
            "launcher (torchrun --master-port), not to hasten"
        )
    return 0


@dataclass(frozen=True)
class Ended:
    """How processes ended. problem: names the process that a signal killed, if any."""

    code: int
    output: str
    problem: str | None
    #: whether rank 0 reported its own error
    first_spoke: bool


def run_processes(
    arguments: Sequence[str], count: int, port: int = 0, *, capture: bool = False
) -> Ended:
    """Run ``python -m hasten ARGUMENTS`` as ``count`` processes until all have ended.

    The rendezvous is on the loopback interface at ``port`` (0: a free one). Signals are forwarded
    to all; if one fails, the others have :data:`GRACE` seconds to end. capture: keep stdout.
    Raises UsageError if the port is in use, or the machine is too small.
    """
    _refuse_too_many(count)
    with listen(LOOPBACK, port) as listener, tempfile.TemporaryFile("w+") as printed:
        children: list[subprocess.Popen[str]] = []
        try:
            with _passing_on(children):
                # one by one: if one cannot start, those before it are ended
                for rank in range(count):
                    child = _start(arguments, rank, count, listener, printed, capture)
                    children.append(child)
                listener.close()
                failed = _wait(children)
        finally:
            _kill(children)
        printed.seek(0)
        return _ended(children, failed, printed.read())


def _refuse_too_many(count: int) -> None:
    """Refuse what can only be a mistake, before a machine runs out of memory and processes."""
    cores = usable_cpus() or 1
    if count <= _PER_CORE * cores:
        return
    from torch.cuda import device_count  # noqa: PLC0415 - slow to import

    raise UsageError(
        f"--devices {count}: this machine has {cores} usable cores and {device_count()} CUDA "
        f"devices; start at most {_PER_CORE * cores} processes"
    )


def _start(
    arguments: Sequence[str],
    rank: int,
    count: int,
    listener: socket.socket,
    printed: IO[str],
    capture: bool,
) -> subprocess.Popen[str]:
    variables = {
        "OMP_NUM_THREADS": str(max(1, (usable_cpus() or 1) // count)),
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(listener.getsockname()[1]),
        LAUNCHER: str(os.getpid()),
    }
    first = rank == 0
    if first:
        variables[STORE_SOCKET] = str(listener.fileno())
    out: Any = (printed if capture else None) if first else sys.stderr.fileno()
    return subprocess.Popen(  # noqa: S603 - this program itself
        [sys.executable, "-m", "hasten", *arguments],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=out,
        pass_fds=(listener.fileno(),) if first else (),
        # the terminal's Ctrl-C reaches this process alone, which passes it on once
        start_new_session=True,
        text=True,
    )


def _wait(children: Sequence[subprocess.Popen[str]]) -> int | None:
    """Wait for all; the rank of the first that failed, if one did."""
    failed: int | None = None
    deadline = float("inf")
    while None in [child.poll() for child in children]:
        if failed is None:
            failed = _first_failed(children)
            deadline = float("inf") if failed is None else time.monotonic() + GRACE
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK)
    return _first_failed(children) if failed is None else failed


def _first_failed(children: Sequence[subprocess.Popen[str]]) -> int | None:
    return next((rank for rank, child in enumerate(children) if child.returncode), None)


def _kill(children: Sequence[subprocess.Popen[str]]) -> None:
    """End what still runs; SIGKILL reaches stopped processes too."""
    for child in children:
        if child.poll() is None:
            child.kill()
        child.wait()


def _ended(children: Sequence[subprocess.Popen[str]], failed: int | None, output: str) -> Ended:
    codes = [child.returncode for child in children]
    if failed is None:
        return Ended(0, output, None, True)
    code, first = codes[failed], codes[0]
    problem = None
    if code < 0:
        name = signal.Signals(-code).name
        problem = f"rank {failed} (process {children[failed].pid}) was killed by {name}"
    # rank 0 reports for all, if it could
    chosen = first if first > 0 else code
    return Ended(chosen if chosen > 0 else 1, output, problem, first_spoke=first >= 0)


def listen(address: str, port: int, kind: type[HastenError] = UsageError) -> socket.socket:
    """A socket that listens at this address only. Raises ``kind`` if the port cannot be used."""
    try:
        return socket.create_server((address, port))
    except OSError as error:
        raise kind(
            f"port {port} on {address} cannot be used: {error.strerror}; choose another "
            "(--master-port N; 0 takes a free one)"
        ) from error


@contextmanager
def _passing_on(children: Sequence[subprocess.Popen[str]]) -> Iterator[None]:
    """Forward signals that end a run to all children; SIGHUP as SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def pass_on(number: int, _frame: object) -> None:
        for child in children:
            if child.poll() is None:
                child.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
    passed_on = _PASSED_ON[:2] if ignored else _PASSED_ON
    previous = {number: signal.signal(number, pass_on) for number in passed_on}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
