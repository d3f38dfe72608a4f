"""hasten: fast training of recommender and knowledge-graph models on PyTorch.

``hasten.train(model="sasrec", data="events.csv")`` returns a ``hasten.Result``; the
modules under ``hasten.models`` and ``hasten.ops`` are ordinary PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hasten.runs import __version__

if TYPE_CHECKING:
    from hasten.api import Result, Run, load, plan, train, update
    from hasten.comparison.compare import compare
    from hasten.errors import HastenError
    from hasten.integrations.node_embeddings import generate_hgt_embeddings_batched
    from hasten.reporting.report import report
    from hasten.tuning.tune import tune

__all__ = [
    "HastenError",
    "Result",
    "Run",
    "__version__",
    "compare",
    "generate_hgt_embeddings_batched",
    "load",
    "plan",
    "report",
    "train",
    "tune",
    "update",
]


#: names of ``hasten.api``
_API = ("Result", "Run", "load", "plan", "report", "train", "update")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    """Import torch only when an attribute that needs it is accessed."""
    if name in (*_API, "compare", "tune"):
        from hasten.runs.allocator import configure_process  # noqa: PLC0415 - before torch

        configure_process()
    if name == "compare":
        from hasten.comparison.compare import compare  # noqa: PLC0415

        return compare
    if name == "tune":
        from hasten.tuning.tune import tune  # noqa: PLC0415

        return tune
    if name in _API:
        from hasten import api  # noqa: PLC0415

        return getattr(api, name)
    if name == "generate_hgt_embeddings_batched":
        from hasten.integrations import node_embeddings  # noqa: PLC0415

        return node_embeddings.generate_hgt_embeddings_batched
    if name == "HastenError":
        from hasten.errors import HastenError  # noqa: PLC0415

        return HastenError
    raise AttributeError(f"module 'hasten' has no attribute {name!r}")
