"""Dropout: distribution, scale, reproducibility, activation checkpointing."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from hasten.ops.dense.dropout import dropout, keep_mask


@pytest.mark.parametrize("probability", [0.1, 0.2, 0.5, 0.9])
def test_mask_has_the_rate_and_the_expectation(probability):
    torch.manual_seed(0)
    mask = keep_mask(torch.Size([1000, 1003]), probability)
    rounded = round(probability * 256) / 256
    assert abs(float((mask == 0).double().mean()) - rounded) < 0.002
    assert abs(float(mask.double().mean()) - 1.0) < 0.01
    values = mask.unique()
    assert len(values) == 2
    assert float(values[1]) == pytest.approx(1 / (1 - rounded), rel=1e-6)


def test_columns_and_rows_are_independent():
    torch.manual_seed(1)
    kept = (keep_mask(torch.Size([20_000, 8]), 0.5) > 0).double()
    correlation = torch.corrcoef(kept.T) - torch.eye(8, dtype=torch.float64)
    assert float(correlation.abs().max()) < 0.03


def test_same_moments_as_the_reference():
    torch.manual_seed(2)
    x = torch.randn(400_000)
    ours, reference = dropout(x, 0.5, True), torch.nn.functional.dropout(x, 0.5)
    assert float(ours.var()) == pytest.approx(float(reference.var()), rel=0.02)


def test_identity_when_not_training_or_zero():
    x = torch.randn(10)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x


def test_follows_torchs_seed_and_activation_checkpointing():
    x = torch.randn(64, 64, requires_grad=True)
    torch.manual_seed(3)
    direct = dropout(x, 0.5, True)
    (direct**2).sum().backward()
    expected, x.grad = x.grad.clone(), None
    torch.manual_seed(3)
    again = checkpoint(lambda t: dropout(t, 0.5, True), x, use_reentrant=False)
    (again**2).sum().backward()
    assert torch.equal(direct, again)
    assert torch.equal(expected, x.grad)


def test_keeps_the_dtype():
    assert dropout(torch.randn(9, dtype=torch.bfloat16), 0.5, True).dtype == torch.bfloat16


def test_refuses_a_probability_of_one():
    with pytest.raises(ValueError, match="dropout probability"):
        keep_mask(torch.Size([4]), 1.0)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("probability", [0.5, 0.2])
def test_compiles_without_a_break_to_masks_that_differ(probability):
    """Two masks of one shape stay two, and the same seed draws the same ones."""

    def twice(x):
        return dropout(x, probability, True), dropout(x, probability, True)

    compiled = torch.compile(twice, backend="aot_eager", fullgraph=True, dynamic=True)
    found = []
    for _ in range(3):
        x = torch.ones(50, 7, requires_grad=True)
        torch.manual_seed(1)
        one, other = compiled(x)
        (one + 2 * other).sum().backward()
        assert not torch.equal(one, other)
        torch.testing.assert_close(x.grad, (one + 2 * other).detach())
        found.append((one, other))
    torch.testing.assert_close(found[1], found[2])
