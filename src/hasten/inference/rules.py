"""Business rules for recommendations, and the files that define them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hasten.config_loading.yaml_file import Entry, read_entries
from hasten.errors import DataError, UsageError, did_you_mean
from hasten.inference.inputs import ITEM, USER, read_pairs

#: key of a file of rules -> the columns of the file that it names
_FILES = {
    "exclude": (USER, ITEM),
    "groups": (USER, "group"),
    "group_items": ("group", ITEM),
    "categories": (ITEM, "category"),
}
_NUMBERS = ("cap", "diversity")


@dataclass(frozen=True)
class Rules:
    """What recommendations must keep to; ids are texts.

    exclude: items that a user never gets. groups: the group of a user; group_items: the only items
    that its users get (a user without a group gets any). categories: of items; cap: at most so many
    items of a category in a list. diversity: weight of the similarity to the items above, from 0 to
    1 (maximal marginal relevance, Carbonell and Goldstein 1998). Raises UsageError.
    """

    exclude: Mapping[str, Sequence[str]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    group_items: Mapping[str, Sequence[str]] = field(default_factory=dict)
    categories: Mapping[str, str] = field(default_factory=dict)
    cap: int | None = None
    diversity: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.diversity <= 1:
            raise UsageError(f"diversity {self.diversity}: must be between 0 and 1")
        if self.cap is not None and self.cap < 1:
            raise UsageError(f"cap {self.cap}: must be at least 1")
        for given, name, needed in (
            (self.categories, "categories", ("cap", self.cap)),
            (self.cap, "cap", ("categories", self.categories)),
            (self.groups, "groups", ("group_items", self.group_items)),
            (self.group_items, "group_items", ("groups", self.groups)),
        ):
            if given and not needed[1]:
                raise UsageError(f"{name} has no effect without {needed[0]}")
        if missing := sorted({*self.groups.values()} - {*self.group_items}):
            raise UsageError(f"group {missing[0]!r} has no items in group_items")


def read_rules(path: Path) -> Rules:
    """The rules of a YAML file. Its paths are relative to it. Raises HastenError with the line."""
    values: dict[str, Any] = {}
    for entry in read_entries(path, frozenset()):
        if entry.key in _FILES:
            columns = _FILES[entry.key]
            pairs = read_pairs(path.parent / str(entry.value), *columns)
            one = entry.key in ("groups", "categories")
            values[entry.key] = dict(pairs) if one else _lists(pairs)
        elif entry.key in _NUMBERS:
            values[entry.key] = _number(entry)
        else:
            known = (*_FILES, *_NUMBERS)
            raise UsageError(
                f"{entry.place}: unknown rule {entry.key!r} (there are {', '.join(known)})"
                f"{did_you_mean(entry.key, known)}"
            )
    try:
        return replace(Rules(), **values)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _lists(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for name, item in pairs:
        by_name.setdefault(name, []).append(item)
    return by_name


def _number(entry: Entry) -> float:
    try:
        return int(entry.value) if entry.key == "cap" else float(entry.value)
    except (TypeError, ValueError):
        raise DataError(f"{entry.place}: {entry.key}: {entry.value!r} is not a number") from None
