"""Exact influence of any model with per-example losses, by forward-mode differentiation.

The inner products of one test gradient v with the gradients of all training examples are the
directional derivative of the vector of training losses in the direction v: one Jacobian-vector
product, as cheap as a few forward passes. For many tests the gradients of a block of training
examples are written out instead, once for all tests, and multiplied with those of the tests.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from hasten.errors import UsageError
from hasten.influence.example_blocks import MemorySizes, cut
from hasten.influence.losses import EventLosses, TripleLosses
from hasten.models.interface import ExampleLosses

#: most tests for which a pass for each costs less than the gradients of the training examples
_TESTS = 16
#: examples whose gradients are written out together: each is a backward pass through all of them
_TOGETHER = 4

Weights = dict[str, Tensor]


class _Losses(nn.Module):
    """The losses of some terms as the output of a module."""

    def __init__(self, model: ExampleLosses) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Any, positions: Tensor) -> Tensor:
        return self.model.example_losses(batch).index_select(0, positions)


@contextmanager
def _function_transforms() -> Iterator[None]:
    """Within this context PyTorch's function transforms support attention.

    Raises UsageError if a model's operations do not support the transforms.
    """
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.func's own torch.jit
        try:
            yield
        except RuntimeError as error:
            raise UsageError(
                "example_losses of this model cannot be differentiated in forward mode; use "
                f"PyTorch's own operations in it ({error})"
            ) from error


class AutogradSource:
    """Inner products by automatic differentiation of :meth:`ExampleLosses.example_losses`."""

    def __init__(self, model: ExampleLosses, examples: TripleLosses | EventLosses) -> None:
        self.examples, self.losses = examples, _Losses(model)
        self.directions = len(examples.terms_of)

    def sizes(self) -> MemorySizes:
        # self-influence writes out the gradients of a block too
        weights = sum(weight.numel() for weight in self._weights().values())
        return MemorySizes(weights + self.examples.terms, weights, 1)

    def gradients(self, start: int, stop: int, rows: int) -> Weights:
        """[T, ...] for every parameter."""
        return self._joined(self.examples.test_batch, start, stop, self.directions)

    def products(self, gradients: Weights, start: int, stop: int) -> Tensor:
        if len(next(iter(gradients.values()))) > _TESTS:
            block = self._joined(self._terms, start, stop, 1)
            products = torch.zeros(())
            for name, grads in gradients.items():
                products = products + grads.flatten(1) @ block[name].flatten(1).T
            return products
        batch, positions = self._terms(start, stop)
        weights = self._weights()

        def losses(weights: Weights) -> Any:
            return functional_call(self.losses, weights, (batch, positions))

        def derivatives(direction: Weights) -> Any:
            return jvp(losses, (weights,), (direction,))[1]

        with _function_transforms():
            return vmap(derivatives)(gradients)  # type: ignore[no-any-return]

    def norms(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        def batch(start: int, stop: int) -> tuple[Any, Tensor]:
            terms = self.examples.terms_of[:, start:stop].flatten()
            return self.examples.batch_of(terms.cpu().numpy())

        grads = self._joined(batch, start, stop, self.directions)
        norms = sum(grad.flatten(1).square().sum(1) for grad in grads.values())
        assert isinstance(norms, Tensor)
        return torch.arange(start, stop, device=norms.device), norms

    def _terms(self, start: int, stop: int) -> tuple[Any, Tensor]:
        return self.examples.batch_of(np.arange(start, stop))

    def _joined(
        self, batch: Callable[[int, int], tuple[Any, Tensor]], start: int, stop: int, terms: int
    ) -> Weights:
        """[stop - start, ...] for every parameter: the gradients of some examples.

        batch: the terms of some of them. terms: of each example.
        """
        parts = [
            self._gradients(*batch(start + a, start + b), terms)
            for a, b in cut(stop - start, _TOGETHER)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _gradients(self, batch: Any, positions: Tensor, terms: int) -> Weights:
        """[p, ...] for every parameter: the gradients of p examples, summed over their terms."""

        def losses(weights: Weights) -> Tensor:
            values: Tensor = functional_call(self.losses, weights, (batch, positions))
            return values.view(terms, -1).sum(0)

        with _function_transforms():
            values, backward = vjp(losses, self._weights())[:2]
            every = torch.eye(len(values), dtype=values.dtype, device=values.device)
            gradients: Weights = vmap(lambda one: backward(one)[0])(every)
        return gradients

    def _weights(self) -> Weights:
        return {
            name: weight.detach()
            for name, weight in self.losses.named_parameters()
            if weight.requires_grad
        }
