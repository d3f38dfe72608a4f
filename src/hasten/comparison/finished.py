"""Read finished runs for a comparison, and check that they can be compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hasten.config import EvaluationOptions, RunConfig
from hasten.config_loading.build import load_config
from hasten.data.store import fingerprint, load_stored
from hasten.data.tables import Dataset, KnowledgeGraph
from hasten.errors import RunFolderError, UsageError
from hasten.runs.lock import lock_holder
from hasten.runs.resuming import all_options
from hasten.runs.run_folder import RunFolder
from hasten.runs.summary import Summary

#: options that name or place a run, or that the data's fingerprint and the protocol tell better
_NOT_SETTINGS = (
    "data.", "distributed.", "checkpoint.", "evaluation.", "logging.", "training.max_time", "out",
    "seed", "recipe",
)  # fmt: skip
#: the seed in the description of a random split
_SEED = re.compile(r"seed \d+")
#: options that decide which users and items are ranked, and how
_PROTOCOL = [n for n in EvaluationOptions.model_fields if n not in ("every", "test", "metrics")]


def read_summary(folder: RunFolder) -> Summary:
    """The result of a finished run. Raises RunFolderError if it is damaged."""
    try:
        summary = Summary.from_json(folder.read_json("metrics.json"))
        float(summary.seconds["train"] + summary.seconds["total"])
    except (LookupError, TypeError, AttributeError) as error:
        file = folder.path / "metrics.json"
        raise RunFolderError(f"{file}: damaged: it does not hold the result of a run") from error
    return summary


@dataclass(frozen=True)
class FinishedRun:
    """A run folder and its result. data, environment: ``data.json`` and ``environment.json``."""

    path: Path
    config: RunConfig
    summary: Summary
    data: dict[str, Any]
    environment: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> FinishedRun:
        """Raises RunFolderError if the run is not finished."""
        folder = RunFolder.open(path, lock=False)
        if not (path / "metrics.json").is_file():
            raise RunFolderError(
                f"{path}: not finished yet: continue it with  hasten resume {path}"
            )
        if holder := lock_holder(path):
            raise RunFolderError(f"{path}: in use by {holder}; compare it when it has ended")
        data = folder.read_json("data.json")
        if not {"fingerprint", "name", "counts"} <= data.keys():
            raise RunFolderError(f"{path / 'data.json'}: damaged: it does not describe the data")
        return cls(
            path,
            load_config(path / "config.yaml"),
            read_summary(folder),
            data,
            folder.read_json("environment.json"),
        )

    @property
    def settings(self) -> dict[str, Any]:
        """The options that can change its result, speed or memory, by dotted key."""
        options = all_options(self.config)
        return {
            key: value
            for key, value in options.items()
            if key.startswith("data.features") or not key.startswith(_NOT_SETTINGS)
        }

    @property
    def machine(self) -> tuple[Any, ...]:
        """What makes times of two runs comparable, besides their settings."""
        cpu = self.environment.get("cpu") or {}
        devices = [each.get("name") for each in self.environment.get("devices") or []]
        return cpu.get("model"), cpu.get("usable"), tuple(devices)

    @property
    def trained_on(self) -> str:
        """The machine and the versions, for a reader."""
        cpu, cores, devices = self.machine
        versions = self.environment.get("versions") or {}
        parts = [cpu, cores and f"{cores} cores", *devices]
        parts += [f"{name} {versions[name]}" for name in ("torch", "hasten") if name in versions]
        return ", ".join(str(part) for part in parts if part)


@dataclass
class Setting:
    """Runs that differ only in their seed. name: what differs from the baseline."""

    name: str
    runs: list[FinishedRun]

    @property
    def seeds(self) -> list[int]:
        return [run.config.seed for run in self.runs]


def group_by_setting(runs: Sequence[FinishedRun]) -> list[Setting]:
    """The settings of these runs; the first run's is the baseline.

    A second run of the same setting and seed is a repetition, and a setting of its own. Raises
    UsageError if there is only one setting.
    """
    groups: list[list[FinishedRun]] = []
    for run in runs:
        for group in groups:
            same = group[0].settings == run.settings
            if same and run.config.seed not in [other.config.seed for other in group]:
                group.append(run)
                break
        else:
            groups.append([run])
    if len(groups) == 1:
        raise UsageError(
            "nothing to compare: these runs differ only in their seeds; name runs of at least two "
            "settings, the baseline first"
        )
    baseline = groups[0][0].settings
    names = ["baseline", *(changed_options(group[0].settings, baseline) for group in groups[1:])]
    return [
        Setting(name if names.count(name) == 1 else f"{name} ({group[0].path})", group)
        for name, group in zip(names, groups, strict=True)
    ]


def changed_options(settings: dict[str, Any], baseline: dict[str, Any]) -> str:
    """``precision=bf16, model.loss=ce``; of another model, its name and what is not its own."""
    changed = {k: v for k, v in settings.items() if k not in baseline or baseline[k] != v}
    if "model.name" in changed:
        shared = {k: v for k, v in changed.items() if not k.startswith("model.") or k in baseline}
        changed = {"model": shared.pop("model.name"), **shared}
    texts = (f"{key.removeprefix('training.')}={shown(value)}" for key, value in changed.items())
    return ", ".join(texts) or "same settings again"


def shown(value: object) -> str:
    """The value of an option as in a configuration file."""
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def refuse_incomparable(runs: Sequence[FinishedRun]) -> None:
    """Raise UsageError, which says why, if runs have other data, parts or protocols."""
    first, *others = runs
    for run in others:
        difference = _other_data(run, first)
        difference = difference or other_protocol(run.config.evaluation, first.config.evaluation)
        if difference is not None:
            raise UsageError(f"{run.path} and {first.path} cannot be compared: {difference}")


def _other_data(run: FinishedRun, first: FinishedRun) -> str | None:
    data, other = run.data, first.data
    if data.get("fingerprint") == other.get("fingerprint"):
        return None
    splits = data.get("split", ""), other.get("split", "")
    if splits[0] == splits[1]:
        if _ranked_content(run) == _ranked_content(first):
            return None
        return f"other data ({_counts(data)}; {_counts(other)})"
    reason = f"other parts of the data ({splits[0]}; {splits[1]})"
    if _SEED.sub("", splits[0]) == _SEED.sub("", splits[1]):
        reason += "; --set data.split_seed=0 gives the runs of all seeds the same parts"
    return reason


def _ranked_content(run: FinishedRun) -> str:
    """A fingerprint of its data without what only some models read: features and facts."""
    dataset = load_stored(run.path / "data")
    if isinstance(dataset, Dataset):
        dataset = replace(
            dataset, modalities=(), facts=None, item_features=None, event_features=None
        )
    elif isinstance(dataset, KnowledgeGraph):
        dataset = replace(dataset, features=())
    return fingerprint(dataset)


def _counts(data: dict[str, Any]) -> str:
    counts = ", ".join(f"{n:,} {k}" for k, n in data["counts"].items() if isinstance(n, int))
    return f"{data['name']}: {counts}"


def other_protocol(mine: EvaluationOptions, other: EvaluationOptions) -> str | None:
    """How the options of two evaluations differ in the protocol; None if they do not."""
    for name in _PROTOCOL:
        values = getattr(mine, name), getattr(other, name)
        if values[0] != values[1]:
            return f"other protocols (evaluation.{name} is {values[0]}, and {values[1]})"
    return None
