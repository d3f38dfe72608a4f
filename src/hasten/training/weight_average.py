"""Exponential moving average of the weights, used for evaluation and saved as the model.

With a large learning rate and noisy gradients the weights oscillate around a minimum; their average
is closer to it (Polyak and Juditsky 1992, SIAM J. Control Optim. 30:838; for neural networks
Izmailov et al. 2018, UAI). With N the steps of the configured number of epochs, every m-th step

    average += w (weights - average),   w = max(1 - exp(-m / N), 3 / (n + 3)),

where n counts the earlier updates: the first update copies the weights, and early updates weight
recent values more. Training never reads the average.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

#: updates within N steps; each is a pass over all parameters
_TIMES = 20


class WeightAverage:
    """The averages of a model's parameters and of its saved buffers of floating point."""

    def __init__(self, model: nn.Module, epochs: float, steps_per_epoch: int) -> None:
        saved = model.state_dict(keep_vars=True)  # the tensors themselves, tied ones once
        self.weights: dict[str, Tensor] = {}
        #: name of a saved tensor -> name under which its average is held
        self.names: dict[str, str] = {}
        first: dict[int, str] = {}
        for name, tensor in saved.items():
            if tensor.is_floating_point():
                self.names[name] = first.setdefault(id(tensor), name)
                if self.names[name] == name:
                    self.weights[name] = tensor.detach()
        self.averages = {name: tensor.clone() for name, tensor in self.weights.items()}
        steps = epochs * steps_per_epoch
        self.every = max(1, min(steps_per_epoch, round(steps / _TIMES)))
        self.share = -math.expm1(-self.every / steps)
        self.times = 0

    def due(self, step: int) -> bool:
        """Whether to update the average after this step."""
        return step % self.every == 0

    @torch.no_grad()
    def update(self) -> None:
        """Update the average by the current weights; flush deferred row updates before."""
        share = max(self.share, 3 / (self.times + 3))
        for name, average in self.averages.items():
            average.lerp_(self.weights[name], share)
        self.times += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Swap the averages into the model for this block."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # in place, because compiled steps hold the memory; a tensor at a time, to save a third copy
        for name, average in self.averages.items():
            weight = self.weights[name]
            trained = weight.clone()
            weight.copy_(average)
            average.copy_(trained)

    def of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These weights by name, replaced by their averages where there is one."""
        averaged = {name: self.averages[first] for name, first in self.names.items()}
        return {**weights, **averaged}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Tensor], times: int) -> None:
        """The inverse of :meth:`of`."""
        for name, average in self.averages.items():
            average.copy_(saved[name])
        self.times = times
