"""The recipe that a tuning ends with: a file for ``--recipe FILE``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from hasten.atomic_write import write_atomically
from hasten.config import RunConfig
from hasten.runs.config_text import config_text

#: options of a section that name files, or limit one run
_OWN = {
    "data": (
        "path", "format", "train", "valid", "test", "names", "separator", "columns", "times",
        "split_seed", "refit", "kg", "links", "features", "entities", "relations",
        "relation_names", "nodes", "edges",
    ),
    "training": ("max_time",),
    "evaluation": ("test", "like"),
}  # fmt: skip


def write_recipe(path: Path, config: RunConfig, about: Sequence[str]) -> None:
    """Write the settings of a run, without its files, its seed and where it ran."""
    sections: dict[str, Any] = {
        name: _only(getattr(config, name), _OWN.get(name, ()))
        for name in ("model", "data", "training", "evaluation")
    }
    for name in ("checkpoint", "logging", "distributed"):
        sections[name] = type(getattr(config, name))()
    config = config.model_copy(update=sections)
    config.model_fields_set.intersection_update(sections)
    lines = [*(f"# {line}" for line in about), config_text(config, given=True)]
    write_atomically(path, "\n".join(lines).encode())


def _only(section: Any, without: Collection[str]) -> Any:
    copy = section.model_copy()
    copy.model_fields_set.difference_update(without)
    return copy
