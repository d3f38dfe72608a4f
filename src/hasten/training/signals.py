"""Handlers for the signals that save and stop a run."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def signal_name(number: int) -> str:
    """The name of a signal, as people know it."""
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


class StopNow(BaseException):
    """A stop signal within :meth:`StopSignals.stop_at_once`."""


class StopSignals:
    """A context in which SIGINT, SIGTERM and SIGHUP only set :attr:`received`; the trainer saves.

    SIGHUP stays ignored where it is, as under nohup. Work that takes minutes and can be abandoned
    runs in :meth:`immediate`. A second SIGINT raises KeyboardInterrupt, for when saving itself
    hangs. Outside the main thread, where Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        #: the number of the first signal that came, or None
        self.received: int | None = None
        self._interrupts = 0
        self._abandons: Callable[[], bool] | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in _STOP:
                if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # None: it was not set from Python, and cannot be restored from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @contextmanager
    def stop_at_once(self, is_interruptible: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """A context in which a signal raises :class:`StopNow` at once, if ``is_interruptible()``.

        Python calls handlers in the main thread alone: what torch computes in another thread (the
        backward pass on CUDA) ends first.
        """
        self._abandons = is_interruptible
        try:
            if self.received is not None and is_interruptible():
                raise StopNow
            yield
        finally:
            self._abandons = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise KeyboardInterrupt
        if self._abandons is not None and self._abandons():
            raise StopNow
