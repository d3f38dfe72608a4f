"""The softmax over shared samples against its definition, whole and in chunks."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops.losses.catalog_loss import catalog_cross_entropy
from hasten.ops.losses.sampled_softmax import sampled_softmax
from tests.ops.reference import sampled_softmax_reference

ROWS, SAMPLED, TARGETS, WIDTH = 40, 12, 30, 6


def _case(dtype=torch.float64, scale=1.0):
    torch.manual_seed(0)
    x = (scale * torch.randn(TARGETS, WIDTH, dtype=dtype)).requires_grad_()
    rows = torch.randn(ROWS, WIDTH, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, ROWS, (TARGETS,))
    sampled = torch.randperm(ROWS)[:SAMPLED]
    log_weights = torch.randn(SAMPLED, dtype=torch.float64)
    own = (targets[:, None] == sampled) | (torch.rand(TARGETS, SAMPLED) < 0.1)
    own[3] = True  # a target without any negative
    return x, rows, targets, sampled, log_weights, own.view(-1).nonzero()[:, 0]


@pytest.mark.parametrize("chunk", [None, 1, 4 * SAMPLED * 7])
def test_equals_the_definition(chunk):
    case = _case()
    loss, reference = sampled_softmax(*case, chunk), sampled_softmax_reference(*case)
    assert loss.item() == pytest.approx(reference.item(), rel=1e-12)
    ours, expected = (torch.autograd.grad(value, case[:2]) for value in (loss, reference))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_gradients_against_finite_differences():
    x, rows, *others = _case()
    assert gradcheck(lambda x, rows: sampled_softmax(x, rows, *others, 4 * SAMPLED * 7), (x, rows))


def test_with_every_item_once_it_is_the_whole_softmax():
    x, rows, targets, *_ = _case()
    everything = torch.arange(ROWS)
    masked = torch.arange(TARGETS) * ROWS + targets
    ours = sampled_softmax(x, rows, targets, everything, torch.zeros(ROWS), masked)
    whole = catalog_cross_entropy(x, [rows], targets)
    assert ours.item() == pytest.approx(whole.item(), rel=1e-12)
    for a, b in zip(
        *(torch.autograd.grad(value, (x, rows)) for value in (ours, whole)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("chunk", [None, 4 * SAMPLED * 7])
def test_lower_precision_is_near(dtype, chunk):
    """Also with probabilities and a loss scale that fp16 alone would lose."""
    case = _case(torch.float32)
    case = (*case[:4], case[4].float() - 12, case[5])
    expected = sampled_softmax_reference(*case)
    expected_grads = torch.autograd.grad(expected, case[:2])
    with torch.autocast("cpu", dtype):
        loss = sampled_softmax(*case, chunk)
    assert loss.dtype == torch.float32
    tolerance = 2e-2 if dtype == torch.bfloat16 else 4e-3
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    grads = torch.autograd.grad(loss * 1024, case[:2])
    for ours, reference in zip(grads, expected_grads, strict=True):
        difference = (ours / 1024 - reference).norm() / reference.norm()
        assert difference < tolerance


def test_scores_of_ten_thousand_stay_finite():
    x = torch.tensor([[1e4], [-1e4]], requires_grad=True)
    rows = torch.tensor([[1.0], [-1.0]])
    zero, nothing = torch.zeros(1), torch.zeros(0, dtype=torch.int64)
    targets = torch.tensor([0, 0])
    loss = sampled_softmax(x, rows, targets, torch.tensor([1]), zero, nothing)
    assert loss.item() == pytest.approx(2e4)
    (grad,) = torch.autograd.grad(loss, x)
    assert grad.tolist() == [[0.0], [-2.0]]
