"""Update a run with new data, in a new run folder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hasten.comparison.verdict import Margin
from hasten.config import RunConfig
from hasten.config_loading.build import build_config, load_config
from hasten.data.mapped_datasets import in_memory
from hasten.data.store import fingerprint, load_stored
from hasten.data.tables import TRAIN, AnyDataset, Dataset
from hasten.distributed.device import prepare_torch
from hasten.errors import ConfigurationError, UsageError
from hasten.loaded_run import load_run
from hasten.models.interface import Model
from hasten.models.rows import KnownRows
from hasten.models.supports import Supports
from hasten.new_run import create_run
from hasten.registry import load_model
from hasten.run import resume
from hasten.runs.allocator import configure_process
from hasten.runs.checkpoint import read_checkpoint
from hasten.runs.manifest import recorded_hash
from hasten.runs.record import WEIGHTS
from hasten.runs.run_folder import UPDATE, RunFolder
from hasten.runs.summary import Summary
from hasten.updating.check import Check, Checker, UpdateRefused
from hasten.updating.joined import Joined
from hasten.updating.reading import read_and_join
from hasten.updating.start import Start

#: options that an update may change, besides ``data`` and ``evaluation``
_CHANGEABLE = (
    *(
        f"training.{key}"
        for key in (
            "epochs", "lr", "schedule", "min_lr", "warmup_steps", "batch_size", "weight_decay",
            "clip_norm", "patience", "max_time", "average",
        )
    ),
    "checkpoint.every",
    "checkpoint.keep",
)  # fmt: skip
#: defaults: the share of the other users, and of the epochs of the run
REPLAY, EPOCHS = 1.0, 0.2
RULE = "mean of the known ids it occurs with, plus initial noise"


@dataclass(frozen=True)
class Updated:
    """An updated run: its summary, what is in ``update.json``, and the check, if one was made."""

    summary: Summary
    about: dict[str, Any]
    check: Check | None = None


def update_run(
    run: Path,
    new: str | Path | None,
    *,
    table: object | None = None,
    out: Path | None = None,
    replay: float | None = None,
    check: bool = False,
    margin: str = "1%",
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Updated:
    """Train a run further on its data and new ones, in a new run folder; the run stays as it is.

    new: a path, or None with a table. replay: the share of users without new events that are
    trained on again. check: raise UpdateRefused if the validation metric of known users falls by
    more than the margin; the new folder is kept. sets, flags: changed options, as for training.

    Raises:
        HastenError: the data, an option, or the model of the run cannot be updated.
    """
    configure_process()
    limit = Margin.parse(margin)
    folder = RunFolder.open(run, lock=False)
    before = load_config(run / "config.yaml")
    config, data_keys = _configured(run, before, new, out, sets, flags or {})
    kind = load_model(config.model.name)
    trains = Supports.of(kind).gradient_steps
    if not trains:
        _refuse_without_steps(config.model.name, {"--replay": replay is not None, "--check": check})
    old = in_memory(load_stored(folder.data))
    joined = read_and_join(old, config, table, data_keys)
    about = _described(folder, old, joined, config)
    _refuse_replay(replay, kind, joined.dataset)
    prepare_torch(config.threads, config.training.deterministic, torch.device("cpu"))
    files, start, checker = [UPDATE], None, None
    if trains:
        known = KnownRows.of(old, joined.dataset)
        share = (REPLAY if replay is None else replay) if _replays(kind, joined.dataset) else None
        start = Start.of(config, joined, known, read_checkpoint(folder.best), share)
        about |= start.about
        files += start.files
        if check:
            checker = Checker(joined, known, config, limit, start.model)

    def fill(target: RunFolder) -> RunConfig:
        data_section = config.data.model_copy(update={"path": str(target.path)})
        final = config.model_copy(update={"data": data_section})
        target.write_json(UPDATE, about)
        if start is not None:
            start.write(target, final)
        return final

    with create_run(config, joined.dataset, files, fill) as target:
        path = target.path
    summary = resume(path, quiet=quiet)
    if checker is None:
        return Updated(summary, about)
    checked = checker.compare(load_run(path, device="cpu").model)
    about |= {"check": checked.to_json()}
    RunFolder(path, None).write_json(UPDATE, about)
    if not checked.accepted:
        raise UpdateRefused(
            f"{path}: refused: {checked.text()}; keep using {run}, which is unchanged"
        )
    return Updated(summary, about, checked)


def _replays(kind: type[Model], dataset: AnyDataset) -> bool:
    """Whether users can be left out of training."""
    return isinstance(dataset, Dataset) and not kind.scores_need_phases


def _refuse_replay(replay: float | None, kind: type[Model], dataset: AnyDataset) -> None:
    if replay is None or not Supports.of(kind).gradient_steps:
        return
    if not _replays(kind, dataset):
        raise UsageError(
            f"--replay has no effect on {kind.name}, which trains on all of its data: its graph, "
            "or the answers of its queries, must be whole"
        )
    if not 0 <= replay <= 1:
        raise UsageError(f"--replay {replay:g}: must be a share from 0 to 1")


def _configured(
    run: Path,
    before: RunConfig,
    new: str | Path | None,
    out: Path | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
) -> tuple[RunConfig, Collection[str]]:
    """The configuration of the updated run, and the keys of ``data`` that were given.

    Raises ConfigurationError for an option that an update cannot change.
    """
    path = None if new is None else str(new)
    config = build_config(None, path, run / "config.yaml", sets, flags)
    now, then = config.model_dump(), before.model_dump()
    changed = [
        f"{section}.{key}"
        for section in ("model", "training", "checkpoint", "distributed")
        for key, value in now[section].items()
        if value != then[section][key]
    ]
    if wrong := [key for key in changed if key not in _CHANGEABLE]:
        raise ConfigurationError(
            f"{', '.join(wrong)} cannot change in an update; only data.*, evaluation.* and "
            f"{', '.join(_CHANGEABLE)} can: train a new run"
        )
    option_keys = {*(text.partition("=")[0] for text in sets), *flags}
    data_keys = {key.split(".")[1] for key in option_keys if key.startswith("data.")} | {*flags}
    first, last, lr = _trained(run)
    epochs = max(1, round(EPOCHS * first))
    training = config.training
    average = training.average
    if average is not None:  # over the same share of training
        average *= min(
            1.0, (training.epochs if "epochs" in _fields(option_keys) else epochs) / last
        )
    defaults: dict[str, Any] = {"epochs": epochs, "patience": None, "average": average}
    if training.schedule == "inverse-sqrt" and not {"lr", "schedule"} & _fields(option_keys):
        # from the beginning of this schedule, the first steps would undo what the run has learned
        defaults |= {"lr": lr, "schedule": "constant"}
    changes = {key: value for key, value in defaults.items() if key not in _fields(option_keys)}
    training = training.model_copy(update=changes)
    every = min(config.evaluation.every, max(1, training.epochs))
    return config.model_copy(
        update={
            "out": out,
            "recipe": None,
            "init_from": None,
            "devices": 1,
            "data": config.data.model_copy(update={"refit": False}),
            "training": training,
            "evaluation": config.evaluation.model_copy(update={"every": every}),
        }
    ), data_keys


def _fields(named: Collection[str]) -> set[str]:
    """The options of training among these keys and names of flags."""
    return {name.removeprefix("training.") for name in named}


def _trained(run: Path) -> tuple[int, int, float]:
    """Epochs until the best, of the run trained from the beginning and of this one.

    Then the learning rate of this one at its best.
    """
    folder = RunFolder(run, None)
    state = read_checkpoint(folder.best, groups=()).state
    last = max(1, int(state["position"]["epoch"]))
    first = folder.read_json(UPDATE)["base_epochs"] if (run / UPDATE).exists() else last
    return int(first), last, float(state["lr"])


def _refuse_without_steps(model: str, given: Mapping[str, bool]) -> None:
    if named := [name for name, is_given in given.items() if is_given]:
        raise UsageError(
            f"{', '.join(named)} has no effect on {model}, which is fitted again on all data"
        )


def _described(
    folder: RunFolder, old: AnyDataset, joined: Joined, config: RunConfig
) -> dict[str, Any]:
    """The content of ``update.json``: what was updated, with what and how. It names no folders."""
    source = joined.dataset.source
    return {
        "run": folder.path.resolve().name,
        "data": fingerprint(old),
        "weights": recorded_hash(folder.best, WEIGHTS),
        "base_epochs": _trained(folder.path)[0],
        "new": {
            "name": None if source.path is None else Path(source.path).name,
            "files": [{**file, "name": Path(file["name"]).name} for file in source.files],
            "whole": joined.whole,
        },
        **joined.counts,
        "newly_trained": int(((joined.dataset.part == TRAIN) & ~joined.trained).sum()),
        "rule": RULE,
        "epochs": config.training.epochs,
        "lr": config.training.lr,
    }
