"""Write docs/configuration.md from the descriptions in the configuration classes.

python -m scripts.configuration_reference [--check]
"""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from hasten.config import (
    DataOptions,
    FeatureOptions,
    InteractionOptions,
    KnowledgeOptions,
    Patience,
    RunConfig,
    SequenceOptions,
    TripleOptions,
    TypedGraphOptions,
)
from hasten.registry import BUILT_IN, data_options_of, load_model, models_with_data_key

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """# Configuration reference

Set a key in a YAML file (`--config FILE`), with `--set key=value`, or with its flag if
`hasten train --help` lists one. Flags and `--set` override the file, and the file overrides the
defaults. The run folder keeps all values in `config.yaml`, and `hasten train --config` with that
file repeats the run. Some defaults of a model follow from the size of the data
([rules](defaults.md)): `hasten data inspect DATA --model NAME` shows them, and `config.yaml`
keeps them. A recipe sets all of them. Unknown keys are errors. `make docs` writes this page.
"""

BOUNDS = {"Ge": ("ge", "≥"), "Gt": ("gt", ">"), "Le": ("le", "≤"), "Lt": ("lt", "<")}


def document() -> str:
    """The whole page."""
    lines = [HEAD]
    top = [(name, f) for name, f in RunConfig.model_fields.items() if _section(f) is None]
    lines += ["## The run", "", *_table(_rows((n, f) for n, f in top if n != "model"))]
    for name, info in RunConfig.model_fields.items():
        section = _section(info)
        if section is DataOptions:
            lines += _data()
        elif section is not None and name != "model":
            lines += ["", f"## `{name}`", "", _summary(section), ""]
            named = ((f"{name}.{key}", field) for key, field in section.model_fields.items())
            lines += _table(_rows(named))
    for entry in BUILT_IN:
        model = load_model(entry.name)
        summary = model.summary[:1].upper() + model.summary[1:]
        lines += ["", f"## `model` = {entry.name}", "", f"{summary}."]
        if model.defaults:
            values = ", ".join(f"`{_key(k)}` {_text(v)}" for k, v in model.defaults.items())
            lines += ["", f"Its own defaults: {values}."]
        if model.defaults_from_data:
            keys = ", ".join(f"`{key}`" for key in model.defaults_from_data)
            lines += ["", f"Defaults that follow from the size of the data: {keys}."]
        fields = [(k, f) for k, f in model.Options.model_fields.items() if k != "name"]
        if fields:
            lines += ["", *_table(_rows((f"model.{key}", field) for key, field in fields))]
    return "\n".join(lines) + "\n"


def _data() -> list[str]:
    """The keys of every kind of data, and those that only some models read."""
    lines = ["", "## `data`", ""]
    lines += ["What to read, how to clean it and how to split it. A key that a model does not read"]
    lines += ["is refused.", "", *_keys(DataOptions, ())]
    for section, above in (
        (InteractionOptions, DataOptions),
        (SequenceOptions, InteractionOptions),
        (KnowledgeOptions, InteractionOptions),
        (FeatureOptions, InteractionOptions),
        (TripleOptions, DataOptions),
        (TypedGraphOptions, TripleOptions),
    ):
        own = [key for key in section.model_fields if key not in above.model_fields]
        named = [f"`{model}`" for model in _readers(section, own[0])]
        lines += ["", f"{_summary(section)} For {', '.join(named)}:"]
        lines += ["", *_keys(section, above.model_fields)]
    return lines


def _readers(section: type[DataOptions], key: str) -> list[str]:
    return [
        m for m in models_with_data_key(key) if issubclass(data_options_of(load_model(m)), section)
    ]


def _keys(section: type[BaseModel], without: Container[str]) -> list[str]:
    fields = ((f"data.{k}", f) for k, f in section.model_fields.items() if k not in without)
    return _table(_rows(fields))


def _key(name: str) -> str:
    """A default's key whole: those of training are written without it."""
    return name if "." in name else f"training.{name}"


def _section(info: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, if it does."""
    kind = info.annotation
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _summary(section: type[BaseModel]) -> str:
    return (section.__doc__ or "").strip().splitlines()[0]


def _rows(fields: Iterator[tuple[str, FieldInfo]]) -> Iterator[tuple[str, str, str, str]]:
    for name, info in fields:
        default = info.default
        if default is PydanticUndefined:
            default = info.default_factory() if info.default_factory else "required"  # type: ignore[call-arg]
        yield f"`{name}`", _values(info), _text(default), info.description or ""


def _table(rows: Iterator[tuple[str, str, str, str]]) -> list[str]:
    lines = ["| key | values | default | meaning |", "| --- | --- | --- | --- |"]
    lines += ["| " + " | ".join(_escaped(cell) for cell in row) + " |" for row in rows]
    return lines


def _escaped(cell: str) -> str:
    """Text that stays in its cell and is no HTML."""
    return cell.replace("|", "\\|").replace("<", "\\<")


def _values(info: FieldInfo) -> str:
    """The kind of value in words, with its bounds."""
    kind, metadata = info.annotation, list(info.metadata)
    while get_origin(kind) is Annotated:
        kind, *more = get_args(kind)
        metadata += more
    bounds = []
    for item in metadata:
        for one in item.metadata if isinstance(item, FieldInfo) else [item]:
            if type(one).__name__ in BOUNDS:
                attribute, sign = BOUNDS[type(one).__name__]
                bounds.append(f"{sign} {_text(getattr(one, attribute))}")
    words = _kind(kind)
    optional = words.endswith(" or none")
    return " ".join([words.removesuffix(" or none"), *bounds]) + (" or none" if optional else "")


def _kind(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(arguments[0])
    if origin is Literal:
        return ", ".join(str(value) for value in arguments)
    if origin in (Union, types.UnionType):
        parts = [_kind(part) for part in arguments if part is not type(None)]
        return " or ".join([*parts, *(["none"] if type(None) in arguments else [])])
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_kind(arguments[0])}"
        return f"{len(arguments)} of {_kind(arguments[0])}"
    if origin is dict:
        return f"mapping of {_kind(arguments[0])} to {_kind(arguments[1])}"
    if kind is Patience:
        return '"N evaluations" or "N epochs"'
    return {int: "whole number", float: "number", str: "text", bool: "true, false", Path: "path"}[
        kind
    ]


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if value == 2**63:
        return "2^63"
    if isinstance(value, float):
        return re.sub(r"e([+-])0*", lambda m: "e-" if m[1] == "-" else "e", f"{value:g}")
    if isinstance(value, (tuple, list)):
        return ", ".join(_text(item) for item in value)
    if isinstance(value, dict):
        return ", ".join(f"{k}: {v}" for k, v in value.items()) or "empty"
    return str(value)


def main(arguments: Sequence[str], page: Path = PAGE) -> int:
    text = document()
    if "--check" in arguments:
        if not page.exists() or page.read_text() != text:
            print("docs/configuration.md is stale: run make docs", file=sys.stderr)
            return 1
        return 0
    page.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
