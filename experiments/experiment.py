"""One experiment: what ``hasten train`` is given, and when two of them are the same run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.config import OnlyWith, TripleOptions
from hasten.config_loading.build import build_config, flag_entries, set_entries
from hasten.errors import ConfigurationError
from hasten.recipes.load import find_recipe
from hasten.registry import load_model


@dataclass(frozen=True)
class Experiment:
    """One run: ``options`` go to ``hasten train`` as they are; ``data`` is of experiments.data.

    configuration: the name of the settings, which several seeds share. question: what the
    configurations of this model on these data are compared for; of each question, validation
    selects one configuration, and its test figures alone are computed.
    also: options of ``hasten evaluate``, one text for each further protocol;
    embeddings: run ``hasten check-embeddings`` too.
    """

    configuration: str
    model: str
    data: str
    options: tuple[str, ...]
    seed: int
    question: str = "settings"
    also: tuple[str, ...] = ()
    embeddings: bool = False

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.seed}"

    @property
    def group(self) -> str:
        """The configurations that are compared with each other on validation."""
        return f"{self.model}-{self.data}-{self.question}"

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the run: a changed experiment is another run."""
        return _fingerprint(self.model, self.data, self.options, self.seed)


def seeds(
    configuration: str,
    model: str,
    data: str,
    options: str,
    question: str = "settings",
    *,
    count: int = 3,
    also: tuple[str, ...] = (),
    embeddings: bool = False,
) -> tuple[Experiment, ...]:
    """The same experiment with seeds 0, 1, ..."""
    given = tuple(options.split())
    return tuple(
        Experiment(configuration, model, data, given, seed, question, also, embeddings)
        for seed in range(count)
    )


def by_recipe(
    model: str, data: str, name: str = "best", question: str = "settings", **rest: Any
) -> tuple[Experiment, ...]:
    """The experiment with the settings of a recipe, named as the recipe names its records."""
    recipe = find_recipe(model, f"{data}/{name}")
    return seeds(recipe.records, model, data, f"--recipe {recipe.key}", question, **rest)


def configuration_keys(model: str, options: Sequence[str]) -> dict[str, str]:
    """Options of ``hasten train`` as dotted keys with their values as text, recipes expanded."""
    flags: dict[str, str] = {}
    sets: list[str] = []
    name = ""
    for text in options:
        if text.startswith("--"):
            name = text.removeprefix("--").replace("-", "_")
            flags[name] = "true"  # unless a value follows
        elif name == "set":
            sets.append(text)
        else:
            flags[name] = text
    flags.pop("set", None)
    entries = [*set_entries(sets), *flag_entries(flags, None)]
    keys = {entry.key: _text(entry.value) for entry in entries}
    recipe = keys.pop("recipe", None)
    usual = {} if recipe is None else find_recipe(model, recipe).configuration
    return {key: _text(value) for key, value in usual.items()} | keys


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def _fingerprint(model: str, data: str, options: Sequence[str], seed: int) -> str:
    """A digest of what a run is given, whatever the order and the spelling of its options."""
    settings = sorted(configuration_keys(model, options).items())
    text = json.dumps([model, data, settings, seed])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def describes(record: Mapping[str, Any], experiment: Experiment) -> bool:
    """Whether the record is one of this experiment as it is defined now.

    Its options are the same, or the configuration that they resolve to is.
    """
    if (record["model"], record["data"]) != (experiment.model, experiment.data):
        return False
    given = (record[name] for name in ("model", "data", "options", "seed"))
    return _fingerprint(*given) == experiment.fingerprint or not differing_keys(record, experiment)


def differing_keys(record: Mapping[str, Any], experiment: Experiment) -> dict[str, tuple[Any, Any]]:
    """Keys whose resolved values differ: key -> (the record's, the experiment's).

    Keys that did not exist when the record was written are left out, keys without effect, defaults
    that follow from the size of the data, and keys of the machine: where the run went, its
    checkpoints and its threads.
    """
    keys = configuration_keys(experiment.model, experiment.options)
    try:
        config = build_config(experiment.model, experiment.data, flags=keys)
    except ConfigurationError as error:
        return {"": (None, str(error))}
    values = json.loads(json.dumps(config.model_dump(), default=str)) | {"seed": experiment.seed}
    ran, now = dict(_flat(record["config"])), dict(_flat(values))
    skipped = {"out", "recipe", "evaluation.test", "threads"}
    if experiment.model == "degree":  # it is evaluated once
        skipped.add("evaluation.every")
    if isinstance(config.data, TripleOptions):
        skipped.add("evaluation.mask_history")
    if str(record["protocol"]).startswith("given"):
        skipped.add("data.ratio_order")
    if "--recipe" not in experiment.options:  # a recipe is complete, other runs depend on the data
        skipped.update(set(load_model(experiment.model).defaults_from_data) - keys.keys())
    for name, field in type(config.model).model_fields.items():
        conditions = (each for each in field.metadata if isinstance(each, OnlyWith))
        if not all(each.holds(getattr(config.model, each.option)) for each in conditions):
            skipped.add(f"model.{name}")
    skipped.update(key for key in now if key.startswith("checkpoint."))
    shared = (now.keys() & ran.keys()) - skipped
    return {key: (ran[key], now[key]) for key in sorted(shared) if ran[key] != now[key]}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict) and value and not prefix:
            yield from _flat(value, f"{name}.")
        else:
            yield prefix + name, value
