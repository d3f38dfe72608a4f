"""Gradients with respect to the logits of a softmax or sigmoid, as fp16 operands of a product.

fp16 rounds numbers below 6e-5 coarsely and turns those below 6e-8 to zero. Most probabilities in a
softmax over a large catalog are that small. The loss scale does not help, because it is applied
only to the products of these numbers. So the residuals (gradients with respect to the logits) are
multiplied by a scale of their own before they are converted to fp16. Their products, which could
overflow in fp16, are summed in float32 and divided by the scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hasten.ops.dense.product import product, product_into


def residual_scale(dtype: torch.dtype, largest: float = 1.0) -> float:
    """The scale of residuals for operands of this type; largest: the greatest absolute value."""
    return 2.0**15 / max(1.0, largest) if dtype == torch.float16 else 1.0


def residual_product(left: Tensor, right: Tensor, scale: float) -> Tensor:
    """``left @ right / scale``: residuals that were scaled by ``scale``, times another matrix.

    In float32 if both are fp16, and for bf16 on a GPU; for other types than fp16 the scale is 1.
    """
    if _sums_in_float32(left):
        result = torch.mm(left, right, out_dtype=torch.float32)
    elif left.dtype == torch.float16:
        result = left.float() @ right.float()
    else:
        return left @ right
    return result if scale == 1 else result.div_(scale)


def _sums_in_float32(left: Tensor) -> bool:
    """Whether cuBLAS writes the product of operands of a lower precision in float32."""
    return left.device.type == "cuda" and left.dtype in (torch.float16, torch.bfloat16)


def accumulate_product(
    total: Tensor, left: Tensor, right: Tensor, scale: float, first: bool
) -> None:
    """Add left @ right / scale to total, accumulating in its dtype; ``first``: total is empty."""
    if left.dtype == total.dtype:
        torch.addmm(total, left, right, beta=0 if first else 1, out=total)
    elif first and total.dtype == torch.float32 and _sums_in_float32(left):
        torch.mm(left, right, out_dtype=torch.float32, out=total)
        if scale != 1:
            total.div_(scale)
    elif first:
        total.copy_(residual_product(left, right, scale))
    else:
        total += residual_product(left, right, scale)


def accumulate_rows(total: Tensor, left: Tensor, right: Tensor, scale: float, first: bool) -> None:
    """The same for the rows of total, without rows of padding that left may have at its end."""
    count = len(total)
    if count == len(left) and _sums_in_float32(left):
        accumulate_product(total, left, right, scale, first)
    elif not first:
        total += residual_product(left, right, scale)[:count]
    elif scale != 1:
        total.copy_(residual_product(left, right, scale)[:count])
    elif count < len(left):
        total.copy_(product(left, right)[:count])
    else:
        product_into(total, left, right)
