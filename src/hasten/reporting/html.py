"""Render a report as one self-contained HTML page, without scripts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from html import escape

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
from hasten.reporting.charts import COLORS, line_chart, scatter_plot
from hasten.reporting.style import STYLE

#: nothing is loaded, not even by a mistake of ours
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

#: tables with more columns are given more room
_COLUMNS = 5


def to_html(document: Document) -> str:
    """The page as text."""
    anchors = [re.sub(r"[^a-z0-9]+", "-", each.title.lower()) for each in document.sections]
    links = "".join(
        f'<a href="#{anchor}">{escape(each.title)}</a>'
        for each, anchor in zip(document.sections, anchors, strict=True)
    )
    body = "\n".join(
        f'<section id="{anchor}"><h2>{escape(each.title)}</h2>\n'
        f"{''.join(map(_block, each.blocks))}</section>"
        for each, anchor in zip(document.sections, anchors, strict=True)
    )
    keys = "".join(
        f'<li><span class="key c{number % COLORS}"></span>{escape(name)}</li>'
        for number, name in enumerate(document.runs)
    )
    legend = f'<ul class="runs">{keys}</ul>' if len(document.runs) > 1 else ""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<link rel="icon" href="data:,">
<title>{escape(document.title)}</title>
<style>{STYLE}</style>
</head>
<body>
<header><h1>{escape(document.title)}</h1>
<p class="soft">{escape(document.subtitle)}</p>{legend}
<nav aria-label="Sections">{links}</nav></header>
<main>
{body}
</main>
</body>
</html>
"""


def _block(block: Block) -> str:
    match block:
        case Text():
            kind = ' class="soft"' if block.soft else ""
            html = f"<p{kind}>{escape(block.text)}</p>\n"
        case Facts():
            html = _facts(block)
        case Table():
            html = _table(block)
        case Lines():
            html = line_chart(block)
        case Scatter():
            html = scatter_plot(block)
        case Figure():
            html = f'<div class="figure">{block.svg}</div>\n'
        case Card():
            note = f'<p class="soft">{escape(block.note)}</p>' if block.note else ""
            title = escape(block.title)
            html = f'<article class="card"><h3>{title}</h3>{note}{_table(block.table)}</article>\n'
        case Details():
            inner = "".join(map(_block, block.blocks))
            html = f"<details><summary>{escape(block.title)}</summary>{inner}</details>\n"
        case Grid():
            kind = "grid broad" if any(map(_broad, block.blocks)) else "grid"
            html = f'<div class="{kind}">{"".join(map(_block, block.blocks))}</div>\n'
    return html


def _broad(block: Block) -> bool:
    """Whether it has many columns."""
    table = block.table if isinstance(block, Card) else block
    return isinstance(table, Table) and len(table.columns) > _COLUMNS


def _facts(block: Facts) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in block.rows
    )
    return f'<dl class="{"figures" if block.large else "facts"}">{rows}</dl>\n'


def _table(table: Table) -> str:
    numeric = [
        any(isinstance(row[i], int | float) for row in table.rows)
        for i in range(len(table.columns))
    ]
    scale = {column: _largest(row[column] for row in table.rows) for column in table.bars}
    head = "".join(
        f"<th scope=col{' class=number' if right else ''}>{escape(name)}</th>"
        for name, right in zip(table.columns, numeric, strict=True)
    )
    head = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    name = escape(table.title or "Table")
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    lines = []
    for place, row in enumerate(table.rows):
        cells = [f'<th scope="row">{escape(shown(row[0]))}</th>' if not numeric[0]
                 else f"<td class=number>{escape(shown(row[0]))}</td>"]  # fmt: skip
        for number, cell in enumerate(row[1:], 1):
            text = escape(shown(cell))
            if scale.get(number) and isinstance(cell, int | float) and not math.isnan(cell):
                width = 100 * abs(cell) / scale[number]
                cells.append(
                    f'<td class="number bar"><span>{text}</span>'
                    f'<i style="width:{width:.1f}%"></i></td>'
                )
            else:
                cells.append(f"<td{' class=number' if numeric[number] else ''}>{text}</td>")
        marked = " class=marked" if place in table.marked else ""
        lines.append(f"<tr{marked}>{''.join(cells)}</tr>")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{name}">'
        f"<table>{caption}{head}\n<tbody>{chr(10).join(lines)}</tbody></table></div>\n"
    )


def _largest(cells: Iterable[Cell]) -> float:
    return max((abs(cell) for cell in cells if isinstance(cell, int | float)), default=0)
