"""Open the trackers of a run, new or resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from hasten.atomic_write import write_atomically
from hasten.config import LoggingOptions
from hasten.errors import HastenError, UsageError
from hasten.runs.run_folder import RunFolder
from hasten.runs.trackers.tracker import Tracker

#: the ids of a run in its trackers, so that a resumed run goes on there
IDS = "trackers.json"


def require_trackers(options: LoggingOptions) -> None:
    """Raise UsageError if the package of a tracker is missing."""
    for name in options.to or ():
        if find_spec(name) is None:
            raise UsageError(f"logging.to={name} needs its package: pip install 'hasten[{name}]'")


def open_trackers(
    options: LoggingOptions, folder: RunFolder, say: Callable[[str], object]
) -> list[Tracker]:
    """Begin or continue the run in each tracker. say: told where. Raises HastenError."""
    require_trackers(options)
    if not options.to:
        return []
    file = folder.path / IDS
    known: dict[str, str] = json.loads(file.read_text()) if file.is_file() else {}
    trackers = []
    for name in options.to:
        try:
            tracker = _open(name, options, folder.path.name, known.get(name))
        except Exception as error:
            raise HastenError(f"logging.to={name}: {error}") from error
        say(f"tracked by {name}: {options.project}/{tracker.id}")
        trackers.append(tracker)
    ids = {tracker.name: tracker.id for tracker in trackers}
    write_atomically(file, (json.dumps({**known, **ids}) + "\n").encode())
    return trackers


def _open(name: str, options: LoggingOptions, run: str, known: str | None) -> Tracker:
    if name == "mlflow":
        from hasten.runs.trackers.mlflow import MLflowTracker  # noqa: PLC0415 - optional

        return MLflowTracker(options.project, run, known)
    from hasten.runs.trackers.wandb import WandbTracker  # noqa: PLC0415 - optional

    return WandbTracker(options.project, run, known)


def artifacts(options: LoggingOptions, folder: Path) -> list[Path]:
    """The files of a run that ``logging.artifacts`` names."""
    names = {
        "none": (),
        "record": ("config.yaml", "metrics.json", "record.json"),
        "model": ("config.yaml", "metrics.json", "record.json", "best"),
    }
    paths = (folder / name for name in names[options.artifacts])
    return [path for path in paths if path.exists()]
