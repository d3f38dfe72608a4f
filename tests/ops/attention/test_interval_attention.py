"""Interval attention against the equations with [B, L, L, D] tensors, forward and backward."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.ops.attention import head_chunks
from hasten.ops.attention import interval_attention as module
from hasten.ops.attention.causal_attention import causal_attention_reference
from hasten.ops.attention.interval_attention import (
    find_intervals,
    interval_attention,
    interval_attention_reference,
)
from hasten.ops.buckets import Bucket

BUCKETS = [Bucket(0, 2, 9), Bucket(18, 3, 4), Bucket(30, 1, 1)]
SPAN = 7


def _inputs(width=6, dtype=torch.float64, tokens=31, span=SPAN, seed=0):
    torch.manual_seed(seed)
    shapes = [(tokens, width)] * 3 + [(span + 1, width)] * 2
    leaves = [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]
    times = torch.randint(0, 3 * span, (tokens,))
    return leaves, times


def _fast(leaves, times, heads=1, drop=0.0, buckets=BUCKETS):
    """leaves: queries, keys, values and the two tables."""
    intervals = find_intervals(times, buckets, len(leaves[-1]) - 1)
    return interval_attention(*leaves, intervals, heads, drop, True)


def _keep_all(monkeypatch):
    def ones(kept, shapes, p, dtype):
        return [torch.ones(shape, dtype=dtype) for shape in shapes]

    monkeypatch.setattr(module, "masks_of", ones)


@pytest.mark.parametrize("heads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_equals_the_equations(heads, chunk, drop, monkeypatch):
    _keep_all(monkeypatch)
    monkeypatch.setattr(head_chunks, "CHUNK", chunk)
    leaves, times = _inputs()
    out = _fast(leaves, times, heads, drop)
    expected = interval_attention_reference(*leaves, times, BUCKETS, heads)
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), leaves)
    reference = torch.autograd.grad((expected * weight).sum(), leaves)
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_equals_the_equations_in_float32_at_length_200():
    buckets = [Bucket(0, 3, 200)]
    leaves, _ = _inputs(50, torch.float32, 600, 256)
    times = torch.randint(0, 5, (3, 200)).cumsum(1).view(-1)
    out = _fast(leaves, times, buckets=buckets)
    expected = interval_attention_reference(*leaves, times, buckets, 1)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), leaves)
    reference = torch.autograd.grad((expected * weight).sum(), leaves)
    for a, b in zip(ours, reference, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5 * b.abs().max().item())


def test_gradients_against_finite_differences(monkeypatch):
    monkeypatch.setattr(head_chunks, "CHUNK", 2)
    buckets = [Bucket(0, 1, 3), Bucket(3, 2, 1)]
    leaves, times = _inputs(2, tokens=5, span=3)
    assert gradcheck(lambda *x: _fast(x, times, buckets=buckets), leaves)

    def attend(*x):
        torch.manual_seed(7)
        return _fast(x, times, 2, 0.4, buckets)

    assert gradcheck(attend, leaves)


def test_without_embeddings_it_is_causal_attention():
    (query, key, value, table, _), times = _inputs()
    nothing = torch.zeros_like(table)
    torch.testing.assert_close(
        _fast([query, key, value, nothing, nothing], times, 2),
        causal_attention_reference(query, key, value, BUCKETS, 2),
    )


def test_intervals_are_capped_and_without_sign():
    times = torch.tensor([100, 3, 50, -(2**40)])
    (pairs,) = find_intervals(times, [Bucket(0, 1, 4)], 60).pairs[0]
    seen = torch.ones(4, 4, dtype=torch.bool).tril()
    expected = torch.tensor([0, 60, 0, 50, 47, 0, 60, 60, 60, 0])
    assert torch.equal(pairs[0][seen], expected)


def test_times_matter():
    leaves, times = _inputs()
    times[:9] = torch.arange(9)
    before = _fast(leaves, times)
    times[4] += 1
    changed = (_fast(leaves, times) != before).any(1).nonzero().view(-1).tolist()
    assert changed == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_later_tokens_and_times_change_nothing_earlier(drop):
    leaves, times = _inputs(4, torch.float32)
    torch.manual_seed(2)
    first = _fast(leaves, times, drop=drop)
    with torch.no_grad():
        for leaf in leaves[:3]:
            leaf[5:9] = 9.0  # the end of the first sequence
    times[5:9] += 3
    torch.manual_seed(2)
    second = _fast(leaves, times, drop=drop)
    assert torch.equal(first[:5], second[:5])
    assert torch.equal(first[9:], second[9:])
    assert not torch.equal(first[5:9], second[5:9])


def test_dropped_weights_keep_their_expectation():
    """The mean over many rows of one sequence."""
    leaves, times = _inputs(4, torch.float32, 6)
    with torch.no_grad():
        many = [leaf.repeat(5000, 1) for leaf in leaves[:3]] + leaves[3:]
        buckets = [Bucket(0, 5000, 6)]
        mean = _fast(many, times.repeat(5000), 2, 0.5, buckets).view(5000, 6, 4).mean(0)
        expected = interval_attention_reference(*leaves, times, [Bucket(0, 1, 6)], 2)
        torch.testing.assert_close(mean, expected, rtol=0.05, atol=0.05)
        intervals = find_intervals(times, [Bucket(0, 1, 6)], SPAN)
        calm = interval_attention(*leaves, intervals, 2, 0.5, training=False)
        torch.testing.assert_close(calm, expected)


@pytest.mark.parametrize("drop", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_stays_near(drop, dtype, monkeypatch):
    _keep_all(monkeypatch)
    monkeypatch.setattr(head_chunks, "CHUNK", 4)
    leaves, times = _inputs(8, torch.float32)
    low = [leaf.detach().to(dtype).requires_grad_() for leaf in leaves[:3]]
    low += [table.detach().clone().requires_grad_() for table in leaves[3:]]
    with torch.autocast("cpu", dtype=dtype):
        out = _fast(low, times, 2, drop)
    assert out.dtype == dtype
    expected = interval_attention_reference(*leaves, times, BUCKETS, 2)
    torch.testing.assert_close(out.float(), expected, rtol=0.05, atol=0.05)
    out.sum().backward()
    expected.sum().backward()
    for ours, theirs in zip(low, leaves, strict=True):
        assert ours.grad.dtype == ours.dtype
        torch.testing.assert_close(ours.grad.float(), theirs.grad, rtol=0.1, atol=0.1)


def test_nothing_is_kept_without_gradients():
    leaves, times = _inputs()
    leaves = [leaf.detach() for leaf in leaves]
    assert _fast(leaves, times).grad_fn is None
    with torch.inference_mode():
        found = _fast(leaves, times)
    torch.testing.assert_close(found, interval_attention_reference(*leaves, times, BUCKETS, 1))
