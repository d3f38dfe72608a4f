"""Streams as combinations of what was written to them, against streams that are really there."""

import pytest
import torch
from torch.autograd import gradcheck

from hasten.models.sequential import hyper_connections as module
from hasten.models.sequential.hyper_connections import (
    Streams,
    expand,
    laid_out,
    read,
    reduce,
    stream_products,
    stream_products_reference,
    weighted_sum,
    weighted_sum_reference,
    write,
)

TOKENS, WIDTH, STREAMS = 7, 5, 4


def _random(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def _doubly_stochastic(logits):
    """[n, n, T'] of [3, T']: a convex combination of three permutations."""
    eye = torch.eye(STREAMS, dtype=torch.float64)
    turned = torch.stack([eye.roll(k, 0) for k in range(3)])
    return torch.einsum("kt,kij->ijt", torch.softmax(logits, 0), turned)


@pytest.mark.parametrize("own", [1, TOKENS])
def test_equal_to_streams_that_are_there(own):
    """Four sublayers: expand, read, write, reduce and the products, forward and backward."""
    torch.manual_seed(0)
    x = _random(TOKENS, WIDTH)
    pre, post = (
        [torch.rand(STREAMS, own).double().requires_grad_() for _ in range(4)] for _ in "ab"
    )
    # what is not doubly stochastic cannot be had: gradients are those along the manifold
    logits = [_random(3, own) for _ in range(3)]
    mixing = [None, *(_doubly_stochastic(shares) for shares in logits)]
    branches = [_random(WIDTH, WIDTH) for _ in range(4)]
    weight = _random(STREAMS, 6, WIDTH)

    streams = expand(x, STREAMS)
    flowing = x[:, None].expand(-1, STREAMS, -1)  # [T, n, D]
    ours, expected = [], []
    for h_pre, h_post, h_res, branch in zip(pre, post, mixing, branches, strict=True):
        ours += [laid_out(streams), stream_products(streams, weight)]
        flat = flowing.flatten(1)
        scale = (flat.square().mean(1, keepdim=True) + module.EPSILON).sqrt()
        expected += [flowing, (flat / scale @ weight.transpose(1, 2).flatten(0, 1)).T]
        streams = write(streams, torch.tanh(read(streams, h_pre) @ branch), h_post, h_res)
        read_in = (h_pre.T[:, :, None] * flowing).sum(1)
        if h_res is not None:
            flowing = torch.einsum("ijt,tjd->tid", h_res.expand(-1, -1, TOKENS), flowing)
        flowing = flowing + h_post.T[:, :, None] * torch.tanh(read_in @ branch)[:, None]
    ours.append(reduce(streams))
    expected.append(flowing.mean(1))
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-10)

    inputs = [x, weight, *pre, *post, *logits, *branches]
    weights = [torch.randn_like(a) for a in ours]
    found = torch.autograd.grad(
        sum((a * w).sum() for a, w in zip(ours, weights, strict=True)), inputs, retain_graph=True
    )
    wanted = torch.autograd.grad(
        sum((a * w).sum() for a, w in zip(expected, weights, strict=True)), inputs
    )
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-9, msg=str(number))


@pytest.mark.parametrize("written", [0, 1, 3])
@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_products_equal_the_reference(written, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    mix, weight = _random(STREAMS, written, TOKENS), _random(STREAMS, 6, WIDTH)
    parts = tuple(_random(TOKENS, WIDTH) for _ in range(written + 1))
    ours = stream_products(Streams(mix, parts), weight)
    expected = stream_products_reference(Streams(mix, parts), weight)
    torch.testing.assert_close(ours, expected)
    inputs = [weight, *parts, *([mix] if written else [])]
    upper = torch.randn_like(ours)
    found = torch.autograd.grad((ours * upper).sum(), inputs)
    wanted = torch.autograd.grad((expected * upper).sum(), inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_gradients_of_products_against_finite_differences():
    mix, weight = _random(2, 2, 3), _random(2, 4, 3)
    parts = tuple(_random(3, 3) for _ in range(3))
    assert gradcheck(lambda m, w, *p: stream_products(Streams(m, p), w), (mix, weight, *parts))


@pytest.mark.parametrize("own", [1, TOKENS])
def test_weighted_sum_equals_the_reference(own):
    weights, parts = _random(3, own), tuple(_random(TOKENS, WIDTH) for _ in range(3))
    torch.testing.assert_close(weighted_sum(weights, parts), weighted_sum_reference(weights, parts))
    assert gradcheck(lambda w, *p: weighted_sum(w, p), (weights, *parts))


def test_what_low_precision_branches_write_is_kept_in_float32():
    x = torch.randn(TOKENS, WIDTH)
    streams = write(expand(x, 3), x.bfloat16(), torch.ones(3, 1), None)
    assert [part.dtype for part in streams.parts] == [torch.float32] * 2
    assert reduce(streams).dtype == torch.float32
    torch.testing.assert_close(reduce(streams), x + x.bfloat16().float())
