"""Causal attention against the equation, forward and backward."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops import causal_attention as module
from hasten.ops.causal_attention import causal_attention, causal_attention_reference


def _inputs(dtype=torch.float64, shape=(3, 2, 7, 4)):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("training", [True, False])
def test_equals_the_equation(training, monkeypatch):
    # with dropout the fast path is another one: give it a mask that drops nothing
    monkeypatch.setattr(module, "dropout", lambda x, p, t: x)
    q, k, v = _inputs()
    out = causal_attention(q, k, v, 0.3, training)
    expected = causal_attention_reference(q, k, v)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-7)
    weight = torch.randn_like(out)
    grads = torch.autograd.grad((out * weight).sum(), (q, k, v))
    references = torch.autograd.grad((expected * weight).sum(), (q, k, v))
    for ours, reference in zip(grads, references, strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-5, atol=1e-6)


def test_gradients_against_finite_differences():
    inputs = _inputs(shape=(1, 1, 3, 2))
    assert gradcheck(causal_attention_reference, inputs)
    assert gradcheck(lambda q, k, v: causal_attention(q, k, v, 0.0, True), inputs)


def test_dropped_weights_keep_their_expectation():
    q, k, v = (t.detach() for t in _inputs(torch.float32, (2, 1, 6, 4)))
    torch.manual_seed(1)
    mean = torch.stack([causal_attention(q, k, v, 0.5, True) for _ in range(4000)]).mean(0)
    torch.testing.assert_close(mean, causal_attention_reference(q, k, v), rtol=0.2, atol=0.1)


def test_later_positions_change_nothing_earlier():
    q, k, v = (t.detach() for t in _inputs(torch.float32))
    first = causal_attention(q, k, v, 0.0, False)
    k[:, :, 5:] = 9.0
    v[:, :, 5:] = 9.0
    assert torch.equal(first[:, :, :5], causal_attention(q, k, v, 0.0, False)[:, :, :5])
