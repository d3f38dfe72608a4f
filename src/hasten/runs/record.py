"""``record.json``: the settings, machine and results of a run, in one file that can be shared.

It is written whenever a run ends, holds no path and no host name, and lists the other files of the
run with their SHA-256. It also holds a hash of its own content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.errors import CheckpointError, HastenError, RunFolderError, os_errors_as
from hasten.runs.environment import describe_environment
from hasten.runs.exact_json import to_plain_json
from hasten.runs.manifest import hash_of, own_hash, recorded_hash
from hasten.runs.own_files import COPIED
from hasten.runs.resuming import all_options
from hasten.runs.run_folder import CONFIG, UPDATE, RunFolder
from hasten.runs.summary import Summary

RECORD, FORMAT, FORMAT_VERSION = "record.json", "hasten record", 1
WEIGHTS = "weights.safetensors"
#: files that the record lists, besides those of ``data``; ``metrics.json`` if the run is complete
_LISTED = (CONFIG, "environment.json", "data.json", "metrics.jsonl")


def write_record(
    folder: RunFolder,
    summary: Summary,
    config: RunConfig,
    energy: Mapping[str, Any] | None,
    *,
    complete: bool,
) -> None:
    """Write ``record.json``.

    energy: None: the system does not tell. complete: the run reached its end, so ``metrics.json``
    and ``final`` are its own.
    """
    names: tuple[str, ...] = (*_LISTED, "metrics.json") if complete else _LISTED
    updated = folder.read_json(UPDATE) if (folder.path / UPDATE).exists() else None
    with os_errors_as(HastenError, "cannot be read", folder.path):
        stored = (f"data/{path.name}" for path in folder.data.glob("[!.]*") if path.is_file())
        names = (*names, *sorted(filter(COPIED.fullmatch, stored)))
        files = {name: hash_of(folder.path / name) for name in names}
    checkpoints = (folder.best, folder.final) if complete else (folder.best,)
    weights = {p.name: recorded_hash(p, WEIGHTS) for p in checkpoints if p.exists()}
    data, options = folder.read_json("data.json"), all_options(config)
    record = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "ended": summary.stopped_by,
        "model": summary.model,
        "data": {
            "name": summary.data,
            "fingerprint": data["fingerprint"],
            "files": [{**file, "name": Path(file["name"]).name} for file in data.get("files", [])],
        },
        **({} if updated is None else {"update": updated}),
        "protocol": summary.protocol,
        "seed": config.seed,
        "configuration": {key: _without_folders(key, options[key]) for key in options},
        "effective": summary.effective,
        **_versions_and_machine(describe_environment()),
        "epochs": summary.epochs,
        "seconds": summary.seconds,
        "examples_per_second": summary.examples_per_second,
        "peak_memory_bytes": summary.peak_memory_bytes,
        **({} if energy is None else {"energy": energy}),
        "metrics": {"epoch": summary.best_epoch, "valid": summary.valid, "test": summary.test},
        "weights": weights,
        "files": files,
    }
    plain = json.loads(to_plain_json(record))
    folder.write_json(RECORD, {**plain, "sha256": own_hash(plain)})


def _versions_and_machine(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What ``environment.json`` says of both, without variables and paths."""
    cpu = environment["cpu"]
    return {
        "versions": {**environment["versions"], "commit": environment["commits"]["hasten"]},
        "machine": {
            "system": environment["system"],
            "processor": cpu["model"],
            "cores": cpu["count"],
            "usable_cores": cpu["usable"],
            "instructions": cpu["instructions"],
            "memory_bytes": environment["memory_bytes"],
            "devices": environment["devices"],
        },
    }


def remove_record(folder: RunFolder) -> None:
    """Remove the record of a run that goes on."""
    with os_errors_as(HastenError, "cannot be removed", folder.path):
        (folder.path / RECORD).unlink(missing_ok=True)


def read_record(folder: RunFolder) -> tuple[dict[str, Any], list[str]]:
    """The record, and what was changed since it was written: a sentence for each file.

    Raises RunFolderError if there is none, or it is of another version.
    """
    if not (folder.path / RECORD).exists():
        raise RunFolderError(
            f"{folder.path / RECORD}: missing: the run has not ended, or a hasten without records "
            f"made it; complete it with  hasten resume {folder.path}"
        )
    record = folder.read_json(RECORD)
    if record.get("format") != FORMAT or record.get("version") != FORMAT_VERSION:
        raise RunFolderError(
            f"{folder.path / RECORD}: not a record of version {FORMAT_VERSION}, which this hasten "
            "reads"
        )
    changed = []
    if record.pop("sha256", None) != own_hash(record):
        changed.append(f"{RECORD} was edited: it does not match its own sha256")
    files, weights = record.get("files"), record.get("weights")
    if not isinstance(files, dict) or not isinstance(weights, dict):
        raise RunFolderError(f"{folder.path / RECORD}: damaged: it lists no files and weights")
    with os_errors_as(RunFolderError, "cannot be read", folder.path):
        changed += [
            f"{name} {change}" for name in files if (change := _change(folder, name, files))
        ]
    for name, expected in weights.items():
        try:
            actual = recorded_hash(folder.path / name, WEIGHTS, verify=True)
        except CheckpointError as error:
            changed.append(str(error))
        else:
            if actual != expected:
                changed.append(f"{name}/{WEIGHTS} was replaced")
    return record, changed


def _change(folder: RunFolder, name: str, files: Mapping[str, Any]) -> str:
    path = folder.path / name
    if not path.is_file():
        return "is missing"
    return "" if hash_of(path) == files[name] else "was changed since the run ended"


def _without_folders(key: str, value: Any) -> Any:
    """The value of a configuration key; of a path, only its last part."""
    if isinstance(value, str) and "/" in value and (key.startswith("data.") or key == "init_from"):
        return Path(value).name or value
    return value
