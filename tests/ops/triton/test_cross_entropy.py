"""Cross-entropy kernels in Triton's interpreter, against all logits at once in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.ops.losses import catalog_loss
from hasten.ops.losses.catalog_loss import catalog_cross_entropy_reference

pytest.importorskip("triton", reason="Triton has no package for this system")
from hasten.ops.triton.cross_entropy import cross_entropy

QUERIES, ROWS, WIDTH = 37, 101, 24


def problem(
    several: bool, biased: bool, shards: int, queries: int = QUERIES, kind: Any = torch.float32
) -> tuple[list[Tensor], Tensor, Tensor | None]:
    """x, bias or nothing, blocks; targets; their queries: many, one or none for each."""
    generator = torch.Generator().manual_seed(queries)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(kind)

    blocks = list(draw(ROWS, WIDTH).tensor_split(shards))
    tensors = [draw(queries, WIDTH), *([draw(ROWS)] if biased else []), *blocks]
    if not several:
        return tensors, torch.randint(ROWS, (queries,), generator=generator), None
    chance = 0.2 * torch.rand(queries, 1, generator=generator)
    chance[0] = 0  # a query without a target
    query, target = (torch.rand(queries, ROWS, generator=generator) < chance).nonzero().unbind(1)
    return tensors, target, query


def found_and_expected(
    tensors: list[Tensor], target: Tensor, query: Tensor | None, biased: bool, block: int | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Loss and gradients of the kernels, and of the reference in float64."""
    kind = tensors[0].dtype
    ours = [tensor.clone().requires_grad_() for tensor in tensors]
    exact = [tensor.double().requires_grad_() for tensor in tensors]

    def split(leaves: list[Tensor]) -> tuple[Tensor, Tensor | None, list[Tensor]]:
        return leaves[0], leaves[1] if biased else None, leaves[1 + biased :]

    x, bias, blocks = split(ours)
    scale = 2.0**15 if kind == torch.float16 else 1.0
    loss = cross_entropy(x, blocks, target, bias, query, kind, scale, block)
    x, bias, blocks = split(exact)
    reference = catalog_cross_entropy_reference(x, blocks, target, bias, query)
    found = [loss, *torch.autograd.grad(0.37 * loss, ours)]
    return found, [reference, *torch.autograd.grad(0.37 * reference, exact)]


CASES = [
    # several targets, bias, shards, queries, rows of a tile
    (False, False, 2, QUERIES, 64),
    (False, True, 3, QUERIES, 32),
    (False, True, 1, 1, 16),
    (False, False, 1, QUERIES, None),
    (True, True, 1, 17, 16),
    (True, False, 3, QUERIES, 32),
    (True, True, 1, 2, None),
]


@pytest.mark.parametrize(("several", "biased", "shards", "queries", "block"), CASES)
def test_equals_the_reference(several, biased, shards, queries, block):
    tensors, target, query = problem(several, biased, shards, queries)
    for a, b in zip(*found_and_expected(tensors, target, query, biased, block), strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=1e-5, atol=1e-5)


def test_padding_of_the_targets_changes_nothing():
    tensors, target, query = problem(True, True, 3)
    more = torch.cat([target, torch.full((5,), -1)]), torch.cat([query, torch.zeros(5).long()])
    found = [cross_entropy_of(tensors, *each) for each in ((target, query), more)]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def cross_entropy_of(tensors: list[Tensor], target: Tensor, query: Tensor) -> list[Tensor]:
    """The loss and its gradients."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    x, bias, *blocks = leaves
    loss = cross_entropy(x, blocks, target, bias, query, torch.float32, 1.0, 32)
    return [loss, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("several", [False, True])
def test_gradients_are_rounded_twice_at_most(several, kind):
    """Residuals as operands, and gradients in the type of their tensors."""
    tensors, target, query = problem(several, True, 1, kind=kind)
    found, expected = found_and_expected(tensors, target, query, True, 32)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[0].double(), expected[0], rtol=1e-5, atol=0)
    x, bias, table = (tensor.double() for tensor in tensors)
    probabilities = torch.softmax(x @ table.T + bias, 1)
    of = torch.arange(len(x)) if query is None else query
    residuals = probabilities * torch.bincount(of, minlength=len(x))[:, None]
    residuals = 0.37 * residuals.index_put((of, target), x.new_tensor(-1.0), True).abs()
    sizes = [residuals @ table.abs(), residuals.sum(0), residuals.T @ x.abs()]
    for ours, exact, size, tensor in zip(found[1:], expected[1:], sizes, tensors, strict=True):
        assert ours.dtype == tensor.dtype
        assert bool(((ours - exact).abs() <= torch.finfo(kind).eps * size + 1e-6).all())


def test_a_score_that_is_not_finite_shows():
    (x, table), target, _ = problem(False, False, 1)
    table[70, 3] = torch.nan
    assert cross_entropy(x, [table], target, None, None, torch.float32, 1.0, 32).isnan()


def test_extreme_scores_stay_finite():
    x, table = torch.full((3, 1), 1e4), torch.tensor([[1.0], [-1.0]])
    tensors, target = [x, table], torch.tensor([0, 1, 1])
    for a, b in zip(*found_and_expected(tensors, target, None, False, 16), strict=True):
        torch.testing.assert_close(a.double(), b)


@pytest.mark.parametrize("several", [False, True])
def test_the_loss_of_models_is_computed_by_it_where_it_fits(several, monkeypatch):
    (x, bias, table), target, query = problem(several, True, 1)
    monkeypatch.setattr(catalog_loss, "uses_triton", lambda *_: True)
    loss = catalog_loss.catalog_cross_entropy(x, [table], target, bias, None, query)
    reference = catalog_cross_entropy_reference(x, [table], target, bias, query)
    torch.testing.assert_close(loss, reference)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = catalog_loss.catalog_cross_entropy(
            x.requires_grad_(), [table], target, bias, None, query
        )
    assert low.grad_fn.scores.x.dtype == torch.bfloat16
    assert low.item() == pytest.approx(reference.item(), rel=5e-3)
