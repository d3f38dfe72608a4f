"""Which options a model supports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Supports:
    """Which options of a run have an effect on a model; the others are refused for it.

    A model declares it as the class attribute ``supports``. Without one, these defaults hold.

    gradient_steps: it is trained by phases; False for a model that ``fit`` completes in one pass.
    recompute: it reads ``training.recompute`` (activation checkpointing).
    precision: ``training.precision`` changes its arithmetic: autocast finds matrix products.
    compile: its phases have a function for ``training.compile``.
    shard_tables: its tables can be sharded over processes: the score is a product with rows of a
    table that its phases read by rows, or all of them in a loss of :mod:`.table_losses`, or of the
    vectors that a graph in parts computes from it.
    """

    gradient_steps: bool = True
    recompute: bool = False
    precision: bool = True
    compile: bool = False
    shard_tables: bool = False

    @classmethod
    def of(cls, model: type[Any]) -> Supports:
        """What a model class declares; nothing of it holds for a model that is fitted."""
        declared: Supports = model.supports
        return declared if declared.gradient_steps else FITTED


#: a model without gradient steps
FITTED = Supports(gradient_steps=False, precision=False)
