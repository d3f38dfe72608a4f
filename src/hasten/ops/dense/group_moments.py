"""Batch norm's running statistics, independent of the number of micro-batches and processes.

Batch norm uses the statistics of fixed groups of rows; a micro-batch or process holds whole groups.
The moments of all groups of an optimizer step are accumulated, summed over processes, and then
update the running means and variances once:

    running += momentum (weighted mean over groups of the group's moment - running)

with unbiased variances, as in torch. A skipped step changes nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.ops.dtypes import accumulation_dtype


class GroupMoments(nn.Module):
    """Running means and variances of C channels: buffers, saved with the weights."""

    mean: Tensor
    variance: Tensor
    gathered: Tensor

    def __init__(self, channels: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("variance", torch.ones(channels))
        self.register_buffer("gathered", torch.zeros(2 * channels + 1), persistent=False)

    def start(self) -> None:
        """Reset the moments of the step."""
        self.gathered.zero_()

    @torch.no_grad()
    def add(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Add a group of ``count`` values per channel; variance: biased, of these values."""
        unbiased = variance * (count / max(1, count - 1))
        one = mean.new_ones(1)
        self.gathered += count * torch.cat([mean, unbiased, one]).to(self.gathered.dtype)

    @torch.no_grad()
    def add_equal_groups(self, moments: Tensor, count: int) -> None:
        """Add groups of ``count`` values per channel; moments: of :func:`batch_norm`, [2, G·C]."""
        of_groups = moments.view(2, -1, len(self.mean))
        self.gathered[:-1].add_(of_groups.sum(1).view(-1), alpha=count)
        self.gathered[-1].add_(of_groups.shape[1] * count)

    @torch.no_grad()
    def update_running(self, finite: Tensor) -> None:
        """Update the running moments, unless the step was skipped or a moment is not finite."""
        moments = self.gathered[:-1] / self.gathered[-1]  # NaN if no group was added
        good = finite & ((moments * 0).sum() == 0)
        for running, moment in zip((self.mean, self.variance), moments.chunk(2), strict=True):
            running.lerp_(torch.where(good, moment, running), self.momentum)


def batch_norm(
    x: Tensor, eps: float, gain: Tensor | None = None, shift: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Batch norm of x [B, C, ...] as one kernel, and the moments [2, C] that it used.

    The moments are means and unbiased variances, float32 or wider, without gradient.
    """
    moments = torch.zeros(2, x.shape[1], dtype=accumulation_dtype(x), device=x.device)
    # with a momentum of 1 the running moments are those of x
    out = F.batch_norm(x, moments[0], moments[1], gain, shift, True, 1.0, eps)
    return out, moments


def normalize(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """[B, C] or [B, ..., C] with mean 0 and variance 1 by the given moments."""
    return (x - mean) * torch.rsqrt(variance + eps)
