"""BCE and gBCE with sampled negatives against their definition."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops.losses.sampled_loss import gbce_beta, sampled_loss, sampled_loss_from_table
from hasten.ops.table import EmbeddingTable
from tests.ops.reference import sampled_loss_reference


class _Rows:
    """A table around a tensor that is given."""

    def __init__(self, weight):
        self.weight = weight

    def block(self, start, stop):
        return self.weight[start:stop]

    def __len__(self):
        return len(self.weight)


def _case(negatives):
    torch.manual_seed(0)
    table = EmbeddingTable(40, 6).double()
    x = torch.randn(30, 6, dtype=torch.float64, requires_grad=True)
    ids = torch.randint(0, 40, (30, 1 + negatives))
    return x, table, ids


@pytest.mark.parametrize("negatives", [1, 5])
@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("chunk", [None, 1, 8 * 6 * 6 * 7])
def test_equals_the_definition(negatives, beta, chunk):
    x, table, ids = _case(negatives)
    loss = sampled_loss_from_table(x, table, ids, beta, chunk)
    reference = sampled_loss_reference(x, table.weight, ids[:, 0], ids[:, 1:], beta)
    assert loss.item() == pytest.approx(reference.item(), rel=1e-6)
    ours = torch.autograd.grad(loss, (x, table.weight))
    expected = torch.autograd.grad(reference, (x, table.weight))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    together = sampled_loss(x, table.rows(ids), beta)
    assert together.item() == pytest.approx(loss.item(), rel=1e-12)
    for a, b in zip(torch.autograd.grad(together, (x, table.weight)), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_gradients_against_finite_differences():
    x, table, ids = _case(3)

    def loss(x, weight):
        return sampled_loss_from_table(x, _Rows(weight), ids[:4], 0.7, 1)

    assert gradcheck(loss, (x[:4].detach().requires_grad_(), table.weight))


def test_gbce_beta_at_its_ends():
    assert gbce_beta(256, 12_101, 0.0) == pytest.approx(1.0)
    assert gbce_beta(256, 12_101, 1.0) == pytest.approx(256 / 12_100)


def test_scores_of_ten_thousand_stay_finite():
    x = torch.full((2, 1), 1e4, requires_grad=True)
    rows = torch.tensor([[[-1.0], [1.0]], [[1.0], [-1.0]]])
    loss = sampled_loss(x, rows)
    assert loss.item() == pytest.approx(2e4)
    (grad,) = torch.autograd.grad(loss, x)
    assert torch.isfinite(grad).all()
