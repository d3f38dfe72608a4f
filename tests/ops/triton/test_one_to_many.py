"""1-N cross-entropy kernels in Triton's interpreter, against the matrix of labels in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton has no package for this system")
from hasten.ops.losses import one_to_many_loss as module
from hasten.ops.triton.one_to_many import one_to_many
from tests.ops.reference import one_to_many_loss_reference
from tests.ops.triton.test_cross_entropy import QUERIES, ROWS, problem

SMOOTHING = 0.1


def found_and_expected(
    tensors: list[Tensor], row: Tensor, item: Tensor, biased: bool, block: int | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and gradients of the kernels, and of the reference in float64."""
    kind = tensors[0].dtype
    ours = [tensor.clone().requires_grad_() for tensor in tensors]
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    bias, scale = ours[1] if biased else None, 2.0**15 if kind == torch.float16 else 1.0
    blocks = ours[1 + biased :]
    loss = one_to_many(ours[0], blocks, row, item, bias, SMOOTHING, kind, scale, block)
    bias, blocks = exact[1] if biased else None, exact[1 + biased :]
    reference = one_to_many_loss_reference(exact[0], blocks, row, item, bias, SMOOTHING)
    found = [loss, *torch.autograd.grad(0.37 * loss, ours)]
    return found, [reference, *torch.autograd.grad(0.37 * reference, exact)]


@pytest.mark.parametrize(
    ("biased", "shards", "queries", "block"),
    [(True, 1, QUERIES, 32), (False, 3, QUERIES, 32), (True, 1, 1, 16), (True, 3, QUERIES, None)],
)
def test_equals_the_label_matrix(biased, shards, queries, block):
    tensors, item, row = problem(True, biased, shards, queries)
    order = torch.randperm(len(row))  # pairs in any order
    row, item = row[order], item[order]
    for a, b in zip(*found_and_expected(tensors, row, item, biased, block), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_padding_of_the_pairs_changes_nothing():
    tensors, item, row = problem(True, True, 3)
    found = []
    for padding in (0, 5):
        leaves = [tensor.clone().requires_grad_() for tensor in tensors]
        x, bias, *blocks = leaves
        items = torch.cat([item, torch.full((padding,), -1)])
        rows = torch.cat([row, torch.zeros(padding).long()])
        loss = one_to_many(x, blocks, rows, items, bias, SMOOTHING, torch.float32, 1.0, 32)
        found.append([loss, *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_gradients_are_rounded_twice_at_most(kind):
    tensors, item, row = problem(True, True, 1, kind=kind)
    found, expected = found_and_expected(tensors, row, item, True, 32)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-5, atol=0)
    x, bias, table = (tensor.double() for tensor in tensors)
    residuals = torch.sigmoid(x @ table.T + bias) - SMOOTHING / ROWS
    hits = x.new_tensor(SMOOTHING - 1)
    residuals = 0.37 * residuals.index_put((row, item), hits, True).abs()
    sizes = [residuals @ table.abs(), residuals.sum(0), residuals.T @ x.abs()]
    for ours, exact, size, tensor in zip(found[1:], expected[1:], sizes, tensors, strict=True):
        assert ours.dtype == tensor.dtype
        assert bool(((ours - exact).abs() <= torch.finfo(kind).eps * size + 1e-6).all())


def test_far_items_keep_their_loss_and_gradients():
    """softplus(-20) is 2e-9, which log(1 + e) in float32 loses; at 100 exp overflows."""
    x, table = torch.tensor([[1.0], [-1.0]]), torch.tensor([[-20.0], [-18.5], [100.0], [-17.25]])
    row, item = torch.tensor([0]), torch.tensor([2])
    ours = one_to_many(x[:1], [table], row, item, None, 0.0, torch.float32, 1.0, 16)
    exact = one_to_many_loss_reference(x[:1].double(), [table.double()], row, item, None, 0.0)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=0)
    for a, b in zip(*found_and_expected([x, table], row, item, False, 16), strict=True):
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-8)


def test_the_loss_of_models_is_computed_by_it_where_it_fits(monkeypatch):
    (x, bias, table), item, row = problem(True, True, 1)
    monkeypatch.setattr(module, "uses_triton", lambda *_: True)
    loss = module.one_to_many_loss(x.requires_grad_(), [table], row, item, bias, SMOOTHING, 0.5)
    assert "_OneToMany" in type(loss.grad_fn).__name__
    assert loss.grad_fn.scores.x.dtype == torch.float32
    reference = one_to_many_loss_reference(x, [table], row, item, bias, SMOOTHING)
    torch.testing.assert_close(loss, reference)
