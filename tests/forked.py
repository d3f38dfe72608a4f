"""Processes that are forked with everything imported, in place of :mod:`subprocess`.

What several processes compute together is the same without a second of imports in each. That
programs start is tested in tests/faults and by the commands that run without this.
"""

from __future__ import annotations

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from typing import Any

from hasten.distributed.launch import STORE_SOCKET

DEVNULL = subprocess.DEVNULL
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("pytest", "hasten.api", "hasten.cli.train", "hasten.cli.influence", "torch.distributed"),
        # what training imports later
        *("torch.fx.experimental.symbolic_shapes", "torch.utils.tensorboard", "pandas"),
    ]
)


class _Descriptor:
    """An open file that goes to the process."""

    def __init__(self, file: Any) -> None:
        self.number = file if isinstance(file, int) else file.fileno()

    def __reduce__(self) -> Any:
        return _received, (reduction.DupFd(self.number),)


def _received(file: Any) -> int:
    return int(file.detach())


def _run(
    command: Sequence[str], variables: Mapping[str, str], out: int, error: int, store: int | None
) -> None:
    os.environ.clear()
    os.environ.update(variables)
    if store is not None:
        os.environ[STORE_SOCKET] = str(store)
    os.dup2(out, 1)
    os.dup2(error, 2)
    os.setsid()
    gc.freeze()  # a full collection need not search what was imported
    sys.argv = list(command)
    try:
        runpy.run_module(command[0], run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()


class Popen:
    """``python -m MODULE ARGUMENTS``, with what its users need of ``subprocess.Popen``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        stdout: Any = None,
        stderr: Any = None,
        pass_fds: Sequence[int] = (),
        **_: Any,
    ) -> None:
        files = [_Descriptor(1 if stdout is None else stdout)]
        files.append(_Descriptor(2 if stderr is None else stderr))
        variables = dict(os.environ if env is None else env)
        store = _Descriptor(pass_fds[0]) if pass_fds else None
        self._process = _CONTEXT.Process(target=_run, args=(command[2:], variables, *files, store))
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    poll = returncode.fget

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()
