"""Causal attention with embeddings of the time between two events, in plain PyTorch.

Li et al. 2020, equations 5 to 8, one head. Keys and values are [B, L, D], the tables of intervals
[span + 1, D]; ``apart`` has the row of each pair, ``future`` -inf for later keys, otherwise 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def same(x: Tensor) -> Tensor:
    """The tensor itself."""
    return x


def intervals(times: Tensor, others: Tensor, span: int) -> Tensor:
    """[..., L] the intervals between times [...] and the times [..., L] of the keys."""
    return (times.unsqueeze(-1) - others).abs_().clamp_(max=span)


def future_mask(length: int, device: torch.device | None = None) -> Tensor:
    """[L, L] of a sequence without padding."""
    return torch.full((length, length), -math.inf, device=device).triu_(1)


def written_out(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    apart: Tensor,
    future: Tensor,
) -> Tensor:
    """With the embeddings of every pair as [B, L, L, D] tensors, as in published code."""
    of_times = (F.embedding(apart, key_table) @ query.unsqueeze(-1)).squeeze(-1)
    scores = (query @ key.mT + of_times) / math.sqrt(query.shape[-1]) + future
    weights = scores.softmax(dim=-1)
    over_times = weights.unsqueeze(2) @ F.embedding(apart, value_table)
    return weights @ value + over_times.squeeze(2)


def gathered(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_table: Tensor,
    value_table: Tensor,
    apart: Tensor,
    future: Tensor,
    dropout: Callable[[Tensor], Tensor] = same,
    padded: Callable[[Tensor], Tensor] = same,
    real: Callable[[Tensor], Tensor] = same,
) -> Tensor:
    """With the products of queries and table gathered, and the weights summed by interval.

    query, apart, future: of the tokens that are no padding. padded, real: from these tokens to
    [B, L, ...] and back.
    """
    query = query / math.sqrt(query.shape[-1])
    # products with 257 columns are up to 4 times slower than with a multiple of 8
    rows = (0, 0, 0, -len(key_table) % 8)
    key_table, value_table = F.pad(key_table, rows), F.pad(value_table, rows)
    of_times = (query @ key_table.T).gather(-1, apart)
    scores = real(padded(query) @ key.mT).add_(of_times).add_(future)
    weights = dropout(scores.softmax(dim=-1))
    bins = weights.new_zeros(*apart.shape[:-1], len(value_table)).scatter_add(-1, apart, weights)
    return real(padded(weights) @ value) + bins @ value_table
