"""Terminal output: JSON and results on stdout, progress and messages on stderr."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

from hasten.console import write_stderr


def speaks() -> bool:
    """Whether this process prints: of several started together, only the first does."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str = "", own: bool = False) -> None:
    """A line for people, on stderr; of several processes the first says it.

    own: it concerns this process alone, so it says it itself.
    """
    if speaks() or own:
        which = "" if speaks() else f"[rank {os.environ['RANK']}] "
        write_stderr(which + printable(text))


def write_json(value: Mapping[str, Any]) -> None:
    """One JSON object on stdout, on a line of its own; what is not finite becomes null."""
    if speaks():
        escape = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
        sys.stdout.write(json.dumps(plain(value), allow_nan=False, ensure_ascii=escape) + "\n")
        sys.stdout.flush()


def rows(key: str, table: Any, out: object) -> dict[str, Any]:
    """What JSON says of a table: its rows, or the file that has them."""
    return {key: table.to_pylist()} if out is None else {"out": out}


def plain(value: Any) -> Any:
    """The value in terms of JSON: text keys, lists, finite numbers or null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):  # numpy and torch scalars
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value)


def printable(text: str) -> str:
    """The text with control characters escaped: a name in the data cannot steer the terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)
