"""Report sections on the model: groups, beyond-accuracy metrics, examples, the map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hasten.evaluation.grouped_metrics import By
from hasten.reporting.analysis import Analysis
from hasten.reporting.blocks import (
    Block,
    Card,
    Cell,
    Details,
    Facts,
    Grid,
    Scatter,
    Section,
    Table,
    Text,
    shown,
)
from hasten.reporting.overview import Names, Runs

_TITLES: dict[By, str] = {
    "popularity": "By popularity of the item",
    "history": "By history length",
    "relation": "By relation",
    "direction": "By direction",
}
#: rows of a table of relations; the others are folded. Metrics of a table of one run
_ROWS, _METRICS = 15, 3
_MEANING = {
    "coverage": "share of the items that are recommended to anyone",
    "novelty": "mean -log2 of the share of users who know the item; higher: less known",
    "diversity": "mean 1 - cosine of pairs of a list, by the users in common",
    "popularity": "mean number of training users of a recommended item",
    "popularity_lift": "popularity relative to the users' own histories; 0: the same",
    "serendipity": "share of places that are right and not among the most popular items",
}


def groups_section(runs: Runs, names: Names, analyses: Sequence[Analysis]) -> Section | None:
    """Metrics of groups of targets: by popularity and history length, or relation."""
    visible: list[Table] = []
    folded: list[Details] = []
    for by, title in _TITLES.items():
        tables = [each.groups[by].to_pylist() if by in each.groups else [] for each in analyses]
        rows = [[row for row in table if by != "relation" or row["direction"] == "both"]
                for table in tables]  # fmt: skip
        if any(rows):
            table, more = _grouped(title, by, runs, names, rows)
            visible.append(table)
            folded += more
    if not visible:
        return None
    blocks: list[Block] = [Grid(visible), *folded]
    part = "validation" if analyses[0].part == "valid" else "test"
    note = f"On the {part} part. A group has only the targets named; candidates are the same."
    blocks.append(Text(note, soft=True))
    return Section("Where it does well", blocks)


def _grouped(
    title: str, by: By, runs: Runs, names: Names, tables: Sequence[list[dict[str, Any]]]
) -> tuple[Table, list[Details]]:
    """A table with a column for each run, or for each of the first metrics of a single run."""

    def key(row: dict[str, Any]) -> str:
        if by == "relation":
            return str(row.get("relation_name") or row["relation"])
        return str(row["direction"] if by == "direction" else row["group"])

    metrics = runs[0].config.evaluation.metrics
    single = len(runs) == 1
    columns = metrics[:_METRICS] if single else tuple(f"{metrics[0]}, {name}" for name in names)
    rows_by_group = [{key(row): row for row in table} for table in tables]
    targets = {name: row["targets"] for each in rows_by_group for name, row in each.items()}
    rows: list[tuple[Cell, ...]] = []
    for name, count in targets.items():
        values: list[Cell]
        if single:
            values = [rows_by_group[0][name].get(metric) for metric in columns]
        else:
            values = [each.get(name, {}).get(metrics[0]) for each in rows_by_group]
        rows.append((name, count, *values))
    head = (by if by != "history" else "history", "targets", *columns)
    bars = tuple(range(2, len(head)))
    rest = Table(head, rows[_ROWS:], bars)
    more = [Details(f"{title}: {len(rest.rows)} more", [rest])] if rest.rows else []
    return Table(head, rows[:_ROWS], bars, title=title), more


def beyond_section(names: Names, analyses: Sequence[Analysis]) -> Section | None:
    """Coverage, novelty, diversity, popularity and serendipity of the recommended lists."""
    keys = dict.fromkeys(key for each in analyses for key in each.beyond)
    if not keys:
        return None
    meanings = [(key, _MEANING[key.partition("@")[0]]) for key in keys]
    note = "Lists as the protocol ranks them, for the users of the part with events to predict."
    figures: Block
    if len(analyses) == 1:
        figures = Facts([(key, shown(analyses[0].beyond[key])) for key in keys], large=True)
    else:
        rows = [(key, *(each.beyond.get(key) for each in analyses)) for key in keys]
        figures = Table(("figure", *names), rows)
    explained = Details("What these figures mean", [Facts(meanings)])
    return Section("Beyond accuracy", [figures, explained, Text(note, soft=True)])


def examples_section(names: Names, analyses: Sequence[Analysis]) -> Section | None:
    """The same few users or questions for every run."""
    questions = dict.fromkeys((e.title, e.note) for each in analyses for e in each.examples)
    cards = []
    for question in questions:
        answers = [
            next((e.answers for e in each.examples if (e.title, e.note) == question), ())
            for each in analyses
        ]
        columns = ("", *(("",) if len(analyses) == 1 else names))
        rows: list[tuple[Cell, ...]] = []
        for place in range(max(map(len, answers), default=0)):
            cells = [_answer(each[place]) if place < len(each) else "" for each in answers]
            rows.append((str(place + 1), *cells))
        right = [i for i in range(len(rows)) if any(len(a) > i and a[i][1] for a in answers)]
        cards.append(Card(*question, Table(columns, rows, marked=right)))
    if not cards:
        return None
    note = "Drawn at random, not chosen. ✓ marks what was held out and found."
    return Section("Examples", [Text(note, soft=True), Grid(cards)])


def _answer(answer: tuple[str, bool]) -> str:
    name, right = answer
    return f"{name} ✓" if right else name


def map_section(names: Names, analyses: Sequence[Analysis]) -> Section | None:
    """The first two principal components of the vectors of each run."""
    maps = [
        each.map if len(analyses) == 1 else _titled(each.map, name)
        for each, name in zip(analyses, names, strict=True)
        if each.map is not None
    ]
    if not maps:
        return None
    note = (
        "Each point is an item or entity, in the plane of the first two principal components. "
        "What is far apart here is far apart; what is close here may be far apart elsewhere."
    )
    return Section("Embedding map", [Grid(maps), Text(note, soft=True)])


def _titled(chart: Scatter, name: str) -> Scatter:
    return replace(chart, title=f"{name}: {chart.title}")


def notes_section(names: Names, analyses: Sequence[Analysis]) -> Section | None:
    """What could not be measured, and why."""
    notes = [
        Text(note if len(analyses) == 1 else f"{name}: {note}", soft=True)
        for each, name in zip(analyses, names, strict=True)
        for note in each.notes
    ]
    return Section("What is missing", notes) if notes else None
