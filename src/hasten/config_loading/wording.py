"""Rephrase pydantic's validation errors: key, value, source, allowed values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from hasten.config_loading.keys import nearest_key

_ALLOWED: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "greater_than_equal": lambda c: f"must be {c['ge']} or more",
    "greater_than": lambda c: f"must be more than {c['gt']}",
    "less_than_equal": lambda c: f"must be {c['le']} or less",
    "less_than": lambda c: f"must be less than {c['lt']}",
    "multiple_of": lambda c: f"must be a multiple of {c['multiple_of']}",
    "literal_error": lambda c: f"must be one of {_choices(c['expected'])}",
    "value_error": lambda c: str(c["error"]),
    "missing": lambda _: "is required",
    "finite_number": lambda _: "must be a finite number",
    "int_from_float": lambda _: "must be a whole number",
    "int_parsing": lambda _: "must be a whole number",
    "int_type": lambda _: "must be a whole number",
    "int_parsing_size": lambda _: "is too large",
    "float_parsing": lambda _: "must be a number",
    "float_type": lambda _: "must be a number",
    "bool_parsing": lambda _: "must be true or false",
    "bool_type": lambda _: "must be true or false",
    "string_type": lambda _: "must be one text",
    "tuple_type": lambda _: "must be a list, such as a,b,c",
    "list_type": lambda _: "must be a list, such as a,b,c",
    "dict_type": lambda _: "must be a mapping, such as {name: value}",
    "too_long": lambda c: f"must have at most {c['max_length']} parts, has {c['actual_length']}",
    "too_short": lambda c: f"must have at least {c['min_length']} parts, has {c['actual_length']}",
}


def problems(
    error: ValidationError,
    prefix: tuple[str, ...],
    origins: Mapping[str, str],
    keys: Iterable[str],
) -> list[str]:
    """One line per wrong key, without duplicates."""
    names = list(keys)
    lines = [_line(detail, prefix, origins, names) for detail in error.errors(include_url=False)]
    return list(dict.fromkeys(lines))


def _line(
    detail: ErrorDetails, prefix: tuple[str, ...], origins: Mapping[str, str], keys: list[str]
) -> str:
    path = [*prefix, *(str(part) for part in detail["loc"])]
    # the location continues into unions and lists; the key is its longest known prefix
    key = next(
        (".".join(path[:n]) for n in range(len(path), 0, -1) if ".".join(path[:n]) in keys),
        ".".join(path),
    )
    where = origins.get(key)
    place = f" ({where})" if where else ""
    if detail["type"] == "extra_forbidden":
        return f"unknown key {key!r}{place}{nearest_key(key, keys)}"
    if detail["type"] == "missing":
        # in a tuple with too few parts, the last ones are "missing"
        return f"{key}{place}: {'has too few parts' if key in origins else 'is required'}"
    if isinstance(detail["input"], dict) and detail["type"] == "value_error":
        shown = ""  # a rule over a whole section: the values are in its message
    else:
        shown = f" = {_shown(detail['input'])}"
    words = _ALLOWED.get(detail["type"])
    allowed = words(detail.get("ctx", {})) if words else detail["msg"]
    return f"{key}{shown}{place}: {allowed}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    plain = not isinstance(value, str) or re.fullmatch(r"[\w.@/+-]+", value)
    text = str(value) if plain else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _choices(expected: str) -> str:
    return expected.replace(" or ", ", ").replace("'", "")
