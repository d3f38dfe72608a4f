"""Row-wise Adam on a GPU: each step has the same operations and shapes, and waits for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.adam import PENDING
from hasten.training.optimizers.device_missed_steps import DeviceMissedSteps
from hasten.training.optimizers.joined_row_adam import JoinedRowAdam
from hasten.training.optimizers.row_adam import STEPS_ON_DEVICE, RowAdam

#: least rows of the table for each that is read. The operations on a row that is read move 10 times
#: the bytes that dense Adam moves for a row (counted on a CPU, width 64)
MIN_TABLE_TO_READ_RATIO = 16
#: elements that are updated at a time when all rows are brought up to date
_ELEMENTS = 1 << 24


class DeviceRowAdam(RowAdam):
    """:class:`.RowAdam` of a CUDA device.

    A step that is skipped (``found_inf``) writes the rows that it read too: they are up to date,
    and Adam has left them as they are.
    """

    def _allocate(self, options: TrainingOptions) -> None:
        self.moments = self.weight.new_zeros(2, *self.weight.shape, requires_grad=False)
        self.first, self.second = self.moments.unbind()
        #: float32, as Adam counts steps
        self.updated_to = torch.zeros(len(self.weight), device=self.weight.device)
        self.taken = torch.zeros((), device=self.weight.device)
        weight = self.weight
        self.steps = DeviceMissedSteps(options.betas, options.eps, weight.dtype, self.taken)

    @staticmethod
    def suits(table: TableRows, options: TrainingOptions) -> bool:
        """Whether the result is that of dense Adam, and the phase reads the table by rows."""
        reads_few_rows = MIN_TABLE_TO_READ_RATIO * min(table.expected_rows, len(table)) <= len(
            table
        )
        return table.on_device is not None and RowAdam.is_exact(options) and reads_few_rows

    @property
    def pending(self) -> bool:
        return self.steps.pending

    def set_rate(self, rate: float) -> None:
        super().set_rate(rate)
        if not self.steps.plan(rate):
            self.flush()
            self.steps.plan(rate)

    @torch.no_grad()
    def gather_rows(self, batch: Batch) -> Tensor:
        self._restore_table()
        assert self.table.on_device is not None
        self._ids = self.table.on_device(batch)
        weight = self.weight.index_select(0, self._ids)
        self._moments = self.moments.index_select(1, self._ids)
        self.steps.catch_up(self.updated_to.index_select(0, self._ids), weight, self._moments)
        leaf = weight.requires_grad_()
        first, second = self._moments.unbind()
        self.state[leaf] = {"step": self.taken, "exp_avg": first, "exp_avg_sq": second}
        self.parameters[self._number] = leaf
        return leaf

    @torch.no_grad()
    def _write_back(self, _arguments: Any, _named: Any) -> None:
        leaf = self.parameters[self._number]
        if not self._restore_table():
            return
        self.steps.add(self.param_groups[0]["lr"], self.found_inf)
        self.weight.index_copy_(0, self._ids, leaf)
        self.moments.index_copy_(1, self._ids, self._moments)
        self.updated_to.index_copy_(0, self._ids, self.taken.expand(len(leaf)))

    @torch.no_grad()
    def flush(self) -> None:
        if self.pending:
            self._catch_up_all(self.weight, self.first, self.second)
            self.updated_to.copy_(self.taken)
        self.steps.begin()

    def _catch_up_all(self, weight: Tensor, first: Tensor, second: Tensor) -> None:
        step = max(1, _ELEMENTS // max(1, weight.shape[1]))
        for start in range(0, len(weight), step):
            part = slice(start, start + step)
            moments = torch.stack([first[part], second[part]])
            self.steps.catch_up(self.updated_to[part], weight[part], moments)
            first[part], second[part] = moments.unbind()

    def _further_fields(self) -> dict[str, Tensor]:
        steps = [int(self.steps.start_step), self.steps.planned.last_step]
        return {STEPS_ON_DEVICE: torch.tensor(steps)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        super().load(tensors)
        steps = tensors.get(f"{self._number}.{STEPS_ON_DEVICE}")
        if steps is not None and not self.pending:
            self.steps.planned.begin(int(steps[1]))

    @property
    def _last_step(self) -> int:
        return self.steps.last_step

    def _sums(self) -> Tensor:
        return self.steps.sums()

    def _begin(self, step: int) -> None:
        self.steps.begin(step)

    def _reads(self, state: Mapping[str, Tensor]) -> bool:
        return STEPS_ON_DEVICE in state and self.steps.reads(state[f"{PENDING}sums"])

    def _load_missed(self, last: int, state: Mapping[str, Tensor]) -> None:
        first, planned = state[STEPS_ON_DEVICE].tolist()
        self.steps.load(last, first, planned, state[f"{PENDING}sums"])


class DeviceJoinedRowAdam(DeviceRowAdam, JoinedRowAdam):
    """:class:`.JoinedRowAdam` of a CUDA device."""
