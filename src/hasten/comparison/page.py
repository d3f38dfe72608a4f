"""One self-contained HTML page about a comparison."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hasten.comparison.result import Comparison
from hasten.comparison.wording import about, explain, table

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --soft: #5f6672; --line: #d5d9df;
  --back: #fff; --margin: #e7f2ea; --equivalent: #1a7f37; --better: #1a7f37; --worse: #c62f2f;
  --open: #6b7280; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --soft: #9aa2ad; --line: #3a4048;
  --back: #16181c; --margin: #1d3325; --equivalent: #4cc26a; --better: #4cc26a; --worse: #ff7b72;
  --open: #9aa2ad; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.soft { color: var(--soft); } .wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums;
  font-size: .9rem; }
th, td { text-align: left; padding: .35rem .8rem .35rem 0; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
svg { width: 100%; max-width: 56rem; height: auto; display: block; }
svg text { fill: var(--text); font-size: 14px; }
svg .soft { fill: var(--soft); font-size: 12px; }
@media (max-width: 40rem) { svg text { font-size: 24px; } svg .soft { font-size: 20px; } }
.equivalent { color: var(--equivalent); stroke: var(--equivalent); }
.better { color: var(--better); stroke: var(--better); }
.worse { color: var(--worse); stroke: var(--worse); }
.open { color: var(--open); stroke: var(--open); }
li strong { stroke: none; }
"""
_WIDTH, _LEFT, _ROW = 640, 20, 54


def page(comparison: Comparison) -> str:
    """The page as text: verdicts, a figure of the intervals, the table, and what it rests on."""
    title = f"{comparison.model} on {comparison.data}"
    verdicts = "\n".join(
        f'<li><strong class="{_class(each.verdict.outcome)}">{escape(each.setting.name)}</strong>: '
        f"{escape(explain(each, comparison))}</li>"
        for each in comparison.alternatives
    )
    notes = "\n".join(
        f"<li>{escape(line)}</li>" for line in (*comparison.notes, *about(comparison))
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Comparison: {escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<h1>Comparison: {escape(title)}</h1>
<ul>
{verdicts}
</ul>
<h2>Difference in {escape(comparison.metric)} from the baseline</h2>
{figure(comparison)}
<p class="soft">Points are estimates, lines 95 % intervals, the band is the margin of
{escape(comparison.margin.text())}. Right of 0 is better than the baseline.</p>
<h2>All settings</h2>
<div class="wide">{_table(comparison)}</div>
<h2>What this rests on</h2>
<ul>
{notes}
</ul>
</body>
</html>
"""


def _class(outcome: str) -> str:
    return outcome if outcome in ("equivalent", "better", "worse") else "open"


def _table(comparison: Comparison) -> str:
    rows = table(comparison)
    head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(row[name])}</td>" for name in rows[0]) + "</tr>\n"
        for row in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}</table>"


def _cell(value: object) -> str:
    return escape(f"{value:.4f}" if isinstance(value, float) else str(value))


def figure(comparison: Comparison) -> str:
    """An SVG with a row for each alternative; bounds are those of all intervals and the margin."""
    margin = comparison.margin.value
    rows = [(e, e.differences[comparison.metric]) for e in comparison.alternatives]
    bounds = [bound for _, difference in rows for bound in difference.interval()]
    reach = 1.1 * max(margin, *(abs(bound) for bound in bounds))
    height = _ROW * len(rows) + 40

    def x(value: float) -> float:
        return round(_LEFT + (value / reach + 1) / 2 * (_WIDTH - 2 * _LEFT), 1)

    parts = [
        f'<rect x="{x(-margin)}" y="0" width="{round(x(margin) - x(-margin), 1)}" '
        f'height="{height - 30}" fill="var(--margin)"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="0" y2="{height - 30}" stroke="var(--line)"/>',
    ]
    for number, (each, difference) in enumerate(rows):
        low, high = difference.interval()
        y = _ROW * number + 38
        parts.append(
            f'<text x="{_LEFT}" y="{y - 16}">{escape(_shortened(each.setting.name))}</text>'
            f'<g class="{_class(each.verdict.outcome)}" stroke-width="3">'
            f'<line x1="{x(low)}" x2="{x(high)}" y1="{y}" y2="{y}"/>'
            f'<circle cx="{x(difference.estimate)}" cy="{y}" r="5" fill="currentColor"/></g>'
        )
    parts += [
        f'<text class="soft" x="{x(tick)}" y="{height - 10}" text-anchor="middle">'
        f"{'+' * (tick > 0)}{escape(comparison.margin.text(tick)) if tick else 0}</text>"
        for tick in _ticks(reach)
    ]
    label = escape(f"Intervals of the differences in {comparison.metric}")
    inner = "\n".join(parts)
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">\n{inner}\n</svg>'


def _shortened(name: str) -> str:
    """A name that fits into the figure on a phone; the list above it has the whole name."""
    return name if len(name) <= 44 else f"{name[:43]}…"


def _ticks(reach: float) -> Sequence[float]:
    """0 and one round number on each side."""
    unit = 10 ** math.floor(math.log10(reach))
    step = next(unit * factor for factor in (5, 2, 1, 0.5) if unit * factor <= 0.9 * reach)
    return (-step, 0.0, step)
