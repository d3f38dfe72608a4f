"""The section that compares several runs: paired differences with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hasten.comparison.finished import FinishedRun, changed_options
from hasten.comparison.page import figure
from hasten.comparison.result import Comparison
from hasten.comparison.run import compare_finished
from hasten.comparison.verdict import Criteria, Margin
from hasten.comparison.wording import about, explain, table
from hasten.errors import HastenError
from hasten.reporting.analysis import Part
from hasten.reporting.blocks import Block, Figure, Section, Table, Text
from hasten.reporting.overview import Names, Runs

#: the largest difference that does not matter, as in ``hasten compare``
MARGIN = "1%"


def comparison_section(runs: Runs, names: Names, part: Part, device: str) -> Section:
    """Compare with the first run; what cannot be compared is said, and why."""
    paths = [run.path for run in runs]
    try:
        comparison = compare_finished(
            paths, Criteria(Margin.parse(MARGIN), None, part), None, device
        )
    except HastenError as error:
        text = f"No intervals: {error}."
        return Section("Side by side", [Text(text), *_changes(runs, names)])
    return Section("Side by side", _blocks(comparison))


def _blocks(comparison: Comparison) -> list[Block]:
    rows = table(comparison)
    columns = list(rows[0])
    lines = [
        f"{each.setting.name}: {explain(each, comparison)}" for each in comparison.alternatives
    ]
    words = f"Differences in {comparison.metric} from the baseline, {comparison.baseline.name}"
    blocks: list[Block] = [Text(f"{line}.") for line in lines]
    blocks.append(Figure(figure(comparison), words))
    blocks.append(Text(
        f"{words}: estimates and 95 % intervals; the band is the margin of "
        f"{comparison.margin.text()}.",
        soft=True,
    ))  # fmt: skip
    blocks.append(Table(columns, [[row[name] for name in columns] for row in rows]))
    blocks += [Text(f"{line[:1].upper()}{line[1:]}.", soft=True)
               for line in (*comparison.notes, *about(comparison))]  # fmt: skip
    return blocks


def _changes(runs: Runs, names: Names) -> Sequence[Block]:
    """What differs from the first run, of those that have ended."""
    ended: dict[Path, str] = {
        run.path: name for run, name in zip(runs, names, strict=True) if run.summary is not None
    }
    finished = [FinishedRun.read(path) for path in ended]
    if len(finished) < 2:
        return ()
    first, *others = finished
    lines = [
        f"{ended[run.path]} differs from {ended[first.path]}: "
        f"{changed_options(run.settings, first.settings)}"
        if run.settings != first.settings
        else f"{ended[run.path]} differs from {ended[first.path]} in its seed at most"
        for run in others
    ]
    return [Text(f"{line}.", soft=True) for line in lines]
