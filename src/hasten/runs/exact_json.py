"""JSON in two variants: exact (all floats round-trip) and plain (non-finite becomes null)."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

_FLOAT = "$float64"


def to_exact_json(value: Mapping[str, Any]) -> bytes:
    """JSON from which :func:`from_exact_json` restores every float, including NaN payloads.

    A non-finite float becomes ``{"$float64": <its 8 bytes in hexadecimal>}``. Raises TypeError for
    keys that are not strings and for values that JSON cannot represent.
    """
    return json.dumps(_exact(value, "state"), indent=1, allow_nan=False).encode()


def from_exact_json(content: bytes) -> dict[str, Any]:
    """The inverse of :func:`to_exact_json`. Raises ValueError if it is not a JSON object."""
    value = json.loads(content, object_hook=_restore)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return value


def to_plain_json(value: Mapping[str, Any], **options: Any) -> str:
    """Strict JSON: non-finite floats become null, NumPy and torch scalars become numbers.

    options: of ``json.dumps``.
    """
    return json.dumps(_plain(value), allow_nan=False, **options)


def _exact(value: Any, where: str) -> Any:
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return {_FLOAT: struct.pack(">d", value).hex()}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _FLOAT:
                raise TypeError(f"{where}: {key!r} cannot be a key in JSON")
        return {key: _exact(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(f"{where}: {type(value).__name__} cannot be written as JSON")


def _restore(value: dict[str, Any]) -> Any:
    if value.keys() == {_FLOAT}:
        return struct.unpack(">d", bytes.fromhex(value[_FLOAT]))[0]
    return value


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # NumPy and torch scalars
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
