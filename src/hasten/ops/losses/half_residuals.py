"""Residuals of a softmax or sigmoid as fp16 operands of a product.

fp16 rounds numbers below 6e-5 coarsely and loses those below 6e-8, as the probabilities of most
rows of a large catalogue are. The loss scale comes too late: it multiplies the product. So the
residuals are multiplied by a scale before they become fp16, and their products, which could
overflow in fp16, are summed and divided by it in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor


def residual_scale(dtype: torch.dtype, largest: float = 1.0) -> float:
    """The scale of residuals for operands of this type; largest: the greatest absolute value."""
    return 2.0**15 / max(1.0, largest) if dtype == torch.float16 else 1.0


def residual_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """``left @ right / scale``, one of them scaled; in float32 if they are fp16."""
    if left.dtype != torch.float16:
        return left @ right
    if left.device.type == "cuda":
        return torch.mm(left, right, out_dtype=torch.float32).div_(scale)
    return (left.float() @ right.float()).div_(scale)
