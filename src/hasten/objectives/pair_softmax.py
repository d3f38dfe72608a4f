"""Sampled softmax over pairs of a user and an item: the negatives of a step are those of all pairs.

The loss of user u with item i is

    log(exp s(u, i) + sum_j exp(s(u, j) + w_j)) - s(u, i),    s(u, i) = cosine(u, i) / temperature

(Wu et al. 2024, On the effectiveness of sampled softmax loss for item recommendation). Every pair
brings one sampled negative, as for BPR, but j are the distinct negatives of the whole batch, so the
loss does not depend on micro-batches and processes. w_j = log(c_j N / B) for an item that was drawn
c_j times in B draws from N items: the sum estimates the sum over all items (the logQ correction:
Bengio & Senécal 2008). The paper has no w_j. i itself is left out of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.objectives.shared_negatives import masked_pairs
from hasten.ops.losses.sampled_softmax import sampled_softmax


@dataclass(frozen=True)
class SharedItems:
    """The negatives of a batch, and which of them a micro-batch leaves out.

    items: int64 [S], ascending. log_weights: float32 [S], w above. masked: int64 ascending
    ``t * S + j``, the negatives j that are the item of pair t.
    """

    items: Tensor
    log_weights: Tensor
    masked: Tensor


def shared_items(negatives: Int64, positives: Int64, catalog: int) -> SharedItems:
    """The negatives of a batch for a micro-batch with these positives; catalog: N."""
    items, times = np.unique(negatives, return_counts=True)
    weights = np.log(times * (catalog / len(negatives))).astype(np.float32)
    pair = np.arange(len(positives) + 1)
    masked = masked_pairs(items, positives, pair[:-1], pair)
    return SharedItems(*map(torch.from_numpy, (items, weights, masked)))


def pair_softmax(
    user: Tensor, positive: Tensor, negatives: Tensor, shared: SharedItems, temperature: float
) -> Tensor:
    """The sum of the losses. user, positive: [B, D]. negatives: [S, D], of the shared items."""
    count = len(positive)
    rows = F.normalize(torch.cat([positive, negatives]))
    number = torch.arange(len(rows), device=rows.device)
    targets, sampled = number[:count], number[count:]
    x = F.normalize(user) / temperature
    return sampled_softmax(x, rows, targets, sampled, shared.log_weights, shared.masked)
