"""The all-reduce of an optimizer step: gradients, losses and control flags in one flat buffer.

Because denominators are global, gradients of the shards are summed, not averaged. Losses are summed
with them, so every process has the losses of the global batch. Control flags
(:mod:`hasten.training.control_flags`) too, so all processes stop or save after the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.distributed.row_union import RowUnion
from hasten.distributed.touched_rows import put_rows


class GradientAllReduce:
    """Sum the gradients and losses of a step over processes, with the same bytes on all of them."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        #: of the rows that processes read, for phases whose steps sum these rows only
        self.union = RowUnion(processes)
        self._names: list[str] = []
        self._shapes: list[torch.Size] | None = None
        self._buffer = torch.empty(0, device=processes.device)
        self._count = self._gradients = 0
        self._tail = self._buffer
        self._views: list[Tensor] = []
        self._sums: list[Tensor] = []

    def __call__(
        self,
        parameters: Sequence[Tensor],
        losses: dict[str, Tensor],
        control_flags: Sequence[float],
        sums: Sequence[Tensor] = (),
        rows: Mapping[int, Tensor] = MappingProxyType({}),
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Sum gradients and ``sums`` (in place), losses and flags over all processes.

        parameters: of one dtype and device, the same shapes on all ranks; losses: scalars by
        name; a process without examples has none. A phase must use the same names in every step.
        rows: int64 [S] distinct, equal on all processes: the rows of a parameter outside of which
        its gradient is zero, by the parameter's number.
        Returns the losses and the summed flags [len(control_flags)].
        """
        if self.processes.world == 1:  # the only process of a launcher
            return losses, self.processes.sum_(torch.tensor(control_flags), "stop requests")
        if not self._names:  # the first step; again if it left no losses on any process
            self._names, self._shapes = self._agreed_names(losses), None
        names = self._names
        summed_of = [
            parameter.detach()[:1].expand(len(rows[n]), *parameter.shape[1:])
            if n in rows
            else parameter
            for n, parameter in enumerate(parameters)
        ]
        self._lay_out([*summed_of, *sums], len(parameters), len(names) + len(control_flags))
        assert set(losses) <= set(names), f"loss terms must not change: {set(losses) - set(names)}"
        grads = [
            parameter.grad.index_select(0, rows[n])
            if n in rows and parameter.grad is not None
            else parameter.grad
            for n, parameter in enumerate(parameters)
        ]
        copies = [
            (view, grad) for view, grad in zip(self._views, grads, strict=True) if grad is not None
        ]
        copies += zip(self._sums, sums, strict=True)
        if copies:  # a shard without examples has no gradients
            torch._foreach_copy_([view for view, _ in copies], [value for _, value in copies])
        for view, grad in zip(self._views, grads, strict=True):
            if grad is None:
                view.zero_()
        tail = self._tail
        zero = tail.new_zeros(())
        values = [losses[name].to(tail.dtype) if name in losses else zero for name in names]
        if values:
            tail[: len(names)].copy_(torch.stack(values))
        tail[len(names) :].zero_()
        for number, flag in enumerate(control_flags, len(names)):
            if flag:  # rarely: a fill does not make the host wait, a copy may
                tail[number].fill_(flag)
        self.processes.sum_(self._buffer[: self._count], "the sum of gradients")
        for n, (parameter, view) in enumerate(zip(parameters, self._views, strict=True)):
            if n in rows:
                put_rows(parameter, rows[n], view)
            else:
                parameter.grad = view
        summed = self._buffer[self._gradients : self._count].clone()
        *reduced, tail = torch.split(summed, [*(buffer.numel() for buffer in sums), len(tail)])
        for buffer, value in zip(sums, reduced, strict=True):
            buffer.copy_(value.view_as(buffer))
        return dict(zip(names, tail[: len(names)].unbind(), strict=True)), tail[len(names) :]

    def union_for_batches(self) -> RowUnion:
        """The union for a phase that reads the rows of all processes. A collective.

        For a device, :class:`.Prefetcher` calls it in a thread, beside the collectives of a step.
        """
        on_host = self.processes.device.type == "cpu"
        return self.union if on_host else RowUnion(self.processes, apart=True)

    def forget_loss_names(self) -> None:
        """Agree on the loss terms again, on all processes: one had none of its own in a step."""
        self._names = []

    def _agreed_names(self, losses: dict[str, Tensor]) -> list[str]:
        """The loss terms of all processes in one order."""
        names_by_rank = self.processes.gather(list(losses), "the names of loss terms")
        return list(dict.fromkeys(name for names in names_by_rank for name in names))

    def _lay_out(self, held: Sequence[Tensor], gradients: int, tail: int) -> None:
        """Divide the buffer into gradients, sums, losses and flags, if shapes have changed."""
        shapes = [tensor.shape for tensor in held]
        if shapes == self._shapes:
            return
        self._shapes = shapes
        sizes = [*(tensor.numel() for tensor in held), tail]
        self._count, self._gradients = sum(sizes), sum(sizes[:gradients])
        if self._count > len(self._buffer):
            kinds = {(tensor.dtype, tensor.device) for tensor in held[:gradients] or [self._buffer]}
            assert len(kinds) == 1, "one dtype and device per phase"
            ((dtype, device),) = kinds
            # the rows that a batch reads vary in number: leave room, to grow only once
            spare = self._count // 4 if len(self._buffer) else 0
            self._buffer = torch.empty(self._count + spare, dtype=dtype, device=device)
        *pieces, self._tail = torch.split(self._buffer[: self._count], sizes)
        views = [piece.view_as(tensor) for piece, tensor in zip(pieces, held, strict=True)]
        self._views, self._sums = views[:gradients], views[gradients:]
