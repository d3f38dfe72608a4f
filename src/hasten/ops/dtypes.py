"""In which precision sums, softmaxes and losses are computed."""

from __future__ import annotations

import torch
from torch import Tensor


def wide(tensor: Tensor) -> torch.dtype:
    """float64 stays float64; everything else is accumulated in float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
