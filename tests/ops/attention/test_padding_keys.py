"""Attention to zero keys before short sequences, against sequences that are padded with zeros."""

from __future__ import annotations

import torch

from hasten.ops.attention.padding_keys import attention_with_padding_keys
from hasten.ops.buckets import Bucket

LENGTHS, BUCKETS, LONGEST, HEADS, WIDTH = (5, 3, 2), [Bucket(0, 1, 5), Bucket(5, 2, 3)], 6, 2, 8


def padded(query, key, value):
    """The same of each sequence with zeros before it, all of which are keys."""
    out, start = [], 0
    for length, stride in zip(LENGTHS, (5, 3, 3), strict=True):
        rows = [x[start : start + length] for x in (query, key, value)]
        q, k, v = (
            torch.cat([x.new_zeros(LONGEST - length, WIDTH), x]).view(LONGEST, HEADS, -1)
            for x in rows
        )
        scores = torch.einsum("ihd,jhd->hij", q, k) / (WIDTH // HEADS) ** 0.5
        future = torch.ones(LONGEST, LONGEST, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, -torch.inf).softmax(-1)
        out.append(torch.einsum("hij,jhd->ihd", weights, v).flatten(1)[LONGEST - length :])
        start += stride
    return torch.cat(out)


def test_values_and_gradients():
    generator = torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(11, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]
    positions = torch.tensor([4, 3, 2, 1, 0, 2, 1, 0, 1, 0, 0])
    real = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    found = attention_with_padding_keys(*inputs, positions, BUCKETS, HEADS, LONGEST, 0.0)[real]
    want = padded(*inputs)
    torch.testing.assert_close(found, want)
    weight = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((found * weight).sum(), inputs),
        torch.autograd.grad((want * weight).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other)
