"""The configuration as YAML with every key's description beside it, and back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

from hasten.errors import RunFolderError

if TYPE_CHECKING:
    from hasten.config import RunConfig

# Texts that a reader with other rules than PyYAML's could take for a number or for nothing.
_AMBIGUOUS = re.compile(r"[-+]?(\d[\d_]*)?\.?\d*(e[-+]?\d+)?|[-+]?\.?(inf|nan)|none", re.IGNORECASE)


class _Dumper(yaml.SafeDumper):
    """Safe YAML without aliases, in which a text stays a text for every reader."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():
        style = '"'  # the only style that escapes line ends and controls
    elif _AMBIGUOUS.fullmatch(text):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def config_text(config: RunConfig) -> str:
    """The whole configuration as YAML, but for ``out``: a repetition needs a folder of its own."""
    values = config.model_dump(mode="json") | {"out": None}
    return "\n".join(_lines(config, values, "")) + "\n"


def config_from_text(content: bytes, path: Path) -> dict[str, Any]:
    """The inverse of :func:`config_text`. Raises RunFolderError naming the file."""
    try:
        values = yaml.safe_load(content.decode())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise RunFolderError(f"{path}: damaged: {error}") from error
    if not isinstance(values, dict):
        raise RunFolderError(f"{path}: damaged: no keys and values")
    return values


def _lines(section: BaseModel, values: dict[str, Any], indent: str) -> list[str]:
    lines: list[str] = []
    for key, field in type(section).model_fields.items():
        value = values[key]
        inner = getattr(section, key)
        if isinstance(inner, BaseModel) and isinstance(value, dict):
            lines += ["", f"{indent}{key}:", *_lines(inner, value, indent + "  ")]
            continue
        if field.description:
            lines.append(f"{indent}# {field.description}")
        # lists and mappings of a key in one line: [a, b]
        text = yaml.dump(
            value,
            Dumper=_Dumper,
            default_flow_style=True,
            allow_unicode=True,
            sort_keys=False,
            width=1 << 20,
        )
        lines.append(f"{indent}{key}: " + text.removesuffix("...\n").rstrip("\n"))
    return lines
