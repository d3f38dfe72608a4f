"""Hasten's command line with bf16 products taken in fp32 of the rounded numbers.

    python -m experiments.rounded train conve ... --precision bf16

On a CPU without bf16 instructions torch emulates these products, 5 to 240 times slower than fp32.
What a device with such instructions computes is the product of bf16 numbers, summed in fp32 and
rounded once; so is this, at the speed of fp32, up to the order of the sum. For experiments on what
bf16 does to quality; times mean nothing.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from hasten.cli.main import main as command

_KEPT: list[Any] = []


def round_products() -> None:
    """Replace the CPU's products of matrices, in forward and backward passes, from here on."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that they are replaced
        for name, function in (
            ("mm", _mm),
            ("bmm", _bmm),
            ("addmm", _addmm),
            ("baddbmm", _baddbmm),
        ):
            library.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
    _KEPT.append(library)  # replaced as long as it lives


def _wide(function: Callable[..., Tensor], *tensors: Tensor, **numbers: Any) -> Tensor:
    """In fp32 where they are bf16; ``out=`` is another operation, which is not replaced."""
    kind = tensors[-1].dtype
    if kind == torch.bfloat16:
        tensors = tuple(tensor.float() for tensor in tensors)
    # its shape is found by the operation
    return function(*tensors, **numbers, out=tensors[-1].new_empty(0)).to(kind)


def _mm(a: Tensor, b: Tensor) -> Tensor:
    return _wide(torch.mm, a, b)


def _bmm(a: Tensor, b: Tensor) -> Tensor:
    return _wide(torch.bmm, a, b)


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _wide(torch.addmm, c, a, b, beta=beta, alpha=alpha)


def _baddbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _wide(torch.baddbmm, c, a, b, beta=beta, alpha=alpha)


def main(arguments: list[str]) -> int:
    round_products()
    return command(arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
