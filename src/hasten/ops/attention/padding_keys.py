"""Causal self-attention that also attends to padding before short sequences.

Some code pads every sequence on the left to ``max_length`` with zero vectors and does not mask
them as keys. Without a bias of the keys, the logit of such a key is 0 and its value, less the bias
that all values share, is 0 too. The n = max_length - length padded positions of a sequence are
therefore one key of zeros whose logit is log n. Dropout acts on that one key, not on each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.ops.buckets import Bucket


def attention_with_padding_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Tensor,
    buckets: Sequence[Bucket],
    heads: int,
    max_length: int,
    drop: float,
) -> Tensor:
    """Attention output [T, D] of flat tokens.

    query, key, value: [T, D]; positions: int64 [T], distance to the end of the sequence; buckets:
    cover all T tokens; drop: dropout probability of the attention weights.
    """
    width, parts = query.shape[1], []
    for bucket in buckets:
        span = slice(bucket.start, bucket.stop)
        shape = (bucket.rows, bucket.length, heads, width // heads)
        q, k, v = (x[span].view(shape).transpose(1, 2) for x in (query, key, value))
        padded = max_length - 1 - positions[span].view(bucket.rows, bucket.length)[:, 0]
        visible = q.new_full((bucket.length, bucket.length), -torch.inf).triu(1)
        bias = torch.cat(
            [
                padded.to(q.dtype).log()[:, None, None].expand(-1, bucket.length, 1),
                visible.expand(bucket.rows, -1, -1),
            ],
            dim=2,
        )
        k, v = (F.pad(x, (0, 0, 1, 0)) for x in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, bias[:, None], dropout_p=drop)
        parts.append(attended.transpose(1, 2).reshape(-1, width))
    return torch.cat(parts)
