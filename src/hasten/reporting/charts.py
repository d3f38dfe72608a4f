"""Line charts and scatter plots as inline SVG, styled by the variables of the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from hasten.reporting.blocks import Lines, Point, Scatter, shown

#: colors of the palette; further series repeat them
COLORS = 6
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 220, 50, 12, 12, 38
_MAP_WIDTH, _MAP_HEIGHT = 560, 420
#: points of a line, and of these so many with a dot and a tooltip
_POINTS, _DOTS = 400, 60
_DASHES = ("", "7 3", "2 3", "9 3 2 3", "4 4", "1 2")


def line_chart(chart: Lines) -> str:
    """The chart with axes, grid lines and, for several series, a legend."""
    drawn = [
        (each, [point for point in _thinned(each.points) if math.isfinite(point[1])])
        for each in chart.series
    ]
    points = [point for _, curve in drawn for point in curve]
    if not points:
        return f"<figure><figcaption>{escape(chart.title)}: no values</figcaption></figure>"
    axes = _Axes.around(points, whole_x=True)
    parts = axes.frame(chart.x)
    for each, curve in drawn:
        color, path = each.color % COLORS, " ".join(axes.at(*point) for point in curve)
        dash = f' stroke-dasharray="{_DASHES[color]}"' if _DASHES[color] else ""
        parts.append(f'<polyline class="line c{color}"{dash} points="{path}"/>')
        if len(curve) <= _DOTS:
            parts += [
                f'<circle class="dot c{color}" cx="{axes.x(x)}" cy="{axes.y(y)}" r="2.6"><title>'
                f"{escape(each.name)}, {escape(chart.x)} {x:g}: {shown(y)}</title></circle>"
                for x, y in curve
            ]
    if chart.mark is not None:
        x, text = chart.mark
        end = "end" if axes.x(x) > _WIDTH * 0.6 else "start"
        shift = -4 if end == "end" else 4
        parts.append(
            f'<line class="mark" x1="{axes.x(x)}" x2="{axes.x(x)}" y1="{_TOP}" '
            f'y2="{_HEIGHT - _BOTTOM}"/><text class="soft" x="{axes.x(x) + shift}" '
            f'y="{_HEIGHT - _BOTTOM - 6}" text-anchor="{end}">{escape(text)}</text>'
        )
    last = "; ".join(f"{each.name} ends at {shown(curve[-1][1])}" for each, curve in drawn if curve)
    legend = _legend([(each.name, each.color) for each, _ in drawn], dashes=True)
    return _figure(chart.title, parts, f"{chart.title}: {last}", legend)


def scatter_plot(chart: Scatter) -> str:
    """The points, by group; the pointer shows the label of each."""
    points = [point for _, group, _ in chart.groups for point in group]
    axes = _Axes.around(points, width=_MAP_WIDTH, height=_MAP_HEIGHT)
    parts = axes.frame(chart.x, chart.y, numbers=False)
    for number, (_, group, labels) in enumerate(chart.groups):
        circles = (
            f'<circle cx="{axes.x(x)}" cy="{axes.y(y)}" r="2.8"><title>{escape(label)}</title>'
            "</circle>"
            for (x, y), label in zip(group, labels, strict=True)
        )
        parts.append(f'<g class="points c{number % COLORS}">{"".join(circles)}</g>')
    legend = _legend([(f"{n} ({len(p):,})", i) for i, (n, p, _) in enumerate(chart.groups)])
    summary = f"{chart.title}: {len(points)} points in {len(chart.groups)} groups"
    return _figure(chart.title, parts, summary, legend, width=_MAP_WIDTH, height=_MAP_HEIGHT)


class _Axes:
    """Maps values to places in the picture."""

    def __init__(self, xs: list[float], ys: list[float], width: int, height: int) -> None:
        self.xs, self.ys, self.width, self.height = xs, ys, width, height

    @classmethod
    def around(
        cls, points: Sequence[Point], *, width: int = _WIDTH, height: int = _HEIGHT,
        whole_x: bool = False,
    ) -> _Axes:  # fmt: skip
        """Axes whose ticks cover the points."""
        xs, ys = zip(*points, strict=True)
        return cls(ticks(min(xs), max(xs), whole_x), ticks(min(ys), max(ys)), width, height)

    def x(self, value: float) -> float:
        share = (value - self.xs[0]) / (self.xs[-1] - self.xs[0])
        return round(_LEFT + share * (self.width - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.ys[0]) / (self.ys[-1] - self.ys[0])
        return round(self.height - _BOTTOM - share * (self.height - _TOP - _BOTTOM), 1)

    def at(self, x: float, y: float) -> str:
        return f"{self.x(x)},{self.y(y)}"

    def frame(self, x_name: str, y_name: str = "", *, numbers: bool = True) -> list[str]:
        """Grid lines, ticks and the names of the axes."""
        low, right = self.height - _BOTTOM, self.width - _RIGHT
        parts = [f'<line class="axis" x1="{_LEFT}" x2="{right}" y1="{low}" y2="{low}"/>']
        if numbers:
            parts += [
                f'<line class="rule" x1="{_LEFT}" x2="{right}" y1="{self.y(y)}" '
                f'y2="{self.y(y)}"/><text class="soft" x="{_LEFT - 6}" y="{self.y(y) + 4}" '
                f'text-anchor="end">{_tick(y)}</text>'
                for y in self.ys
            ]
            parts += [
                f'<text class="soft" x="{self.x(x)}" y="{low + 16}" '
                f'text-anchor="middle">{_tick(x)}</text>'
                for x in self.xs
            ]
        else:
            parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_LEFT}" y1="{_TOP}" y2="{low}"/>')
        middle, height = (_LEFT + right) / 2, (low + _TOP) / 2
        parts.append(
            f'<text class="soft" x="{middle}" y="{self.height - 6}" text-anchor="middle">'
            f"{escape(x_name)}</text>"
        )
        if y_name:
            parts.append(
                f'<text class="soft" x="{_LEFT - 12}" y="{height}" text-anchor="middle" '
                f'transform="rotate(-90 {_LEFT - 12} {height})">{escape(y_name)}</text>'
            )
        return parts


def ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """Round numbers at equal distances, four to seven, that cover the range."""
    if high - low <= abs(high) * 1e-9:
        low, high = (low - 1, high + 1) if whole else (low - abs(low) / 2 - 1e-9, high * 1.5 + 1e-9)
    raw = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw * 0.999)
    step = max(1.0, step) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    step = math.ceil(len(points) / _POINTS)
    return points if step <= 1 else [*points[:-1:step], points[-1]]


def _legend(names: Sequence[tuple[str, int]], *, dashes: bool = False) -> str:
    if len(names) < 2:
        return ""
    keys = []
    for name, number in names:
        color = number % COLORS
        if dashes:
            dash = f' stroke-dasharray="{_DASHES[color]}"' if _DASHES[color] else ""
            sample = f'<path class="line c{color}" d="M1 6H23"{dash}/>'
        else:
            sample = f'<circle class="dot c{color}" cx="12" cy="6" r="4.5"/>'
        keys.append(
            f'<li><svg viewBox="0 0 24 12" aria-hidden="true">{sample}</svg>{escape(name)}</li>'
        )
    return f'<ul class="legend">{"".join(keys)}</ul>'


def _figure(
    title: str, parts: Sequence[str], description: str, legend: str, *,
    width: int = _WIDTH, height: int = _HEIGHT,
) -> str:  # fmt: skip
    kind = "chart" if width == _WIDTH else "chart map"
    return (
        f'<figure class="{kind}"><figcaption>{escape(title)}</figcaption>{legend}'
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(description)}">'
        f"<title>{escape(description)}</title>{''.join(parts)}</svg></figure>"
    )
