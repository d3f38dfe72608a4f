"""Run a comparison: train the settings or read finished runs, compare, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from hasten.atomic_write import write_atomically
from hasten.comparison.finished import FinishedRun, group_by_setting, refuse_incomparable
from hasten.comparison.page import page
from hasten.comparison.pairs import compare_settings, compared_metrics
from hasten.comparison.result import Comparison
from hasten.comparison.settings import Plan
from hasten.comparison.training import train_settings
from hasten.comparison.values import unit_values
from hasten.comparison.verdict import Criteria
from hasten.errors import RunFolderError, UsageError, os_errors_as
from hasten.runs.exact_json import to_plain_json
from hasten.runs.planned_folder import PLAN, new_folder, open_planned
from hasten.runs.run_folder import RunFolder

RESULT, PAGE = "result.json", "index.html"


def compare_by_training(
    plan: Plan,
    folder: Path | None,
    *,
    seeds: int | None = None,
    budget: float | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> Comparison:
    """Train the settings of a plan, or continue, and compare them.

    folder: of the comparison; None: a new one, ``comparisons/<date>-<model>-<data>-<n>``. seeds,
    budget: see :func:`hasten.comparison.training.train_settings`. say: told what is trained.
    """
    config = next(iter(plan.settings.values()))
    part, metrics = plan.criteria.part, compared_metrics(config, plan.criteria.metric)
    folder = folder or new_folder("comparisons", config.model.name, config.data.path or "data")
    with open_planned(folder, plan.to_json(), "comparison"):
        settings, seconds = train_settings(
            plan,
            folder,
            seeds,
            budget,
            lambda run: unit_values(run, part, metrics, folder / "values", config.device),
            say,
        )
        comparison = compare_settings(settings, plan.criteria, folder, config.device, seconds)
        write_result(comparison, folder)
    return comparison


def compare_finished(
    runs: Sequence[Path], criteria: Criteria, folder: Path | None = None, device: str = "auto"
) -> Comparison:
    """Compare finished runs; those that differ only in their seeds are one setting.

    runs: the baseline's first. folder: keeps the metrics of users, the result and the page.
    """
    if folder is not None:
        if RunFolder.holds_run(folder) or (folder / PLAN).exists():
            what = "a run" if RunFolder.holds_run(folder) else "a comparison with runs of its own"
            raise RunFolderError(f"{folder}: holds {what}; choose another folder")
        with os_errors_as(RunFolderError, "no comparison can be made", folder):
            folder.mkdir(parents=True, exist_ok=True)
            existing = {entry.name for entry in folder.iterdir()} - {"values"}
        if existing and not {RESULT, PAGE} <= existing:
            raise RunFolderError(
                f"{folder}: not empty and not a comparison (it holds {min(existing)}); choose a "
                "new or an empty folder"
            )
    finished = [FinishedRun.read(run) for run in runs]
    if len(finished) < 2:
        raise UsageError("nothing to compare: name at least two runs, the baseline first")
    refuse_incomparable(finished)
    comparison = compare_settings(group_by_setting(finished), criteria, folder, device)
    if folder is not None:
        write_result(comparison, folder)
    return comparison


def write_result(comparison: Comparison, folder: Path) -> None:
    """Write ``result.json`` and ``index.html``."""
    with os_errors_as(RunFolderError, "cannot be written", folder):
        text = to_plain_json(comparison.to_json(), indent=1) + "\n"
        write_atomically(folder / RESULT, text.encode())
        write_atomically(folder / PAGE, page(comparison).encode())
