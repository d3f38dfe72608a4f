"""``plan.json``: what was predicted before a run, and beside it what was measured."""

from __future__ import annotations

from typing import Any

from hasten.runs.run_folder import RunFolder

PLAN = "plan.json"


def read_plan(folder: RunFolder) -> dict[str, Any] | None:
    """What was predicted before the run; None if it was not planned."""
    return folder.read_json(PLAN) if (folder.path / PLAN).exists() else None


def budget_exceeded(plan: dict[str, Any], peak: int) -> str | None:
    """A warning if the peak memory (bytes) exceeded the budget of the plan."""
    if peak <= plan["budget_bytes"]:
        return None
    peak_text, budget = (f"{size / 2**20:,.0f} MiB" for size in (peak, plan["budget_bytes"]))
    return f"peak memory {peak_text} exceeded the budget of {budget}"
