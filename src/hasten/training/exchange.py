"""The one all-reduce of an optimiser step: gradients, losses and wishes in one flat buffer.

Because denominators are global, gradients of the shares are summed, not averaged. Losses travel
along, so that every process knows those of the whole batch; and what each wishes to happen after
the step (stop, save), so that all do it after the same step.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hasten.training.distributed import Processes


class GradientExchange:
    """Sums what the processes computed of a step; afterwards all hold the same bytes."""

    def __init__(self, processes: Processes, parameters: Sequence[nn.Parameter]) -> None:
        self.processes = processes
        self.parameters = list(parameters)
        assert len({(p.dtype, p.device) for p in parameters}) == 1, "one dtype and device a phase"
        self._names: list[str] | None = None
        self._flat = torch.empty(0)
        self._views: list[Tensor] = []

    def __call__(
        self, losses: dict[str, Tensor], wishes: Sequence[float]
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Sum gradients (in place), losses and wishes over all processes.

        losses: scalars by name; a process without rows has none. A phase must name its terms alike
        in every step. Returns the losses and the wishes [len(wishes)].
        """
        names = self._agreed_names(losses, len(wishes))
        assert set(losses) <= set(names), f"loss terms must not change: {set(losses) - set(names)}"
        for parameter, view in zip(self.parameters, self._views, strict=True):
            if parameter.grad is None:
                view.zero_()
        pairs = [
            (view, parameter.grad)
            for parameter, view in zip(self.parameters, self._views, strict=True)
            if parameter.grad is not None
        ]
        if pairs:
            torch._foreach_copy_([view for view, _ in pairs], [grad for _, grad in pairs])
        tail = self._flat[-(len(names) + len(wishes)) :]
        zero = tail.new_zeros(())
        values = [losses[name].to(tail.dtype) if name in losses else zero for name in names]
        tail[: len(names)].copy_(torch.stack(values))
        tail[len(names) :].copy_(torch.tensor(wishes, dtype=tail.dtype), non_blocking=True)
        self.processes.sum_(self._flat, "the sum of gradients")
        for parameter, view in zip(self.parameters, self._views, strict=True):
            parameter.grad = view
        summed = tail.clone()
        return dict(zip(names, summed[: len(names)].unbind(), strict=True)), summed[len(names) :]

    def _agreed_names(self, losses: dict[str, Tensor], wishes: int) -> list[str]:
        """The loss terms of all processes in one order; the buffer is made with it, once."""
        if self._names is None:
            told = self.processes.gather(list(losses), "the names of loss terms")
            self._names = list(dict.fromkeys(name for names in told for name in names))
            first = self.parameters[0]
            sizes = [parameter.numel() for parameter in self.parameters]
            count = sum(sizes) + len(self._names) + wishes
            self._flat = torch.empty(count, dtype=first.dtype, device=first.device)
            pieces = torch.split(self._flat[: sum(sizes)], sizes)
            self._views = [
                piece.view_as(parameter)
                for piece, parameter in zip(pieces, self.parameters, strict=True)
            ]
        return self._names
