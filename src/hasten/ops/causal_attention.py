"""Causal self-attention over sequences that start at position 0 and may end in padding.

Because padding stands behind the real positions, the causal mask alone keeps every real query
from seeing it: packed, bucketed and padded computation agree, and no padding mask is built.

Vaswani et al. 2017, equation 1, with the future masked; softmax in float32.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.dropout import dropout


def causal_attention(q: Tensor, k: Tensor, v: Tensor, drop: float, training: bool) -> Tensor:
    """Attention output [B, H, L, d] of queries, keys and values of that shape.

    drop: probability with which attention weights are dropped (after the softmax).
    """
    if q.device.type != "cpu" or not training or drop == 0.0:
        return F.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=drop if training else 0.0
        )
    # torch's CPU flash kernel has no dropout; its fallback pays 12 ns an element for the mask.
    batch, heads, length, width = q.shape
    mask = _future_mask(length, q.dtype)
    flat = (batch * heads, length, width)
    scores = torch.baddbmm(
        mask, q.reshape(flat), k.reshape(flat).transpose(1, 2), alpha=1.0 / math.sqrt(width)
    )
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
    return torch.bmm(dropout(weights, drop, training), v.reshape(flat)).view(q.shape)


def _future_mask(length: int, dtype: torch.dtype) -> Tensor:
    """[1, L, L] of 0 up to the diagonal and -inf above it."""
    return torch.full((1, length, length), -math.inf, dtype=dtype).triu_(1)


def causal_attention_reference(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The equation, written out (no dropout)."""
    length, width = q.shape[-2:]
    scores = q @ k.transpose(-1, -2) / math.sqrt(width)
    future = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
    return torch.softmax(scores.masked_fill(future, -math.inf), dim=-1) @ v
