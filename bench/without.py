"""Hasten's command line with one of its ways of being fast taken away, for on/off figures.

    python -m bench.without dropout train sasrec ...

What is taken away is replaced by what one would write without it; nothing else changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray


def fused_adam() -> None:
    """Adam as a loop over the parameters."""
    import torch

    from hasten.training import gradient_accumulation
    from hasten.training.optimizers.adam import PhaseAdam

    class Loop(PhaseAdam):
        """Ignores what only the fused kernel supports; the norm is still computed."""

        def __init__(self, parameters: Sequence[torch.Tensor], options: Any) -> None:
            super().__init__(parameters, options)
            self.param_groups[0] |= {"fused": False, "foreach": False}

        def step(self, closure: Any = None) -> Any:
            self.grad_scale = self.found_inf = None
            return super().step(closure)

    def plain(phase: Any, options: Any, **_: bool) -> PhaseAdam:
        return Loop(list(phase.parameters()), options)

    _replace(gradient_accumulation, "make_optimizer", plain)


def dropout() -> None:
    """Torch's own dropout everywhere."""
    import torch

    from hasten.models.sequential import sasrec, self_attention
    from hasten.ops.attention import causal_attention

    def keep_bytes(count: int, probability: float) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.ones(count), probability) > 0

    for module in (sasrec, self_attention):
        _replace(module, "dropout", torch.nn.functional.dropout)
    _replace(causal_attention, "keep_bytes", keep_bytes)


def packing() -> None:
    """Every sequence padded to the longest of its batch."""
    from hasten.objectives import sequence_batch
    from hasten.ops.buckets import Bucket

    def one(lengths: NDArray[np.int64], _slack: int) -> list[Bucket]:
        return [Bucket(0, len(lengths), int(lengths[0]))]

    _replace(sequence_batch, "make_buckets", one)


def chunked_loss() -> None:
    """All logits of a batch at once, as plain autograd computes them."""
    from hasten.ops.losses import table_losses
    from hasten.ops.losses.catalog_loss import catalog_cross_entropy_reference

    _replace(table_losses, "catalog_cross_entropy", catalog_cross_entropy_reference)


def _replace(module: ModuleType, name: str, value: Any) -> None:
    """Put another function in the place of the one that the module uses by this name."""
    if not hasattr(module, name):
        raise SystemExit(f"{module.__name__} has no {name} any more: adapt bench/without.py")
    setattr(module, name, value)


TAKE_AWAY: dict[str, Callable[[], None]] = {
    "fused-adam": fused_adam,
    "dropout": dropout,
    "packing": packing,
    "chunked-loss": chunked_loss,
}


def main() -> None:
    name, *arguments = sys.argv[1:]
    from hasten.runs.allocator import configure_process

    configure_process()
    TAKE_AWAY[name]()
    sys.argv = ["hasten", *arguments]
    from hasten.cli.main import main as hasten

    raise SystemExit(hasten())


if __name__ == "__main__":
    main()
