"""The configuration as YAML, with the description of each key as a comment."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel

if TYPE_CHECKING:
    from hasten.config import RunConfig

# Strings that some YAML parsers read as a number or null.
_AMBIGUOUS = re.compile(r"[-+]?(\d[\d_]*)?\.?\d*(e[-+]?\d+)?|[-+]?\.?(inf|nan)|none", re.IGNORECASE)


class _Dumper(yaml.SafeDumper):
    """Safe YAML without aliases, whose strings every YAML parser reads as strings."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.isprintable():
        style = '"'  # the only style that escapes line breaks and control characters
    elif _AMBIGUOUS.fullmatch(text):
        style = "'"
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def config_text(config: RunConfig, *, given: bool = False) -> str:
    """The configuration as YAML, without ``out``: a repeated run needs its own folder.

    given: only the keys that were given, so that the reader chooses the defaults again.
    """
    values = config.model_dump(mode="json") | {"out": None}
    return "\n".join(_lines(config, values, "", given)) + "\n"


def _lines(
    section: BaseModel, values: dict[str, Any], indent: str, only_given: bool = False
) -> list[str]:
    lines: list[str] = []
    for key, field in type(section).model_fields.items():
        value = values[key]
        inner = getattr(section, key)
        if isinstance(inner, BaseModel) and isinstance(value, dict):
            within = _lines(inner, value, indent + "  ", only_given)
            lines += ["", f"{indent}{key}:", *within] if within else []
            continue
        if only_given and key != "name" and key not in section.model_fields_set:
            continue
        if field.description:
            lines.append(f"{indent}# {field.description}")
        # lists and mappings on one line: [a, b]
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
