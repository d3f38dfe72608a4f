"""The precision of sums, softmaxes and losses."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """float64 stays float64; everything else is accumulated in float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """What a matrix product of this tensor is computed in: autocast's choice, else its own."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return tensor.dtype
