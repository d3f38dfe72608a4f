"""Binary cross-entropy of one positive against k sampled negatives, plain and generalised.

``sum_t [ beta * softplus(-s_t+) + sum_k softplus(s_tk-) ]`` with s = x · e.
beta = 1 is the usual BCE (Kang & McAuley 2018, equation 7, for k = 1). gBCE (Petrov & Macdonald
2023, equations 10-11) corrects the overconfidence of sampling with
beta = alpha (t (1 - 1/alpha) + 1/alpha), alpha = k / (N - 1), t in [0, 1].
softplus is computed in float32: stable for every score.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hasten.ops.dtypes import wide
from hasten.ops.table import Table

#: gathered negative rows held at once
CHUNK_BYTES = 64 << 20


def gbce_beta(negatives: int, count: int, calibration: float) -> float:
    """The power on the positive's probability: 1 at calibration 0, alpha at calibration 1."""
    alpha = negatives / (count - 1)
    return alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)


def sampled_loss(x: Tensor, rows: Tensor, beta: float = 1.0) -> Tensor:
    """Scalar sum over T rows: x [T, D] against rows [T, 1+k, D], the positive's row first."""
    scores = torch.einsum("td,tkd->tk", x, rows.to(x.dtype)).to(wide(x))
    return beta * F.softplus(-scores[:, 0]).sum() + F.softplus(scores[:, 1:]).sum()


def sampled_loss_from_table(x: Tensor, table: Table, ids: Tensor, beta: float = 1.0) -> Tensor:
    """The same from ids, int64 [T, 1+k], without ever holding all gathered rows.

    Past ``CHUNK_BYTES`` they are taken in chunks, and gathered again in the backward pass.
    """

    def part(x: Tensor, ids: Tensor) -> Tensor:
        return sampled_loss(x, table.rows(ids), beta)

    size = max(1, CHUNK_BYTES // (4 * ids.shape[1] * x.shape[1]))
    if size >= len(x):
        return part(x, ids)
    chunks = zip(torch.split(x, size), torch.split(ids, size), strict=True)
    return torch.stack([checkpoint(part, *chunk, use_reentrant=False) for chunk in chunks]).sum()


def sampled_loss_reference(
    x: Tensor, table: Tensor, positive: Tensor, negative: Tensor, beta: float = 1.0
) -> Tensor:
    """The same from the definition, on all N scores (for tests, in float64)."""
    scores = x @ table.T
    chosen = torch.sigmoid(scores.gather(1, positive[:, None])).pow(beta).log().sum()
    rejected = (1 - torch.sigmoid(scores.gather(1, negative))).log().sum()
    return -(chosen + rejected)
