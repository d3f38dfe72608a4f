"""Causal attention against the equation, forward and backward, on ragged buckets."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops.attention import causal_attention as module
from hasten.ops.attention import head_chunks
from hasten.ops.attention.causal_attention import causal_attention, causal_attention_reference
from hasten.ops.buckets import Bucket

BUCKETS = [Bucket(0, 2, 9), Bucket(18, 3, 4), Bucket(30, 1, 1)]


def _packed(width=6, dtype=torch.float64, tokens=31):
    torch.manual_seed(0)
    return torch.randn(tokens, 3 * width, dtype=dtype, requires_grad=True)


def _attend(packed, *rest):
    return causal_attention(*packed.split(packed.shape[1] // 3, dim=1), *rest)


def _equation(packed, *rest):
    return causal_attention_reference(*packed.split(packed.shape[1] // 3, dim=1), *rest)


def _keep_all(monkeypatch, chunk=64):
    """With dropout the CPU takes its own path: give it a mask that drops nothing."""

    def ones(kept, shapes, p, dtype):
        return [torch.ones(shape, dtype=dtype) for shape in shapes]

    monkeypatch.setattr(module, "masks_of", ones)
    monkeypatch.setattr(head_chunks, "CHUNK", chunk)


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_equals_the_equation(heads, chunk, drop, monkeypatch):
    _keep_all(monkeypatch, chunk)
    packed = _packed()
    out = _attend(packed, BUCKETS, heads, drop, True)
    expected = _equation(packed, BUCKETS, heads)
    torch.testing.assert_close(out, expected, rtol=1e-6, atol=1e-8)
    weight = torch.randn_like(out)
    (ours,) = torch.autograd.grad((out * weight).sum(), packed)
    (reference,) = torch.autograd.grad((expected * weight).sum(), packed)
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-8)


def test_gradients_against_finite_differences(monkeypatch):
    _keep_all(monkeypatch, 2)
    buckets = [Bucket(0, 1, 3), Bucket(3, 2, 1)]
    packed = _packed(2, tokens=5)
    assert gradcheck(lambda x: _equation(x, buckets, 1), packed)
    assert gradcheck(lambda x: _attend(x, buckets, 1, 0.5, True), packed)


@pytest.mark.parametrize("chunk", [2, 64])
def test_gradients_with_dropout_against_finite_differences(chunk, monkeypatch):
    monkeypatch.setattr(head_chunks, "CHUNK", chunk)

    def attend(x):
        torch.manual_seed(7)
        return _attend(x, BUCKETS, 2, 0.4, True)

    assert gradcheck(attend, _packed(2))


def test_dropped_weights_keep_their_expectation():
    packed = _packed(4, torch.float32).detach()
    torch.manual_seed(1)
    mean = torch.stack([_attend(packed, BUCKETS, 1, 0.5, True) for _ in range(4000)])
    expected = _equation(packed, BUCKETS, 1)
    torch.testing.assert_close(mean.mean(0), expected, rtol=0.2, atol=0.1)


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_later_positions_change_nothing_earlier(drop):
    packed = _packed(4, torch.float32).detach()
    torch.manual_seed(2)
    first = _attend(packed, BUCKETS, 1, drop, True)
    packed[5:9] = 9.0  # the end of the first sequence
    torch.manual_seed(2)
    second = _attend(packed, BUCKETS, 1, drop, True)
    assert torch.equal(first[:5], second[:5])
    assert torch.equal(first[9:], second[9:])
    assert not torch.equal(first[5:9], second[5:9])


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_bf16_autocast_stays_near(drop, monkeypatch):
    _keep_all(monkeypatch, 4)
    packed = _packed(8, torch.float32)
    low = packed.detach().bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = _attend(low, BUCKETS, 2, drop, True)
    assert out.dtype == torch.bfloat16
    expected = _equation(packed, BUCKETS, 2)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    out.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(low.grad.float(), packed.grad, rtol=0.1, atol=0.1)
