"""The folder of several planned runs, of a comparison or of tuning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hasten.atomic_write import write_atomically
from hasten.errors import RunFolderError, os_errors_as
from hasten.runs.lock import RunLock
from hasten.runs.resuming import flat_options
from hasten.runs.run_folder import RunFolder, run_name

PLAN = "plan.json"


@contextmanager
def open_planned(folder: Path, plan: Mapping[str, Any], kind: str) -> Iterator[None]:
    """Create or open the folder of a plan, locked; its runs are in ``runs/``.

    plan: JSON values; kind: "comparison" or "tuning", for the messages. Raises RunFolderError if
    the folder holds something else, or runs of another plan.
    """
    with os_errors_as(RunFolderError, f"no {kind} can be made", folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / PLAN
        if not file.exists() and any(entry.name != ".lock" for entry in folder.iterdir()):
            raise RunFolderError(
                f"{folder}: not empty and not a {kind}; choose a new or an empty folder"
            )
        with RunLock(folder):
            if any((folder / "runs").glob("*/config.yaml")):
                stored_plan = RunFolder(folder, None).read_json(PLAN)
                _refuse_other_plan(folder, stored_plan, plan, kind)
            else:  # what nothing was trained for may change
                write_atomically(file, (json.dumps(plan, indent=1) + "\n").encode())
            yield


def _refuse_other_plan(
    folder: Path, stored_plan: Mapping[str, Any], now: Mapping[str, Any], kind: str
) -> None:
    before, after = flat_options(stored_plan), flat_options(now)
    changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
    if changed:
        key = changed[0]
        raise RunFolderError(
            f"{folder}: holds another {kind} ({key.removeprefix('settings.')} was "
            f"{before.get(key)}, and is {after.get(key)}): repeat its command to continue it, or "
            "choose another folder"
        )


def new_folder(parent: str, model: str, data: str) -> Path:
    """``PARENT/<date>-<model>-<data>-<n>`` with the first free n."""
    number = 1
    while (path := Path(parent) / run_name(model, data, number)).exists():
        number += 1
    return path
