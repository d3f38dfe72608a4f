"""Sampled softmax over pairs of a user and an item, by cosine (``model.loss=softmax`` of LightGCN).

The loss of user u with item i is

    log(exp s(u, i) + sum_j exp(s(u, j) + w_j)) - s(u, i),    s(u, i) = cosine(u, i) / temperature

over items j ≠ i that all pairs share (Wu et al. 2024, On the effectiveness of sampled softmax loss
for item recommendation). w_j is the logQ correction (Bengio & Senécal 2008), which the paper does
not have: the sum estimates the sum over all items.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.losses.sampled_softmax import sampled_softmax


def pair_softmax(
    user: Tensor,
    positive: Tensor,
    negatives: Tensor,
    log_weights: Tensor,
    masked: Tensor,
    temperature: float,
) -> Tensor:
    """The sum of the losses of B pairs.

    user, positive: [B, D]. negatives: [S, D], of the items j. log_weights: [S], w above. masked:
    int64 ascending ``t * S + j``, the negatives j that are the item of pair t.
    """
    count = len(positive)
    rows = F.normalize(torch.cat([positive, negatives]))
    number = torch.arange(len(rows), device=rows.device)
    x = F.normalize(user) / temperature
    return sampled_softmax(x, rows, number[:count], number[count:], log_weights, masked)
