"""Read the recipes: ``MODEL/DATASET.yaml``, each with sections such as ``best`` and ``paper``."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from hasten.errors import ConfigurationError, did_you_mean

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """Settings of a model for a data set, and what was measured with them.

    about: the settings in a phrase. configuration: dotted configuration keys with their values as
    text. records: the configuration of ``experiments/results`` that it was measured as. expected:
    mean and standard deviation over the seeds of the metrics on the test set; ``link_auroc`` and
    ``link_ap`` are those of ``hasten check-embeddings``. training_seconds: mean over the seeds.
    """

    model: str
    data: str
    name: str
    about: str
    configuration: dict[str, Any]
    records: str
    seeds: list[int] = field(default_factory=list)
    expected: dict[str, list[float]] = field(default_factory=dict)
    protocol: str = ""
    training_seconds: float = 0.0
    machine: str = ""

    @property
    def key(self) -> str:
        """The value of the option ``recipe``: the data set and the name."""
        return f"{self.data}/{self.name}"

    def command(self, data: str | None = None) -> str:
        """The command line that trains by it. data: the path, if not the name of the data set."""
        return f"hasten train {self.model} {data or self.data} --recipe {self.key}"


@cache
def read_file(path: Path) -> list[Recipe]:
    """The recipes of one file. All scalars of ``configuration`` stay text."""
    text = path.read_text(encoding="utf-8")
    values, as_text = yaml.safe_load(text), yaml.load(text, yaml.BaseLoader)  # noqa: S506 - text only
    return [
        Recipe(
            path.parent.name,
            path.stem,
            name,
            **{**section, "configuration": as_text[name]["configuration"]},
        )
        for name, section in values.items()
    ]


def recipes(model: str | None = None) -> list[Recipe]:
    """All recipes, or those of one model, by model, data set and place in the file.

    Raises ConfigurationError for a model without recipes.
    """
    files = sorted(FOLDER.glob("*/*.yaml"))
    models = {path.parent.name for path in files}
    if model is not None and model not in models:
        raise ConfigurationError(
            f"{model} has no recipes; there are some for {', '.join(sorted(models))}"
            f"{did_you_mean(model, models)}"
        )
    return [r for path in files if model in (None, path.parent.name) for r in read_file(path)]


def find_recipe(model: str, name: str, data: str | None = None) -> Recipe:
    """The recipe ``DATASET/NAME``, or ``NAME`` for the data set that ``data`` names.

    data: a path or a registered name. Raises ConfigurationError with the recipes that exist.
    """
    known = {recipe.key: recipe for recipe in recipes(model)}
    key = name if "/" in name or data is None else f"{dataset_name(data)}/{name}"
    if key in known:
        return known[key]
    raise ConfigurationError(
        f"--recipe {name}: {model} has no recipe {key!r}; there are {', '.join(known)}"
        f"{did_you_mean(key, known)}"
    )


def dataset_name(path: str) -> str:
    """The name of a data set from its path: ``data/FB15k-237.tar.gz`` is ``fb15k-237``."""
    return Path(path).name.partition(".")[0].lower().replace("_", "-")
