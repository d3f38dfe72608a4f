"""1-N cross-entropy: value and gradients against the matrix of labels, in chunks and shards."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hasten.ops.losses import one_to_many_loss as module
from hasten.ops.losses.one_to_many_loss import one_to_many_loss
from tests.ops.reference import one_to_many_loss_reference

QUERIES, WIDTH, ROWS = 7, 5, 150


def problem(shards: list[int], biased: bool, scale: float = 1.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    x = (draw(QUERIES, WIDTH) * scale).requires_grad_()
    blocks = [draw(count, WIDTH).requires_grad_() for count in shards]
    bias = draw(ROWS).requires_grad_() if biased else None
    true = torch.rand(QUERIES, ROWS, generator=generator) < 0.1
    true[2] = False  # a query without an answer
    row, item = true.nonzero().T
    shuffled = torch.randperm(len(row), generator=generator)
    return x, blocks, row[shuffled], item[shuffled], bias


@pytest.mark.parametrize("shards", [[ROWS], [64, 1, 85]])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 60.0])  # 60: scores where exp overflows
def test_equals_the_label_matrix(shards, biased, smoothing, scale):
    x, blocks, row, item, bias = problem(shards, biased, scale)
    inputs = [x, *blocks, *([bias] if biased else [])]
    expected = one_to_many_loss_reference(x, blocks, row, item, bias, smoothing, 0.3)
    wanted = torch.autograd.grad(expected, inputs)
    for chunk_bytes in (1, None):
        loss = 0.3 * one_to_many_loss(x, blocks, row, item, bias, smoothing, 0.3, chunk_bytes)
        found = torch.autograd.grad(loss, inputs)
        torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-9)
        for gradient, reference in zip(found, wanted, strict=True):
            torch.testing.assert_close(gradient, reference, rtol=1e-9, atol=1e-9)


def test_another_gradient_than_announced_reaches_all_gradients():
    x, blocks, row, item, bias = problem([ROWS], True)
    inputs = [x, *blocks, bias]
    found = torch.autograd.grad(5 * one_to_many_loss(x, blocks, row, item, bias, 0.1), inputs)
    loss = 5 * one_to_many_loss(x, blocks, row, item, bias, 0.1, 5.0)
    wanted = torch.autograd.grad(loss, inputs)
    for gradient, reference in zip(found, wanted, strict=True):
        torch.testing.assert_close(gradient, reference)


def test_pieces_of_a_chunk_change_nothing(monkeypatch):
    x, blocks, row, item, bias = problem([ROWS], True)
    whole = one_to_many_loss(x, blocks, row, item, bias, 0.1)
    monkeypatch.setattr(module, "_PIECE_BYTES", 1)
    torch.testing.assert_close(one_to_many_loss(x, blocks, row, item, bias, 0.1), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_stays_near(dtype):
    x, blocks, row, item, bias = problem([ROWS], True)
    x, block, bias = (each.detach().float() for each in (x, blocks[0], bias))
    x.requires_grad_()
    block.requires_grad_()
    expected = one_to_many_loss_reference(x, [block], row, item, bias, 0.1)
    wanted = torch.autograd.grad(expected, [x, block])
    with torch.autocast("cpu", dtype=dtype):
        loss = one_to_many_loss(x, [block], row, item, bias, 0.1)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected, rtol=5e-3, atol=0)
    for gradient, reference in zip(torch.autograd.grad(loss, [x, block]), wanted, strict=True):
        assert gradient.dtype == torch.float32
        assert float((gradient - reference).norm() / reference.norm()) < 2e-2


def test_fp16_keeps_the_gradients_of_far_items():
    """Of scores of -12, and where the loss is a mean over a million pairs."""
    torch.manual_seed(0)
    x = (1 + torch.rand(64, 4)).half().float()
    table = -(1 + torch.rand(2000, 4)).half().float()
    row, item, mean = torch.arange(64), torch.arange(64) % 9, 1 / (64 * 16384)

    def gradients(x, scale):
        leaves = [x.requires_grad_(), table.clone().requires_grad_()]
        loss = one_to_many_loss(leaves[0], leaves[1:], row, item, None, 0.0, mean) * mean
        return [grad.float() / scale for grad in torch.autograd.grad(loss * scale, leaves)]

    expected = gradients(x.clone(), 1.0)
    with torch.autocast("cpu", dtype=torch.float16):
        found = gradients(x.half(), 2.0**16)
    for ours, exact in zip(found, expected, strict=True):
        assert float((ours - exact).norm() / exact.norm()) < 2e-3
    far = slice(9, None)
    assert float((found[1][far] - expected[1][far]).norm() / expected[1][far].norm()) < 1e-2


def test_scores_that_are_not_finite_show():
    x, blocks, row, item, bias = problem([ROWS], True)
    with torch.no_grad():
        blocks[0][3, 1] = torch.nan
    assert one_to_many_loss(x, blocks, row, item, bias).isnan()
