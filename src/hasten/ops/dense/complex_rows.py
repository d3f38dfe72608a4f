"""Products and moduli of complex vectors in rows [B, D]: real parts, then imaginary parts.

Each takes half of the passes over the rows of the same formula in PyTorch's operations: halves that
are joined are copied there, and so are the gradients of halves that were split.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def complex_product(left: Tensor, right: Tensor, conjugate: bool = False) -> Tensor:
    """[B, D] ``left * right``, or ``conj(left) * right``. D must be even."""
    if torch.compiler.is_compiling():  # which joins the passes itself, and cannot trace vmap rules
        sign = -1 if conjugate else 1
        (a, b), (c, d) = left.chunk(2, dim=1), right.chunk(2, dim=1)
        return torch.cat([a * c - sign * b * d, a * d + sign * b * c], dim=1)
    product: Tensor = _Product.apply(left, right, conjugate)  # type: ignore[no-untyped-call]
    return product


def cubed_moduli(rows: Tensor) -> Tensor:
    """[B] the sums of the cubed moduli of rows [B, D]. D must be even."""
    cubes: Tensor = _CubedModuli.apply(rows)  # type: ignore[no-untyped-call]
    return cubes


def _halves(rows: Tensor) -> Tensor:
    """[B, 2, D / 2]: a view."""
    return rows.view(rows.shape[0], 2, rows.shape[1] // 2)


def _squared_moduli(rows: Tensor) -> Tensor:
    """[B, D / 2] of rows [B, D]."""
    real, imaginary = rows.chunk(2, dim=1)
    return (real * real).add_(imaginary * imaginary)


def _multiply(left: Tensor, right: Tensor, conjugate: bool) -> Tensor:
    sign = -1 if conjugate else 1
    (a, b), (c, d) = left.chunk(2, dim=1), right.chunk(2, dim=1)
    product = _halves(right) * a[:, None]
    product[:, 0].addcmul_(b, d, value=-sign)
    product[:, 1].addcmul_(b, c, value=sign)
    return product.flatten(1)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(left: Tensor, right: Tensor, conjugate: bool) -> Tensor:
        return _multiply(left, right, conjugate)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, bool], _: Tensor) -> None:
        left, right, ctx.conjugate = inputs
        ctx.save_for_backward(left, right)
        ctx.save_for_forward(left, right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        # of l r: conj(r) g and conj(l) g; of conj(l) r: conj(g) r, because l is conjugated, and l g
        left, right = ctx.saved_tensors
        grad = grad.contiguous()
        first, second = (grad, right) if ctx.conjugate else (right, grad)
        of_left = complex_product(first, second, conjugate=True)
        return of_left, complex_product(left, grad, not ctx.conjugate), None

    @staticmethod
    def jvp(ctx: Any, of_left: Tensor, of_right: Tensor, _: None) -> Tensor:
        left, right = ctx.saved_tensors
        first = complex_product(of_left, right, ctx.conjugate)
        return first + complex_product(left, of_right, ctx.conjugate)

    @staticmethod
    def vmap(
        info: Any, places: Any, left: Tensor, right: Tensor, conjugate: bool
    ) -> tuple[Tensor, int]:
        every_left, every_right = (
            x.expand(info.batch_size, *x.shape) if place is None else x.movedim(place, 0)
            for x, place in zip((left, right), places[:2], strict=True)
        )
        product = complex_product(every_left.flatten(0, 1), every_right.flatten(0, 1), conjugate)
        return product.view(every_left.shape), 0


class _CubedModuli(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        squares = _squared_moduli(rows)
        return squares.mul_(squares.sqrt()).sum(1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], _: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # of |z|³: 3 |z| z
        (rows,) = ctx.saved_tensors
        # moduli kept by the forward pass would be constants in second derivatives
        factors = _squared_moduli(rows).sqrt() * (3 * grad)[:, None]
        grad_rows: Tensor = (_halves(rows) * factors[:, None]).flatten(1)
        return grad_rows

    @staticmethod
    def jvp(ctx: Any, of_rows: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        along = (_halves(rows) * _halves(of_rows)).sum(1)
        return (3 * _squared_moduli(rows).sqrt() * along).sum(1)
