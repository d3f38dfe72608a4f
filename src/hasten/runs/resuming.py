"""Resume a run: which checkpoint to load and which options may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.atomic_write import delete_folder
from hasten.config import RunConfig
from hasten.configuration.build import load_config
from hasten.configuration.effects import refuse_without_effect
from hasten.data.store import fingerprint
from hasten.data.tables import AnyDataset
from hasten.errors import CheckpointError, ConfigurationError, RunFolderError
from hasten.runs.checkpoint import Checkpoint, newest_checkpoint, read_checkpoint
from hasten.runs.run_folder import RunFolder

#: options that may change when a run resumes; all others would make it a different run
RESUMABLE = frozenset(
    {
        "training.epochs",
        "training.patience",
        "training.max_time",
        "training.cleanup_every",
        "checkpoint.every",
        "checkpoint.every_steps",
        "checkpoint.every_minutes",
        "checkpoint.keep",
        "distributed.backend",
        "distributed.master_port",
        "distributed.timeout",
        "distributed.heartbeat",
        "device",
        "devices",
        "threads",
    }
)


def initial_weights(source: Path) -> Checkpoint:
    """The weights that ``init_from`` names: a run folder (its best) or a checkpoint folder."""
    folder = source / "best" if RunFolder.holds_run(source) else source
    return read_checkpoint(folder, groups={"weights"})


def refuse_changed_data(folder: RunFolder, dataset: AnyDataset) -> None:
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
    names = sorted(p.name for p in folder.checkpoints.iterdir() if not p.name.startswith("."))
    if name not in names:
        raise RunFolderError(
            f"{folder.path} has no checkpoint {name!r}; it has best, final, {', '.join(names)}"
        )
    return folder.checkpoints / name


def checkpoint_to_resume(
    folder: RunFolder, name: str | None, warn: Callable[[str], None]
) -> Checkpoint | None:
    """The named checkpoint, later ones deleted; or the newest valid one, None if there is none.

    warn: told of every damaged checkpoint. Raises CheckpointError if all are damaged.
    """
    if name is not None:
        found = read_checkpoint(named_checkpoint(folder, name))
        delete_later_checkpoints(folder, found)
        return found
    damaged: list[str] = []
    newest = newest_checkpoint(folder.checkpoints, damaged.append)
    if newest is None and damaged:
        raise CheckpointError(
            f"{folder.checkpoints}: every checkpoint is damaged ({'; '.join(damaged)}); "
            "name best or final by --checkpoint, or start a new run"
        )
    for message in damaged:
        warn(message)
    return newest


def copy_run(run: Path, out: Path, name: str | None) -> str:
    """Copy a run to a new folder, up to the named checkpoint; the path of the copy."""
    with RunFolder.open(run, lock=True) as source:
        named = None if name is None else read_checkpoint(named_checkpoint(source, name))
        with source.copy_to(out) as copy:
            if named is not None:
                delete_later_checkpoints(copy, named)
            return str(copy.path)


def delete_later_checkpoints(folder: RunFolder, chosen: Checkpoint) -> None:
    """Delete the checkpoints after the one that the run resumes from."""
    step = int(chosen.state["position"]["step"])
    for path in list(folder.checkpoints.iterdir()):
        if path.name.startswith("."):
            continue
        try:
            later = int(read_checkpoint(path, groups=()).state["position"]["step"]) > step
        except CheckpointError:
            later = True
        if later:
            delete_folder(path)


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
    found = type(config)(**{**values, "model": config.model, "data": config.data})
    refuse_without_effect(found, changed=changes)
    return found


def requested_changes(config: RunConfig) -> dict[str, Any]:
    """The options that differ from those of the run in ``config.out``, for ``--resume auto``."""
    assert config.out is not None
    saved = _flat(load_config(config.out / "config.yaml").model_dump())
    wanted = _flat(config.model_dump())
    # the run may have been moved
    return {
        name: value for name, value in wanted.items() if name != "out" and value != saved.get(name)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and name != "columns":
            flat.update(_flat(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
