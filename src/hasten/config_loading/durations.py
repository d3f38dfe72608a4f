"""Durations as people write them: ``90s``, ``30m``, ``1.5h``."""

from __future__ import annotations

import re

from hasten.errors import UsageError


def parse_seconds(name: str, text: str) -> float:
    """``90``, ``90s``, ``30m`` or ``1.5h`` in seconds; name: of the flag, for the message."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smh]?)", text.strip().lower())
    if match is None:
        raise UsageError(f"--{name} {text}: expected seconds, or a number with s, m or h")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]
