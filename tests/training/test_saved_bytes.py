"""Memory in bf16: about half the bytes kept for the backward pass, few shapes of products."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.build import build_model, load_data, with_builtin_sample
from hasten.config_loading.build import build_config
from hasten.planning.memory_parts import MemoryParts, SavedActivations
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.training.test_operation_counts import CPU

_HGT = {"model.hidden": 64, "model.width": 64}
#: model, settings, and the largest share of the bytes of fp32 that bf16 may keep, in any phase
CASES = [
    ("sasrec", {}, 0.6),
    ("tisasrec", {}, 0.6),
    ("conve", {}, 0.6),
    ("kgat", {"model.kg_batch_size": 256, "model.layers": [64, 32, 16]}, 0.7),
    ("mmgcn", {}, 0.6),
    ("dragon", {}, 0.7),
    ("hgt", _HGT, 0.6),
]


def kept_bytes(model: str, settings: dict, precision: str, recompute: bool = False) -> list[int]:
    """The bytes that a step of each phase keeps, on the sample of the model."""
    given = {"training.batch_size": 64, "training.recompute": recompute, **settings}
    config = with_builtin_sample(build_config(model, None, None, (), given))
    dataset = load_data(config, None)
    built = build_model(config, dataset, CPU).train()
    found = []
    for number, phase in enumerate(built.phases(dataset, config.training)):
        step = OptimizerStep(
            phase, number, config.training, Precision(precision, CPU), DataParallelRank(), CPU
        )
        phase.start_epoch(0, 0)
        step(phase.plan(0, 0, 0), 1e-3)  # computes graphs and constants
        parts = MemoryParts()
        parts.count([dataset, built, phase, step.optimizer])
        with SavedActivations(parts) as saved:
            step(phase.plan(0, 0, 0), 1e-3)
        found.append(saved.peak)
    return found


@pytest.mark.parametrize(("model", "settings", "most"), CASES)
def test_bf16_keeps_no_second_copies(model, settings, most):
    full, low = (kept_bytes(model, settings, precision) for precision in ("fp32", "bf16"))
    shares = [b / a for a, b in zip(full, low, strict=True)]
    assert max(shares) < most, (full, low)
    again = kept_bytes(model, settings, "bf16", recompute=True)
    assert again[0] <= 0.5 * full[0], (full, again)


class _Products(TorchDispatchMode):
    """Collects the shapes of the matrix products in bf16."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "mm" in str(function):
            tensors = [a for a in args if isinstance(a, torch.Tensor)]
            if tensors[-1].dtype == torch.bfloat16:
                self.shapes.add((str(function), *(t.shape for t in tensors)))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("model", "most"), [("sasrec", 48), ("tisasrec", 48), ("kgat", 48), ("hgt", 64)]
)
def test_products_in_bf16_have_few_shapes_in_all_batches(model, most):
    config = with_builtin_sample(build_config(model, None, None, (), {"training.batch_size": 64}))
    dataset = load_data(config, None)
    built = build_model(config, dataset, CPU).train()
    with _Products() as products:
        for number, phase in enumerate(built.phases(dataset, config.training)):
            step = OptimizerStep(
                phase, number, config.training, Precision("bf16", CPU), DataParallelRank(), CPU
            )
            phase.start_epoch(0, 0)
            for index in range(min(8, phase.steps())):
                step(phase.plan(0, 0, index), 1e-3)
    assert 0 < len(products.shapes) <= most, sorted(products.shapes)
