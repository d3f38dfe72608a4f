"""What a step of ConvE holds at most: less with recompute, and no more for more chunks."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.conve_options import ConvEOptions
from hasten.objectives.completion import CompletionMicroBatch
from hasten.ops.losses.one_to_many_loss import one_to_many_loss


class Live(TorchDispatchMode):
    """Bytes of the tensors made within that are alive, and the most there ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        old = {tensor.untyped_storage()._cdata for tensor in given}
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                name, size = storage._cdata, storage.nbytes()
                if name not in self.known | old:
                    self.known.add(name)
                    self.bytes += size
                    weakref.finalize(storage, self.gone, name, size)
        self.peak = max(self.peak, self.bytes)
        return made

    def gone(self, name: int, size: int) -> None:
        self.known.discard(name)
        self.bytes -= size


def activations(batch: int, recompute: bool) -> int:
    """The most bytes of a step at the paper's sizes, without the gradients of the parameters."""
    torch.manual_seed(0)
    model = ConvE(ConvEOptions(), Sizes(entities=500, relations=20)).train()
    model.recompute = recompute
    entity, relation = torch.arange(batch) % 500, torch.arange(batch) % 40
    asked = CompletionMicroBatch(
        entity, relation, torch.arange(batch), entity.flip(0).contiguous(), scale=1 / batch
    )
    for moments in model.moments:
        moments.start()
    with Live() as live:
        model.completion_loss(asked).backward()
    return live.peak - sum(4 * p.numel() for p in model.parameters())


@pytest.mark.parametrize("batch", [256, 512])
def test_recompute_lowers_the_activation_peak_by_a_third_and_more(batch):
    plain, recomputed = activations(batch, False), activations(batch, True)
    assert plain > 70_000 * batch
    assert recomputed < 0.65 * plain


def test_the_loss_holds_one_chunk_whatever_their_number():
    def peak(entities: int, chunk_bytes: int) -> int:
        x = torch.randn(64, 8, requires_grad=True)
        table = torch.randn(entities, 8, requires_grad=True)
        bias = torch.zeros(entities, requires_grad=True)
        row, item = torch.arange(64), torch.arange(64)
        with Live() as live:
            one_to_many_loss(x, [table], row, item, bias, 0.1, 1.0, chunk_bytes).backward()
        return live.peak - 4 * (x.numel() + table.numel() + bias.numel())

    chunk = 1 << 17  # 512 rows of scores
    few, many = peak(2048, chunk), peak(32768, chunk)
    assert many < 1.1 * few
    whole = 4 * 32768 * 64
    assert many < whole / 8 < peak(32768, 2 * whole)
