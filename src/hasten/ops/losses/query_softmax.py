"""The loss ``sampled-softmax`` of queries with several answers each.

``sum_a [ log(sum_a' exp(s_a') + sum_j exp(l_j)) - s_a ]`` over the answers a of a query. All
answers a' count exactly; j are sampled candidates that are no answers of the query. l_j is a score
plus log(times drawn / times expected), the logQ correction (Bengio & Senécal 2008), so that the sum
over j estimates the sum over all other candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor


def query_softmax(
    logits: Tensor, scores: Tensor, query: Tensor, weight: Tensor | None = None
) -> Tensor:
    """[B] the losses of the queries.

    logits: [B, S], l above; -inf: the candidate is left out. scores: [P], s above. query: int64
    [P], the row of each answer; every row has one or more. weight: [P], 0 for padding; None: there
    is none.
    """
    counts = torch.ones_like(scores) if weight is None else weight.to(scores.dtype)
    exponents = scores.masked_fill(counts == 0, -torch.inf)
    with torch.no_grad():  # the loss does not depend on it: the largest exponent becomes 0
        high = logits.amax(1).scatter_reduce(0, query, exponents, "amax")
    sums = scores.new_zeros(3, len(logits))
    answers = torch.stack([(exponents - high[query]).exp(), scores * counts, counts])
    exponentials, of_answers, count = sums.index_add(1, query, answers).unbind()
    total = exponentials + (logits - high[:, None]).exp().sum(1)
    return count * (total.log() + high) - of_answers
