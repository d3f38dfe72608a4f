"""Samples of what enters and leaves every module in one forward and backward pass."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hasten.objectives.base import Batch
from hasten.ops.buckets import padded_like_bf16
from hasten.ops.dtypes import upcast
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

#: about how many elements of a tensor are compared, evenly spaced
_SAMPLED = 4096


@dataclass(frozen=True)
class Sample:
    """values: evenly spaced elements. finite: whether all elements of the tensor are."""

    values: Tensor
    finite: bool

    @classmethod
    def of(cls, tensor: Tensor) -> Sample:
        flat = tensor.detach().reshape(-1)
        stride = max(1, flat.numel() // _SAMPLED) | 1  # odd: all columns of a matrix are met
        return cls(upcast(flat[::stride].clone()), bool(flat.isfinite().all()))


Samples = dict[Any, Sample]


def deviation(full: Samples, low: Samples, least: float = 0.0) -> float:
    """The relative deviation of all samples together, in the 2-norm.

    Infinite if a tensor is not finite only in ``low``. Tensors that are not finite in ``full`` do
    not count. least: the smallest norm that the difference is compared with.
    """
    difference, norm = 0.0, least**2
    for name, expected in full.items():
        actual = low.get(name)
        if not expected.finite or actual is None or actual.values.shape != expected.values.shape:
            continue
        if not actual.finite:
            return math.inf
        difference += float((actual.values - expected.values).square().sum())
        norm += float(expected.values.square().sum())
    return math.sqrt(difference / norm) if norm > 0 else 0.0


@dataclass
class Call:
    """A call of a module: its floating-point inputs and outputs, and their gradients."""

    name: str
    entering: Samples = field(default_factory=dict)
    leaving: Samples = field(default_factory=dict)
    entering_gradients: Samples = field(default_factory=dict)
    leaving_gradients: Samples = field(default_factory=dict)
    finished: bool = False


class Recording:
    """One forward and backward pass over a batch, without an update.

    begun, finished: the calls in the order in which they begin and end. losses: the loss terms.
    gradients: of the parameters, by name.
    """

    def __init__(
        self, stepper: OptimizerStep, batch: Batch, model: nn.Module, precision: Precision
    ) -> None:
        self.begun: list[Call] = []
        self.finished: list[Call] = []
        self._handles: list[Any] = []
        original, stepper.precision = stepper.precision, precision
        device = stepper.device
        # hooks of modules inside of a compiled function are not called
        compiled = "torch._dynamo" in sys.modules
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        devices = [device] if device.type == "cuda" else []
        try:
            for name, module in model.named_modules():
                if module is not model:
                    begin, finish = partial(self._begin, name), partial(self._finish, name)
                    self._handles += [
                        module.register_forward_pre_hook(begin),
                        module.register_forward_hook(finish, with_kwargs=True),
                    ]
            with torch.random.fork_rng(devices), eager, padded_like_bf16():
                stepper.zero_grad()
                losses = stepper.accumulate(batch)
            self.losses: Samples = {name: Sample.of(value) for name, value in losses.items()}
            self.gradients = _gradients(stepper, model)
        finally:
            for handle in self._handles:
                handle.remove()
            stepper.precision = original
            stepper.zero_grad()

    def _begin(self, name: str, _module: nn.Module, _inputs: Any) -> None:
        self.begun.append(Call(name))

    def _finish(self, name: str, _module: nn.Module, inputs: Any, named: Any, output: Any) -> None:
        call = next(c for c in reversed(self.begun) if c.name == name and not c.finished)
        call.finished = True
        self.finished.append(call)
        self._keep((inputs, named), call.entering, call.entering_gradients)
        self._keep(output, call.leaving, call.leaving_gradients)

    def _keep(self, values: Any, samples: Samples, gradients: Samples) -> None:
        for number, tensor in enumerate(_tensors(values)):
            samples[number] = Sample.of(tensor)
            if tensor.requires_grad:

                def hook(gradient: Tensor, number: int = number) -> None:
                    gradients[number] = Sample.of(gradient)

                handle = tensor.register_hook(hook)  # type: ignore[no-untyped-call]
                self._handles.append(handle)


def _tensors(values: Any) -> Iterator[Tensor]:
    """The floating-point tensors in nested sequences and mappings."""
    if isinstance(values, Tensor):
        if values.is_floating_point():
            yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))


def _gradients(stepper: OptimizerStep, model: nn.Module) -> Samples:
    """The gradients by the names of the parameters; those of the rows that a batch reads."""
    parameters: Sequence[Tensor] = stepper.optimizer.parameters
    grads = {id(p): t.grad for p, t in zip(stepper.parameters, parameters, strict=True)}
    return {
        name: Sample.of(grad)
        for name, p in model.named_parameters()
        if (grad := grads.get(id(p), p.grad)) is not None
    }
