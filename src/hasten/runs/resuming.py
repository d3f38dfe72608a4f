"""Resume a run: which checkpoint to load and which options may change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hasten.atomic_write import delete_folder
from hasten.config import RunConfig
from hasten.config_loading.build import load_config
from hasten.config_loading.effects import refuse_without_effect
from hasten.data.store import fingerprint
from hasten.data.tables import AnyDataset
from hasten.errors import CheckpointError, ConfigurationError, RunFolderError
from hasten.registry import load_model
from hasten.runs.checkpoint import (
    Checkpoint,
    checkpoint_name,
    newest_checkpoint,
    numbered_checkpoints,
    read_checkpoint,
    refuse_link,
    write_checkpoint,
)
from hasten.runs.manifest import STATE
from hasten.runs.run_folder import RunFolder

#: options that may change when a run resumes; all others would make it a different run
RESUMABLE = frozenset(
    {
        "training.epochs",
        "training.patience",
        "training.max_time",
        "training.cleanup_every",
        "training.shard_tables",
        "checkpoint.every",
        "checkpoint.every_steps",
        "checkpoint.every_minutes",
        "checkpoint.keep",
        "logging.to",
        "logging.project",
        "logging.artifacts",
        "distributed.backend",
        "distributed.master_port",
        "distributed.timeout",
        "distributed.heartbeat",
        "device",
        "devices",
        "threads",
    }
)


def read_initial_checkpoint(source: Path) -> Checkpoint:
    """The weights that ``init_from`` names: a run folder (its best) or a checkpoint folder."""
    folder = source / "best" if RunFolder.holds_run(source) else source
    return read_checkpoint(folder, groups={"weights"})


def refuse_changed_stored_data(folder: RunFolder, dataset: AnyDataset) -> None:
    """Raise RunFolderError if the data are not those that the run started with."""
    recorded = folder.read_json("data.json").get("fingerprint")
    if recorded is None:
        raise RunFolderError(
            f"{folder.path / 'data.json'}: damaged: no fingerprint of the data; restore it, or "
            "start a new run with --init-from"
        )
    if fingerprint(dataset) != recorded:
        raise RunFolderError(
            f"{folder.data}: the data of the run have changed since it started (fingerprint in "
            "data.json); restore them, or start a new run with --init-from"
        )


def named_checkpoint(folder: RunFolder, name: str) -> Path:
    """The folder of ``best``, ``final`` or a checkpoint. Raises RunFolderError for other names."""
    if name in ("best", "final"):
        return folder.path / name
    numbered = [path.name for path in reversed(numbered_checkpoints(folder.checkpoints))]
    if name not in numbered:
        keep = load_config(folder.path / "config.yaml").checkpoint.keep
        shown = [path.name for path in (folder.best, folder.final) if path.exists()] + numbered
        raise RunFolderError(
            f"{folder.path} has no checkpoint {name!r}; it has {', '.join(shown)} (checkpoint."
            f"keep={keep}: the {keep} newest are kept, besides best and final; train with --set "
            "checkpoint.keep=N to keep more)"
        )
    return folder.checkpoints / name


def checkpoint_to_resume(
    folder: RunFolder,
    name: str | None,
    warn: Callable[[str], None],
    by_rows: Collection[tuple[str, str]] = (),
) -> Checkpoint | None:
    """The named checkpoint, later ones deleted; or the newest valid one, None if there is none.

    ``best`` becomes the best checkpoint up to there. warn: told of every damaged checkpoint, and
    if that best one is lost. by_rows: as of :func:`.read_checkpoint`. Raises CheckpointError if all
    are damaged, ConfigurationError if the configuration is not that of the checkpoint.
    """
    for written in (folder.best, folder.final):
        refuse_link(written)
    damaged: list[str] = []
    if name is not None:
        path = named_checkpoint(folder, name)
        checkpoint: Checkpoint | None = read_checkpoint(path, by_rows=by_rows)
    else:
        checkpoint = newest_checkpoint(folder.checkpoints, damaged.append, by_rows)
    if checkpoint is None and damaged:
        raise CheckpointError(
            f"{folder.checkpoints}: every checkpoint is damaged ({'; '.join(damaged)}); "
            "name best or final by --checkpoint, or start a new run"
        )
    for message in damaged:
        warn(message)
    if checkpoint is not None:
        position_of(checkpoint)  # raises if it is damaged
        _refuse_changed_config(folder, checkpoint)
        if name is not None:
            delete_later_checkpoints(folder, checkpoint)
        _restore_best(folder, checkpoint, warn)
    return checkpoint


def copy_run(run: Path, out: Path, name: str | None) -> str:
    """Copy a run to a new folder, up to the named checkpoint; the path of the copy."""
    with RunFolder.open(run, lock=True) as source:
        checkpoint = None if name is None else read_checkpoint(named_checkpoint(source, name))
        with source.copy_to(out) as copy:
            if checkpoint is not None:
                delete_later_checkpoints(copy, checkpoint)
            return str(copy.path)


def delete_later_checkpoints(folder: RunFolder, chosen: Checkpoint) -> None:
    """Delete the checkpoints, ``best`` and ``final`` too, after the one that the run resumes from.

    Raises CheckpointError if the position in ``state.json`` of the chosen one is damaged.
    """
    step = position_of(chosen)["step"]
    written = [path for path in (folder.best, folder.final) if path.exists()]
    for path in (*written, *numbered_checkpoints(folder.checkpoints)):
        try:
            later = position_of(read_checkpoint(path, groups=()))["step"] > step
        except CheckpointError:
            later = True
        if later:
            delete_folder(path)
            (folder.path / "metrics.json").unlink(missing_ok=True)  # of the deleted weights


def position_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The position in a checkpoint's state. Raises CheckpointError if it is damaged."""
    return state_part(checkpoint, "position", "epoch", "step", "step_of_epoch")


def last_kept_step(checkpoint: Checkpoint) -> int:
    """The last step whose records a run keeps that resumes from this checkpoint.

    Records are written at the end of an epoch: within an epoch, none of the last step is kept.
    """
    position = position_of(checkpoint)
    return int(position["step"]) - (int(position["step_of_epoch"]) > 0)


def state_part(checkpoint: Checkpoint, name: str, *keys: str) -> dict[str, Any]:
    """A part of a checkpoint's state. Raises CheckpointError if it lacks one of the keys."""
    part = checkpoint.state.get(name)
    if not isinstance(part, dict) or not all(key in part for key in keys):
        raise CheckpointError(f"{checkpoint.path / STATE}: damaged: no {name} of a training run")
    return part


def _refuse_changed_config(folder: RunFolder, checkpoint: Checkpoint) -> None:
    """Raise ConfigurationError if config.yaml is not what the checkpoint was trained with."""
    file = folder.path / "config.yaml"
    now, recorded = fixed_options(load_config(file)), checkpoint.state.get("config", {})
    changed = [
        f"{name} is {now[name]}, and was {value}"
        for name, value in recorded.items()
        if name in now and now[name] != value
    ]
    if changed:
        raise ConfigurationError(
            f"{file}: changed since {checkpoint.path.name} was saved: {'; '.join(changed)}. Undo "
            "the change to resume, or start a new run (--init-from takes the weights of this one)"
        )


def fixed_options(config: RunConfig) -> dict[str, Any]:
    """The options that a run keeps when it resumes, as JSON values by dotted key."""
    return {name: value for name, value in all_options(config).items() if name not in RESUMABLE}


def all_options(config: RunConfig) -> dict[str, Any]:
    """The options of a run but ``out``, as JSON values by dotted key."""
    return flat_options(config.model_dump(mode="json", exclude={"out"}))


def _restore_best(folder: RunFolder, chosen: Checkpoint, warn: Callable[[str], None]) -> None:
    """Make ``best`` the best checkpoint up to the chosen one, or forget that there was one.

    It differs after later checkpoints were deleted, and if a run was killed between the evaluation
    and the checkpoint of an epoch.
    """
    selection = state_part(chosen, "selection", "best", "best_epoch")
    if selection["best"] is None:
        return
    epoch = selection["best_epoch"]
    for path in (folder.best, chosen.path, folder.checkpoints / checkpoint_name(epoch, 0)):
        with suppress(CheckpointError):
            position = position_of(read_checkpoint(path, groups=()))
            if (position["epoch"], position["step_of_epoch"]) == (epoch, 0):
                if path != folder.best:
                    checkpoint = read_checkpoint(path)
                    write_checkpoint(folder.best, checkpoint.tensors, checkpoint.state)
                return
    selection["best"] = None
    if not folder.best.exists():  # else it is of an epoch that is trained again
        warn(
            f"{folder.path}: the weights of the best epoch so far, {epoch}, are no longer kept; "
            "best is chosen among the epochs from here on"
        )


def with_changes(
    config: RunConfig,
    changes: Mapping[str, Any],
    permitted: Callable[[str], bool] = RESUMABLE.__contains__,
) -> RunConfig:
    """The configuration with dotted keys replaced. Raises ConfigurationError for other keys."""
    values = config.model_dump()
    for name, value in changes.items():
        if not permitted(name):
            raise ConfigurationError(
                f"{name} cannot change for a run that exists; only "
                f"{', '.join(sorted(RESUMABLE))} can when it resumes, evaluation.* when it is "
                "evaluated; start a new run for the rest (--init-from takes its weights)"
            )
        section, _, field = name.rpartition(".")
        (values[section] if section else values)[field] = value
    changed = type(config)(**{**values, "model": config.model, "data": config.data})
    refuse_without_effect(changed, changed=changes)
    return changed


def requested_changes(given: RunConfig, resolved: RunConfig, run: Path) -> dict[str, Any]:
    """The options that differ from those of the run, for ``--resume auto``.

    A default that followed from the size of the data keeps its value in the run.
    """
    unchanged = {
        *load_model(given.model.name).defaults_from_data,
        "evaluation.users",
        "evaluation.triples",
    }
    saved = flat_options(load_config(run / "config.yaml").model_dump())
    requested = flat_options(resolved.model_dump())
    # the run may have been moved
    return {
        name: value
        for name, value in requested.items()
        if name != "out"
        and value != saved.get(name)
        and (name not in unchanged or given.gives(name))
    }


def flat_options(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested sections by dotted key."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and name != "columns":
            flat.update(flat_options(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
