"""Energy of the processor packages during a run, from Linux's RAPL counters if they are readable.

The counters are those of the whole machine, other processes included. Many systems let only root
read them; then there is nothing to report.
"""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

_POWERCAP = Path("/sys/class/powercap")
#: the packages: their parts (cores, memory) have a second number
_PACKAGE = re.compile(r"[a-z-]*rapl:\d+")
#: seconds between readings; the counters overflow after about 15 minutes or more
_INTERVAL = 60.0


class EnergyMeter:
    """A context manager that counts the joules of all packages while it is open."""

    def __init__(self, root: Path | None = None) -> None:
        self._counters = _counters(_POWERCAP if root is None else root)
        self._last = [_read(path / "energy_uj") for path, _ in self._counters]
        self._microjoules = 0
        self._lock, self._closed = threading.Lock(), threading.Event()
        self._begin = time.monotonic()

    def report(self) -> dict[str, Any] | None:
        """``{"joules", "seconds", "packages"}`` since the meter was opened; None: not known."""
        if not self._counters:
            return None
        self._update()
        seconds = time.monotonic() - self._begin
        packages = len(self._counters)
        return {"joules": self._microjoules / 1e6, "seconds": seconds, "packages": packages}

    def _update(self) -> None:
        with self._lock:
            for index, (path, limit) in enumerate(self._counters):
                now = _read(path / "energy_uj")
                # the counter starts again at 0 after its limit
                self._microjoules += (now - self._last[index]) % (limit + 1)
                self._last[index] = now

    def _repeat(self) -> None:
        while not self._closed.wait(_INTERVAL):
            self._update()

    def __enter__(self) -> EnergyMeter:
        if self._counters:
            threading.Thread(target=self._repeat, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()


def _counters(root: Path) -> list[tuple[Path, int]]:
    """The folders of the readable packages, with the largest value of their counters."""
    counters = []
    for path in sorted(root.glob("*rapl:*")):
        try:
            package = (path / "name").read_text().startswith("package")
            if _PACKAGE.fullmatch(path.name) and package:
                _read(path / "energy_uj")
                counters.append((path, _read(path / "max_energy_range_uj")))
        except (OSError, ValueError):
            continue
    return counters


def _read(path: Path) -> int:
    return int(path.read_text())
