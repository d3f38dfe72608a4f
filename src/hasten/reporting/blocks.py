"""The parts of a report, independent of its format."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Cell = str | float | int | None
Point = tuple[float, float]


@dataclass(frozen=True)
class Text:
    """A paragraph. soft: a remark, in a weaker color."""

    text: str
    soft: bool = False


@dataclass(frozen=True)
class Facts:
    """Names and values, such as the size of the data. large: the figures at the top."""

    rows: Sequence[tuple[str, str]]
    large: bool = False


@dataclass(frozen=True)
class Table:
    """Rows of cells. bars: the columns whose numbers are also drawn, each column on one scale.

    marked: rows that are emphasized.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    bars: Sequence[int] = ()
    marked: Sequence[int] = ()
    title: str = ""


@dataclass(frozen=True)
class Series:
    """A line: its points, in ascending x. color: its number in the palette."""

    name: str
    points: Sequence[Point]
    color: int = 0


@dataclass(frozen=True)
class Lines:
    """A line chart. mark: an x to emphasize, with its description."""

    title: str
    x: str
    series: Sequence[Series]
    mark: tuple[float, str] | None = None


@dataclass(frozen=True)
class Scatter:
    """Points in two dimensions, in groups: (name, points, labels of the points)."""

    title: str
    x: str
    y: str
    groups: Sequence[tuple[str, Sequence[Point], Sequence[str]]]


@dataclass(frozen=True)
class Figure:
    """An SVG made elsewhere; text: what it shows."""

    svg: str
    text: str


@dataclass(frozen=True)
class Card:
    """An example: a title, a remark and a table."""

    title: str
    note: str
    table: Table


@dataclass(frozen=True)
class Details:
    """Blocks that are folded away."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Grid:
    """Charts, cards or tables side by side, as many as fit."""

    blocks: Sequence[Lines | Scatter | Card | Table]


Block = Text | Facts | Table | Lines | Scatter | Figure | Card | Details | Grid


@dataclass(frozen=True)
class Section:
    """A part of the report with a heading."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Document:
    """A whole report. runs: their names, by color."""

    title: str
    subtitle: str
    sections: Sequence[Section]
    runs: Sequence[str]


def shown(value: Cell) -> str:
    """A cell as text: floats with four decimals, or four digits if they are small or large."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if not isinstance(value, float):
        return f"{value:,}" if isinstance(value, int) else value
    if value == 0 or 1e-3 <= abs(value) < 100:
        return f"{value:.4f}"
    return f"{value:,.1f}" if 100 <= abs(value) < 1e9 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """``12.3 s``, ``4 min 5 s`` or ``2 h 3 min``."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 5400:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count: float) -> str:
    """Bytes in the largest unit of which there is one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            break
        count /= 1024
    return f"{count:,.0f} {unit}" if count >= 100 or unit == "B" else f"{count:.1f} {unit}"
