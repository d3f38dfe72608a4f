"""Results that are tables: as a DataFrame, and their representation in notebooks."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hasten.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd

#: rows of a table, and characters of a cell, in a notebook
_ROWS, _CHARACTERS = 20, 80


class TableResult(ABC):
    """A result that is a table: recommendations, predictions, vectors, similar items."""

    @abstractmethod
    def to_table(self) -> pa.Table:
        """The rows as an Arrow table."""

    def to_frame(self) -> pd.DataFrame:
        """The table as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        if find_spec("pandas") is None:
            raise UsageError("to_frame() needs pandas: pip install pandas")
        frame: pd.DataFrame = self.to_table().to_pandas()
        return frame

    def __repr__(self) -> str:
        table = self.to_table()
        columns = ", ".join(table.column_names)
        return f"<{type(self).__name__}: {len(table):,} rows of {columns}; see .to_frame()>"

    def _repr_html_(self) -> str:
        table = self.to_table()
        shown = html_table(table.column_names, (row.values() for row in table[:_ROWS].to_pylist()))
        hidden = len(table) - _ROWS
        return shown + (f"<p>{hidden:,} more rows</p>" if hidden > 0 else "")


def html_table(header: Sequence[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in HTML."""

    def line(cells: Iterable[Any], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_cell(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(header, 'th')}</thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    text = f"{value:.4f}" if isinstance(value, float) else "" if value is None else str(value)
    return html.escape(text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…")
