"""Run work in threads ahead of its use, with a bounded number of results in memory."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_WORKERS = 4
T = TypeVar("T")
R = TypeVar("R")


def workers() -> int:
    """How many threads work at a time: at most one a core."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    return min(_WORKERS, cores)


def ahead(function: Callable[[T], R], inputs: Iterable[T], threads: int) -> Iterator[R]:
    """``map(function, inputs)`` in threads: so many calls, beside the result that is in use."""
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for value in inputs:
            waiting.append(pool.submit(function, value))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read_ahead(values: Iterable[T]) -> Iterator[T]:
    """The values, none of which is None; the next one is read in a thread meanwhile."""
    source = iter(values)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(next, source, None)
        while (value := waiting.result()) is not None:
            waiting = pool.submit(next, source, None)
            yield value
