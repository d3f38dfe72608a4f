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
    def update_running(self, finite: Tensor) -> None:
        """Update the running moments, unless the step was skipped or a moment is not finite."""
        total = self.gathered[-1]
        mean, variance = (self.gathered[:-1] / total.clamp(min=1)).chunk(2)
        good = finite & (total > 0) & self.gathered.isfinite().all()
        for running, moment in ((self.mean, mean), (self.variance, variance)):
            running.copy_(torch.where(good, running.lerp(moment, self.momentum), running))


def normalize(x: Tensor, mean: Tensor, variance: Tensor, eps: float) -> Tensor:
    """[B, C] or [B, ..., C] with mean 0 and variance 1 by the given moments."""
    return (x - mean) * torch.rsqrt(variance + eps)
