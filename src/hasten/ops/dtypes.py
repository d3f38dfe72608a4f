"""The precision of sums, softmaxes and losses."""

from __future__ import annotations

import torch
from torch import Tensor


def accumulation_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of sums: float64 for float64, otherwise float32."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def upcast(tensor: Tensor) -> Tensor:
    """The tensor in its :func:`accumulation_dtype`: at least float32."""
    return tensor.to(accumulation_dtype(tensor))


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The dtype of a matrix product of this tensor: autocast's choice, or the tensor's own."""
    kind = tensor.device.type
    if torch.is_autocast_enabled(kind) and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype(kind)
    return tensor.dtype
