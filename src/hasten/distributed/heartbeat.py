"""Heartbeats between processes, so that errors name the process that died or hangs.

One thread writes this process's heartbeat to the store twice a second and reads the others'. A
second thread checks the timeouts, because the first may hang in the store itself. The result is in
:attr:`Heartbeat.lost`, which the main thread checks while it waits; if it does not, the second
thread ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

#: seconds that the main thread has to end the process, once a process is lost
PATIENCE = 5.0
_FAILED = "failed"


class Heartbeat:
    """The heartbeat of one process; threads run from :meth:`start` to :meth:`stop`.

    store: of torch.distributed, with its own connection and key prefix. holder: the process that
    holds the store. timeout: seconds without a heartbeat after which a process is lost. activity:
    returns what this process is doing.
    """

    def __init__(
        self,
        store: Any,
        holder: str,
        rank: int,
        world: int,
        timeout: float,
        activity: Callable[[], str],
    ) -> None:
        self.store, self.holder, self.rank, self.world = store, holder, rank, world
        self.timeout, self.activity = timeout, activity
        self.interval = min(0.5, timeout / 10)
        #: the reason why this process cannot continue, or None
        self.lost: str | None = None
        self._stopping = threading.Event()
        self._launcher = os.getppid()
        now = time.monotonic()
        self._store_answered = now
        self._store_gone: str | None = None
        self._heard = dict.fromkeys(self._others(), now)
        self._beats: dict[int, str] = {}
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for work, name in ((self._beat, "heartbeat"), (self._watch, "heartbeat-watch"))
        ]

    def start(self) -> None:
        """Start the threads; every process must have called :meth:`first_beat` before."""
        self._store_answered = time.monotonic()
        self._heard = dict.fromkeys(self._others(), self._store_answered)
        for thread in self._threads:
            thread.start()

    def first_beat(self) -> None:
        """Write the first heartbeat, for the others to read."""
        self.store.set_timeout(timedelta(seconds=self.timeout))
        self._write(0)

    def stop(self, *, wait: bool = True) -> None:
        """Stop the threads. wait: until they have ended; needed if the interpreter ends next.

        A thread that returns from the store after that cannot acquire the interpreter's lock, which
        aborts the process. The store's timeout bounds the wait.
        """
        self._stopping.set()
        for thread in self._threads if wait else ():
            thread.join()

    def tell_failure(self, message: str) -> None:
        """Tell the other processes why this one ends, and give them time to read it."""
        text = json.dumps({"rank": self.rank, "activity": self.activity(), "message": message})
        try:
            self.store.compare_set(_FAILED, "", text)
        except RuntimeError:  # the store is gone: the others detect that
            return
        time.sleep(3 * self.interval)

    def explain(self, since: float) -> str | None:
        """Which process caused a connection to break at ``since``; waits for some heartbeats."""
        deadline = since + 5 * self.interval
        while self.lost is None and self._store_gone is None and time.monotonic() < deadline:
            time.sleep(self.interval / 5)
        if self.lost is None and self._store_gone is not None:
            self.lost = self._store_gone
        # the last heartbeat may have been written just before, and be read one interval later
        last = since + 1.5 * self.interval
        silent = [rank for rank, heard in self._heard.items() if heard < last]
        if self.lost is None and silent:
            self.lost = f"{_ranks(silent)} died ({self.last_seen(silent)})"
        return self.lost

    def last_seen(self, ranks: list[int] | None = None) -> str:
        """When the last heartbeat of each process arrived, and what the process was doing then."""
        now = time.monotonic()
        seen = [
            f"rank {rank} was last seen {now - self._heard[rank]:.0f} s ago at {activity}"
            for rank, (_, activity) in sorted((k, json.loads(v)) for k, v in self._beats.items())
            if ranks is None or rank in ranks
        ]
        return "; ".join(seen) or "never seen"

    def _others(self) -> list[int]:
        return [rank for rank in range(self.world) if rank != self.rank]

    def _write(self, number: int) -> None:
        self.store.set(f"beat/{self.rank}", json.dumps([number, self.activity()]))

    def _beat(self) -> None:
        others = self._others()
        keys = [f"beat/{rank}" for rank in others]
        number = 0
        while not self._stopping.wait(self.interval):
            number += 1
            try:
                self._write(number)
                beats = [text.decode() for text in self.store.multi_get(keys)] if keys else []
                failed = self.store.check([_FAILED])
                failure = json.loads(self.store.get(_FAILED)) if failed else None
            except (RuntimeError, ValueError) as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                seen = self.last_seen()
                self._store_gone = (
                    f"{self.holder}, where all processes report, died ({seen}): {reason}"
                )
                # at the very end of a run rank 0 may have ended already, and the store with it
                if not self._stopping.wait(2.0):
                    self._lose(self._store_gone)
                return
            now = self._store_answered = time.monotonic()
            for rank, text in zip(others, beats, strict=True):
                if self._beats.get(rank) != text:
                    self._beats[rank], self._heard[rank] = text, now
            if failure is not None and failure["rank"] != self.rank:
                self._lose(
                    f"rank {failure['rank']} failed at {failure['activity']}: {failure['message']}"
                )
                return

    def _watch(self) -> None:
        last = time.monotonic()
        while not self._stopping.wait(self.interval / 2):
            now = time.monotonic()
            if now - last > self.timeout / 2:
                # this process stood still itself (Ctrl-Z and fg): nobody could be heard
                self._store_answered, self._heard = now, dict.fromkeys(self._others(), now)
            last = now
            silent = [rank for rank, heard in self._heard.items() if now - heard > self.timeout]
            if now - self._store_answered > self.timeout:
                self._lose(
                    f"{self.holder}, where all processes report, has not answered for "
                    f"{self.timeout:g} s: it stands still, or its machine is cut off "
                    f"({self.last_seen()})"
                )
            elif silent:
                self._lose(
                    f"{_ranks(silent)} sent no heartbeat for {self.timeout:g} s: stopped, "
                    f"swapped out or cut off ({self.last_seen(silent)})"
                )
            elif os.getppid() != self._launcher:
                self._lose("the launcher of the processes has gone")
            if self.lost is not None:
                break
        if self.lost is not None and not self._stopping.wait(PATIENCE):
            sys.stderr.write(f"error: rank {self.rank}, at {self.activity()}: {self.lost}\n")
            sys.stderr.flush()
            os._exit(1)

    def _lose(self, why: str) -> None:
        if self.lost is None:
            self.lost = why


def _ranks(ranks: list[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
