"""Terminal output: JSON and tables on stdout, messages and summaries on stderr."""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hasten.console import escape_controls, write_stderr
from hasten.runs.exact_json import to_plain_json

if TYPE_CHECKING:
    from hasten.runs.summary import Summary

#: characters of a cell
_LONGEST = 48
#: smaller numbers are shown in scientific notation instead of as 0.000
_SMALL = 1e-3


def is_rank0() -> bool:
    """Whether this process prints: of several processes, only rank 0 does."""
    return os.environ.get("RANK", "0") == "0"


def say(text: str = "", all_ranks: bool = False) -> None:
    """Print a message on stderr, on rank 0 only.

    all_ranks: print it on every rank, with the rank in front.
    """
    if is_rank0() or all_ranks:
        which = "" if is_rank0() else f"[rank {os.environ['RANK']}] "
        write_stderr(which + escape_controls(text, keep="\n\t"))


def write_json(value: Mapping[str, Any]) -> None:
    """Print one JSON object on one line of stdout; numbers that are not finite become null."""
    if is_rank0():
        escape = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
        sys.stdout.write(to_plain_json(value, ensure_ascii=escape, default=str) + "\n")
        sys.stdout.flush()


def rows(key: str, table: Any, out: object) -> dict[str, Any]:
    """A table as JSON: its rows, or the file that contains them."""
    return {key: table.to_pylist()} if out is None else {"out": out}


def show_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], longest: int = _LONGEST
) -> None:
    """Print rows as a table, with those of the columns that exist."""
    names = [name for name in columns if rows and name in rows[0]]
    lines = [names, *([_cell(row[name], longest) for name in names] for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(names))]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def _cell(value: Any, longest: int) -> str:
    if isinstance(value, float):
        # influences are weighted by the learning rate, so they are small
        return f"{value:.3e}" if 0 < abs(value) < _SMALL else f"{value:.4f}"
    text = "" if value is None else escape_controls(re.sub(r"[\n\t]", " ", str(value)))
    return text if len(text) <= longest else text[: longest - 1] + "…"


def print_summary(summary: Summary) -> None:
    """Print what was trained, its metrics and protocol, the next command, and why it ended."""
    total = summary.seconds.get("total", math.nan)
    memory = summary.peak_memory_bytes / 2**20
    say(
        f"{summary.model} on {summary.data}: {summary.epochs} epochs, {total:.1f} s, "
        f"{summary.examples_per_second:,.0f} examples/s, peak memory {memory:,.0f} MiB"
    )
    show_metrics(summary.valid, summary.test, summary.protocol)
    say(f"run folder  {summary.run}")
    from hasten.config import TripleOptions  # noqa: PLC0415 - brings pydantic
    from hasten.models.interface import NodeEmbedder  # noqa: PLC0415 - brings torch
    from hasten.registry import data_options_of, load_model  # noqa: PLC0415 - as above
    from hasten.runs.ending import ending  # noqa: PLC0415 - as above

    model = load_model(summary.model)
    if issubclass(model, NodeEmbedder):
        say(f"next        hasten embed {summary.run}")
    elif issubclass(data_options_of(model), TripleOptions):
        say(f"next        hasten predict {summary.run} --head ENTITY --relation RELATION")
    else:
        say(f"next        hasten recommend {summary.run} --users all --topk 10")
    for number, line in enumerate(ending(summary)):
        say(f"{'' if number else 'ended':<11} {line}")


def show_metrics(valid: Mapping[str, Any], test: Mapping[str, Any], protocol: str) -> None:
    """Print the validation and test metrics, and the protocol.

    Metrics of the protocol's other ranking (``ndcg@10/kept``) follow on a line of their own.
    """
    for part, values in (("valid", valid), ("test", test)):
        lines: dict[str, list[str]] = {}
        for name, value in values.items():
            metric, _, other = name.partition("/")
            lines.setdefault(other, []).append(f"{metric} {_figure(value)}")
        for other, shown in lines.items():
            history = f"  (history {other})" if other else ""
            say(f"{'' if other else part:<11} " + "  ".join(shown) + history)
    say(f"protocol    {protocol}")


def _figure(value: Any) -> str:
    return "none" if value is None else f"{value:.4f}"
