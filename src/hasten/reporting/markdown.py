"""Render a report as Markdown, with sparklines for curves."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hasten.console import escape_controls
from hasten.reporting.blocks import (
    Block,
    Card,
    Cell,
    Details,
    Document,
    Facts,
    Figure,
    Grid,
    Lines,
    Scatter,
    Table,
    Text,
    shown,
)

_BLOCKS = "▁▂▃▄▅▆▇█"
#: characters of a sparkline
_SPARK = 24


def to_markdown(document: Document) -> str:
    """The report; maps of embeddings are left out."""
    parts = [f"# {_plain(document.title)}", _plain(document.subtitle)]
    for section in document.sections:
        body = [text for block in section.blocks if (text := _block(block))]
        if body:
            parts += [f"## {_plain(section.title)}", *body]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    match block:
        case Text():
            markdown = _plain(block.text)
        case Facts():
            markdown = "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in block.rows)
        case Table():
            title = f"**{_plain(block.title)}**\n\n" if block.title else ""
            markdown = title + _table(block)
        case Lines():
            markdown = _lines([block])
        case Scatter():
            markdown = ""
        case Figure():
            markdown = _plain(block.text)
        case Card():
            markdown = f"**{_plain(block.title)}**: {_plain(block.note)}\n\n{_table(block.table)}"
        case Details():
            body = [text for each in block.blocks if (text := _block(each))]
            markdown = "\n\n".join([f"### {_plain(block.title)}", *body])
        case Grid():
            charts = [each for each in block.blocks if isinstance(each, Lines)]
            others = [_block(each) for each in block.blocks if not isinstance(each, Lines)]
            markdown = "\n\n".join(text for text in (_lines(charts), *others) if text)
    return markdown


def _table(table: Table) -> str:
    numeric = [any(isinstance(row[i], int | float) for row in table.rows)
               for i in range(len(table.columns))]  # fmt: skip
    lines = [[_plain(name) for name in table.columns]]
    lines += [[_marked(cell, number in table.marked) for cell in row]
              for number, row in enumerate(table.rows)]  # fmt: skip
    widths = [max(3, *(len(line[i]) for line in lines)) for i in range(len(table.columns))]
    rule = ["-" * (width - 1) + ":" if right else "-" * width
            for width, right in zip(widths, numeric, strict=True)]  # fmt: skip
    lines.insert(1, rule)
    return "\n".join(
        "| " + " | ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, numeric, strict=True)
        ) + " |"
        for line in lines
    )  # fmt: skip


def _marked(cell: Cell, marked: bool) -> str:
    text = _plain(shown(cell))
    return f"**{text}**" if marked and text else text


def _lines(charts: Sequence[Lines]) -> str:
    rows: list[tuple[Cell, ...]] = []
    for chart in charts:
        for each in chart.series:
            values = [y for _, y in each.points if not math.isnan(y)]
            if values:
                title = chart.title if len(chart.series) == 1 else f"{chart.title}: {each.name}"
                rows.append((title, sparkline(values), values[0], values[-1]))
    return _table(Table(("curve", "", "first", "last"), rows)) if rows else ""


def sparkline(values: Sequence[float]) -> str:
    """One character a value, or for evenly spaced ones of many."""
    if len(values) > _SPARK:
        values = [values[i * (len(values) - 1) // (_SPARK - 1)] for i in range(_SPARK)]
    low, high = min(values), max(values)
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)


def _plain(text: str) -> str:
    """The text in one line, without the characters that Markdown would read."""
    one_line = escape_controls(re.sub(r"\s+", " ", text)).strip()
    return re.sub(r"([|<>*`\\])", r"\\\1", one_line)
