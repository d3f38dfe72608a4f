"""Exact influence of any model with per-example losses, by forward-mode differentiation.

The inner products of one test gradient v with the gradients of all training examples are the
directional derivative of the vector of training losses in the direction v: one Jacobian-vector
product, as cheap as a few forward passes. Gradients are written out for the tests only.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from hasten.errors import UsageError
from hasten.influence.losses import EventLosses, TripleLosses
from hasten.influence.sources import MemorySizes, cut
from hasten.models.interface import ExampleLosses

#: tests whose directional derivatives are computed together
_TESTS = 16

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
        parts = [
            self._gradients(*self.examples.test_batch(start + a, start + b))
            for a, b in cut(stop - start, max(1, rows // self.directions))
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def products(self, gradients: Weights, start: int, stop: int) -> Tensor:
        batch, positions = self.examples.batch_of(np.arange(start, stop))
        weights = self._weights()

        def losses(weights: Weights) -> Any:
            return functional_call(self.losses, weights, (batch, positions))

        def derivatives(direction: Weights) -> Any:
            return jvp(losses, (weights,), (direction,))[1]

        with _function_transforms():
            products: Tensor = vmap(derivatives, chunk_size=_TESTS)(gradients)
        return products

    def norms(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        terms = self.examples.terms_of[:, start:stop].flatten()
        grads = self._gradients(*self.examples.batch_of(terms.cpu().numpy()))
        norms = sum(grad.flatten(1).square().sum(1) for grad in grads.values())
        assert isinstance(norms, Tensor)
        return torch.arange(start, stop, device=norms.device), norms

    def _gradients(self, batch: Any, positions: Tensor) -> Weights:
        """[p, ...] for every parameter: the gradients of p examples, summed over their terms."""

        def losses(weights: Weights) -> Tensor:
            found: Tensor = functional_call(self.losses, weights, (batch, positions))
            return found.view(self.directions, -1).sum(0)

        with _function_transforms():
            values, backward = vjp(losses, self._weights())[:2]
            every = torch.eye(len(values), dtype=values.dtype, device=values.device)
            found: Weights = vmap(lambda one: backward(one)[0])(every)
        return found

    def _weights(self) -> Weights:
        return {
            name: weight.detach()
            for name, weight in self.losses.named_parameters()
            if weight.requires_grad
        }
