"""Read a YAML configuration file; scalars stay text, with their line numbers.

The schema decides the type of a value: ``1e-3`` is a number for a number's key, ``no`` a name for a
name's key. Tags, anchors and repeated keys are refused: a file cannot build objects, refer to
itself or silently override an earlier line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hasten.errors import ConfigurationError

MAX_BYTES = 1 << 20
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{name}"
    for name in ("str", "int", "float", "bool", "null", "timestamp", "value", "merge", "map", "seq")
}


class Quoted(str):
    """A text that was written in quotes: never read as "none"."""

    __slots__ = ()


@dataclass(frozen=True)
class Entry:
    """One key of a file: its dotted name, its value as text, list or mapping, and its place.

    value: str, None (nothing written), a list of these, or a dict for a whole mapping.
    """

    key: str
    value: Any
    place: str


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="anchors and aliases (& and *) are not used in a configuration",
                problem_mark=event.start_mark,
            )
        return super().compose_node(parent, index)


def parse_value(text: str, place: str) -> Any:
    """One YAML value, such as ``[1, 2]`` or ``{user: uid}``, with its scalars left as text."""
    return _value(_compose(text, place), place)


def read_entries(path: Path, mappings: frozenset[str]) -> list[Entry]:
    """The keys of a configuration file in order, nested mappings joined with dots.

    mappings: dotted keys whose value is a mapping itself (``data.columns``).
    Raises ConfigurationError with file and line.
    """
    root = _compose(_read(path), path.name)
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise ConfigurationError(f"{path}: expected keys with values, such as 'seed: 1'")
    entries = list(_walk(root, "", path.name, mappings))
    seen: dict[str, str] = {}
    for entry in entries:
        if entry.key in seen:
            raise ConfigurationError(
                f"{entry.place}: key {entry.key!r} is given twice (first at {seen[entry.key]})"
            )
        seen[entry.key] = entry.place
    return entries


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigurationError(f"{path}: {len(raw)} bytes is too large for a configuration")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not UTF-8 at byte {error.start}") from error


def _compose(text: str, place: str) -> yaml.Node | None:
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        words = error.problem or error.context
        raise ConfigurationError(f"{place}{where}: not valid YAML: {words}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{place}: not valid YAML: {error}") from error
    except RecursionError as error:
        raise ConfigurationError(f"{place}: nested too deeply for a configuration") from error
    finally:
        if loader is not None:
            loader.dispose()


def _walk(
    node: yaml.MappingNode, prefix: str, file: str, mappings: frozenset[str]
) -> Iterator[Entry]:
    for key_node, value_node in node.value:
        name = _key(key_node, file)
        key = f"{prefix}{name}"
        if isinstance(value_node, yaml.MappingNode) and key not in mappings:
            yield from _walk(value_node, f"{key}.", file, mappings)
        else:
            yield Entry(key, _value(value_node, file), _place(file, key_node))


def _value(node: yaml.Node | None, file: str) -> Any:
    if node is None:
        return None
    if node.tag not in _PLAIN_TAGS:
        raise ConfigurationError(f"{_place(file, node)}: tags such as {node.tag!r} are not used")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, file) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = _key(key_node, file)
            if key in mapping:
                raise ConfigurationError(f"{_place(file, key_node)}: key {key!r} is given twice")
            mapping[key] = _value(value_node, file)
        return mapping
    if re.search("[\ud800-\udfff]", node.value):
        raise ConfigurationError(f"{_place(file, node)}: {node.value!r} is not a Unicode text")
    if not isinstance(node, yaml.ScalarNode) or node.style is not None:
        return Quoted(node.value)
    return None if node.value in ("", "~", "null", "Null", "NULL") else str(node.value)


def _key(node: yaml.Node, file: str) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value or not node.value.isprintable():
        raise ConfigurationError(f"{_place(file, node)}: a key must be a word")
    return str(node.value)


def _place(file: str, node: yaml.Node) -> str:
    return f"{file}, line {node.start_mark.line + 1}"
