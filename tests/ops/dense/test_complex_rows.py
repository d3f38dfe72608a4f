"""Products and moduli of complex rows against PyTorch's complex numbers, forward and backward."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp, vjp, vmap

from hasten.ops.dense.complex_rows import complex_product, cubed_moduli


def _complex(rows: Tensor, conjugate: bool = False) -> Tensor:
    real, imaginary = rows.chunk(2, dim=1)
    return torch.complex(real, -imaginary if conjugate else imaginary)


def _rows(values: Tensor) -> Tensor:
    return torch.cat([values.real, values.imag], dim=1)


def _expected(left: Tensor, right: Tensor, conjugate: bool) -> Tensor:
    return _rows(_complex(left, conjugate) * _complex(right))


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", [(5, 8), (1, 2), (0, 4)])
def test_a_product_is_that_of_complex_numbers(shape: tuple[int, int], conjugate: bool) -> None:
    left, right = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    product, expected = complex_product(left, right, conjugate), _expected(left, right, conjugate)
    torch.testing.assert_close(product, expected)
    grad = torch.randn_like(product)
    found, wanted = (
        torch.autograd.grad(result, (left, right), grad) for result in (product, expected)
    )
    torch.testing.assert_close(found, wanted)


def test_cubed_moduli_are_those_of_complex_numbers() -> None:
    rows = torch.randn(6, 10, dtype=torch.float64, requires_grad=True)
    cubes, expected = cubed_moduli(rows), _complex(rows).abs().pow(3).sum(1)
    torch.testing.assert_close(cubes, expected)
    grad = torch.randn_like(cubes)
    (found,), (wanted,) = (
        torch.autograd.grad(result, (rows,), grad) for result in (cubes, expected)
    )
    torch.testing.assert_close(found, wanted)


def test_the_gradient_of_a_zero_is_zero() -> None:
    rows = torch.zeros(2, 4, requires_grad=True)
    torch.autograd.backward([cubed_moduli(rows).sum()])
    assert rows.grad is not None
    assert rows.grad.abs().sum() == 0


def test_second_derivatives_are_right() -> None:
    left, right = (torch.randn(2, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradgradcheck(cubed_moduli, (left,))
    assert torch.autograd.gradgradcheck(complex_product, (left, right, True))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")
def test_function_transforms_give_the_same() -> None:
    left, right = torch.randn(2, 3, 4, dtype=torch.float64)
    directions = torch.randn(2, 5, 3, 4, dtype=torch.float64)

    def fast(left: Tensor, right: Tensor) -> Tensor:
        product = complex_product(complex_product(left, right), right, conjugate=True)
        return cubed_moduli(product)

    def plain(left: Tensor, right: Tensor) -> Tensor:
        product = _expected(_expected(left, right, False), right, True)
        return _complex(product).abs().pow(3).sum(1)

    def forward(function: Any) -> Any:
        return vmap(lambda a, b: jvp(function, (left, right), (a, b))[1])(*directions)

    def reverse(function: Any) -> Any:
        return vmap(vjp(function, left, right)[1])(torch.eye(3, dtype=torch.float64))

    torch.testing.assert_close(forward(fast), forward(plain))
    torch.testing.assert_close(reverse(fast), reverse(plain))


@pytest.mark.parametrize("conjugate", [False, True])
def test_a_compiled_product_is_the_same(conjugate: bool) -> None:
    def run(left: Tensor, right: Tensor) -> Tensor:
        return complex_product(left, right, conjugate)

    compiled = torch.compile(run, backend="aot_eager", fullgraph=True)
    left, right = (torch.randn(4, 6, requires_grad=True) for _ in range(2))
    product, expected = compiled(left, right), run(left, right)
    torch.testing.assert_close(product, expected)
    grad = torch.randn_like(expected)
    found, wanted = (
        torch.autograd.grad(result, (left, right), grad) for result in (product, expected)
    )
    torch.testing.assert_close(found, wanted)
