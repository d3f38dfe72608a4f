"""Print the result of a run in a few lines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hasten.cli.output import say
from hasten.registry import load_model, reads

if TYPE_CHECKING:
    from hasten.runs.summary import Summary


def announce(summary: Summary) -> None:
    """Print what was trained, its metrics and protocol, and the next command."""
    total = summary.seconds.get("total", math.nan)
    memory = summary.peak_memory_bytes / 2**20
    say(
        f"{summary.model} on {summary.data}: {summary.epochs} epochs, {total:.1f} s, "
        f"{summary.examples_per_second:,.0f} examples/s, peak memory {memory:,.0f} MiB"
    )
    show_metrics(summary.valid, summary.test, summary.protocol)
    say(f"run folder  {summary.run}")
    from hasten.config import TripleOptions  # noqa: PLC0415 - brings pydantic

    if issubclass(reads(load_model(summary.model)), TripleOptions):
        say(f"next        hasten predict {summary.run} --head ENTITY --relation RELATION")
    else:
        say(f"next        hasten recommend {summary.run} --users all --topk 10")


def show_metrics(valid: Mapping[str, Any], test: Mapping[str, Any], protocol: str) -> None:
    """Print the validation and test metrics, and the protocol.

    Metrics of the protocol's other ranking (``ndcg@10/kept``) follow on a line of their own.
    """
    for part, values in (("valid", valid), ("test", test)):
        lines: dict[str, list[str]] = {}
        for name, value in values.items():
            metric, _, other = name.partition("/")
            lines.setdefault(other, []).append(f"{metric} {_number(value)}")
        for other, shown in lines.items():
            history = f"  (history {other})" if other else ""
            say(f"{'' if other else part:<11} " + "  ".join(shown) + history)
    say(f"protocol    {protocol}")


def _number(value: Any) -> str:
    return "none" if value is None else f"{value:.4f}"
