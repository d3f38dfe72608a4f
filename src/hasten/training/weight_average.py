"""The average of the weights over the last epochs: what a run is judged by and keeps.

Weights that follow noisy gradients with a large learning rate circle around what they are drawn to;
their average lies nearer to it (Polyak and Juditsky 1992, SIAM J. Control Optim. 30:838; for neural
networks Izmailov et al. 2018, UAI). Here it forgets exponentially: with N the steps of so many
epochs, every m-th step

    average += w (weights - average),   w = max(1 - exp(-m / N), 3 / (n + 3)),

n the number of times before, so that the first time it is the weights themselves and early on
leans on the latest of few. Training never reads it: the same steps are taken with and without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

#: times within the steps of so many epochs; each is a pass over all parameters
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
        """Whether the weights are to be taken in after so many steps."""
        return step % self.every == 0

    @torch.no_grad()
    def take(self) -> None:
        """Take the weights in as they are now; all rows of tables are up to date."""
        share = max(self.share, 3 / (self.times + 3))
        for name, average in self.averages.items():
            average.lerp_(self.weights[name], share)
        self.times += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the averages in this block, and its own weights again after it."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # in place, a tensor at a time: other things hold the model's memory (parts of parameters
        # that a process moves, compiled steps), and no third copy of all is needed
        for name, average in self.averages.items():
            weight = self.weights[name]
            held = weight.clone()
            weight.copy_(average)
            average.copy_(held)

    def of(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """These weights of the model by name, with the averages in place of those that have one."""
        held = {name: self.averages[first] for name, first in self.names.items()}
        return {**weights, **held}

    @torch.no_grad()
    def load(self, saved: Mapping[str, Tensor], times: int) -> None:
        """The inverse of :meth:`of`."""
        for name, average in self.averages.items():
            average.copy_(saved[name])
        self.times = times
