"""Parse durations and memory sizes: ``1.5h``, ``500MB``."""

from __future__ import annotations

import re

from hasten.errors import UsageError

_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600}
_BYTES = {"": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30}


def parse_seconds(name: str, text: str) -> float:
    """``90``, ``90s``, ``30m`` or ``1.5h`` in seconds; name: of the flag, for the message."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip().lower())
    if match is None:
        raise UsageError(f"--{name} {text}: expected seconds, or a number with s, m or h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_size(name: str, size: str | int) -> int:
    """The bytes of ``10GB``, ``500MB`` or a number of bytes; name: of the option."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([kmg]b|)", str(size).strip().lower())
    if match is None:
        raise UsageError(f"{name} {size}: expected a size such as 2GB or 500MB")
    return int(float(match[1]) * _BYTES[match[2]])
