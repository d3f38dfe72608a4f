"""Configuration keys: dotted names, types, and how text becomes a value.

pydantic converts and checks values. This module only gives text the right shape for its key:
nothing, one text, a list or a mapping.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from hasten.config import AnyDataOptions, DataOptions, RunConfig
from hasten.config_loading.spellings import ADVICE, hasten_key, normalized_name
from hasten.config_loading.yaml_file import Quoted, parse_value


@dataclass(frozen=True)
class Key:
    """One key: its dotted name and the shape of its value."""

    name: str
    optional: bool
    sequence: bool
    mapping: bool

    def fit(self, raw: Any, origin: str) -> Any:
        """Convert text from a file or the command line to the shape of this key."""
        if isinstance(raw, Quoted) or not isinstance(raw, str):
            return str(raw) if isinstance(raw, Quoted) else raw
        if self.optional and raw.strip().lower() in ("none", "null", "~", ""):
            return None
        if self.mapping or (self.sequence and raw.lstrip().startswith("[")):
            return parse_value(raw, origin)
        if self.sequence:
            return [item.strip() for item in raw.split(",") if item.strip()]
        return raw


def known_keys(
    options: type[BaseModel] | None, data: type[DataOptions] = AnyDataOptions
) -> dict[str, Key]:
    """Every key of a run's configuration.

    options: the options of the model; data: the ``data`` section that it reads.
    """
    keys: dict[str, Key] = {}
    for name, field in RunConfig.model_fields.items():
        if name == "model":
            if options is not None:
                keys.update(_keys_of(options, "model."))
        elif name == "data":
            keys.update(_keys_of(data, "data."))
        else:
            keys.update(_field_keys(name, field.annotation))
    return keys


def nearest_key(name: str, keys: Iterable[str]) -> str:
    """``"; did you mean 'training.lr'?"`` for the nearest key, or an empty text.

    The last part of a key has the most weight: ``lr`` and ``model.lr`` both find ``training.lr``.
    Names of other libraries find their key here: ``learning_rate``.
    """
    names = list(keys)
    last = name.rpartition(".")[2]
    if answer := ADVICE.get(normalized_name(name)):
        return f"; {answer}"
    near = [key for key in [matching_key(name, names)] if key] or get_close_matches(
        name, names, n=1, cutoff=0.75
    )
    if not near:
        lasts = {key.rpartition(".")[2]: key for key in names}
        near = [lasts[word] for word in get_close_matches(last, list(lasts), n=1, cutoff=0.6)]
    return f"; did you mean {near[0]!r}?" if near else ""


def matching_key(name: str, keys: Iterable[str]) -> str | None:
    """The key that ends in this name, or that another library calls by this name; else None."""
    names = list(keys)
    same = (key for key in names if key.rpartition(".")[2] == normalized_name(name))
    return next(same, None) or hasten_key(name, names)


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a.b": 1}`` as ``{"a": {"b": 1}}``."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *sections, last = name.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[last] = value
    return tree


def _keys_of(section: type[BaseModel], prefix: str) -> dict[str, Key]:
    keys: dict[str, Key] = {}
    for name, field in section.model_fields.items():
        keys.update(_field_keys(prefix + name, field.annotation))
    return keys


def _field_keys(name: str, annotation: Any) -> dict[str, Key]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _keys_of(annotation, f"{name}.")
    kinds = _alternatives(annotation)
    origins = {get_origin(kind) or kind for kind in kinds}
    key = Key(
        name,
        optional=type(None) in kinds,
        sequence=bool(origins & {list, tuple, set, frozenset}),
        mapping=dict in origins,
    )
    return {name: key}


def choices(annotation: Any) -> list[str]:
    """The values of a ``Literal``, also within a union; none for other types."""
    kinds = [kind for kind in _alternatives(annotation) if get_origin(kind) is Literal]
    return [str(value) for kind in kinds for value in get_args(kind)]


def _alternatives(annotation: Any) -> list[Any]:
    """The members of a union, through ``Annotated``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return [kind for part in get_args(annotation) for kind in _alternatives(part)]
    return [annotation]
