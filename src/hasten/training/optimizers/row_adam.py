"""Adam with deferred updates for a table of which a step reads few rows.

Dense Adam reads and writes the table and both moments at every step, although the gradient is zero
except for the rows that the step reads. Here a row stays unchanged until it is read next; then all
updates it missed are applied at once (:mod:`.missed_steps`). The result is that of dense Adam
except for rounding. Call :meth:`RowAdam.flush` before other code reads the table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.adam import PENDING, PhaseAdam, fields_by_number
from hasten.training.optimizers.missed_steps import MissedSteps

#: the table must have at least so many times the rows that a step reads: else dense Adam is faster
MIN_TABLE_TO_READ_RATIO = 4
#: rows updated at a time by a flush
_ROWS = 1 << 13
#: checkpoint field that only :class:`.DeviceRowAdam`, the version for GPUs, writes
STEPS_ON_DEVICE = f"{PENDING}steps"
#: the fields of :meth:`RowAdam.tensors` that have one row per row of the table
ROW_FIELDS = (
    *("exp_avg", "exp_avg_sq"),
    *(f"{PENDING}{name}" for name in ("weight", "exp_avg", "exp_avg_sq", "after")),
)


class RowAdam(PhaseAdam):
    """Adam that updates only the rows of a table that the batch reads, and all other parameters.

    :meth:`gather_rows` replaces the table among the parameters by the rows, so gradients, norm and
    update are those of the rows. A hook after the step writes them back.
    """

    gathers = True

    def __init__(
        self, parameters: Sequence[Tensor], options: TrainingOptions, table: TableRows
    ) -> None:
        super().__init__(parameters, options)
        self.table, self.weight = table, table.weight
        self._number = next(n for n, p in enumerate(parameters) if p is self.weight)
        self._allocate(options)
        self._ids = self.updated_to[:0]
        self.register_step_post_hook(type(self)._write_back)

    def _allocate(self, options: TrainingOptions) -> None:
        """The moments of all rows, and what is known of the steps that they missed."""
        self.first = torch.zeros_like(self.weight, requires_grad=False)
        self.second = torch.zeros_like(self.first)
        #: the step up to which each row is updated
        self.updated_to = torch.zeros(len(self.weight), dtype=torch.int64)
        self.missed = MissedSteps(options.betas, options.eps, self.weight.dtype)

    @staticmethod
    def suits(table: TableRows, options: TrainingOptions) -> bool:
        """Whether the result is that of dense Adam and costs less: few rows a step."""
        reads_few_rows = MIN_TABLE_TO_READ_RATIO * min(table.expected_rows, len(table)) <= len(
            table
        )
        return RowAdam.is_exact(options) and reads_few_rows

    @staticmethod
    def is_exact(options: TrainingOptions) -> bool:
        """Whether the result is that of dense Adam: without weight decay, with usual betas."""
        beta1, beta2 = options.betas
        # missed updates shrink by beta1 / sqrt(beta2) a step: near 1 the closed form is inaccurate
        return beta1**2 < 0.98 * beta2 and options.eps > 0 and options.weight_decay == 0

    @property
    def pending(self) -> bool:
        """Whether rows have deferred updates."""
        return self.missed.last_step > self.missed.start_step

    def gather_rows(self, batch: Batch) -> Tensor:
        """[S, D] the rows of a batch, up to date: a leaf that receives gradients."""
        self._restore_table()
        ids = self.table.read(batch)
        with torch.no_grad():
            weight, first, second = (
                table.index_select(0, ids) for table in (self.weight, self.first, self.second)
            )
            self.missed.catch_up(self.updated_to.index_select(0, ids), weight, first, second)
        leaf = weight.requires_grad_()
        step = torch.tensor(float(self.missed.last_step))
        self.state[leaf] = {"step": step, "exp_avg": first, "exp_avg_sq": second}
        self._ids, self.parameters[self._number] = ids, leaf
        return leaf

    def skip_rows(self, batch: Batch) -> None:
        """Put zeros in the place of the rows of a batch, without allocating them.

        A process that ran out of memory takes part in the all-reduce with these.
        """
        self._restore_table()
        shape = (len(self.table.read(batch)), self.weight.shape[1])
        self.parameters[self._number] = self.weight.detach().new_zeros(()).expand(shape)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._restore_table()
        super().zero_grad(set_to_none)

    def _restore_table(self) -> dict[str, Tensor]:
        """Put the table back among the parameters. Returns the state of the rows that were read."""
        leaf = self.parameters[self._number]
        self.parameters[self._number] = self.weight
        return {} if leaf is self.weight else self.state.pop(leaf, {})

    @torch.no_grad()
    def _write_back(self, _arguments: Any, _named: Any) -> None:
        """Write the rows of the step that was taken into the table."""
        leaf = self.parameters[self._number]
        state = self._restore_table()
        if not state or (self.found_inf is not None and bool(self.found_inf)):
            return
        lr = self.param_groups[0]["lr"]
        if not self.missed.add(lr):  # the closed form would be inaccurate: begin again
            self.flush()
            self.missed.add(lr)
        rows = (leaf, state["exp_avg"], state["exp_avg_sq"])
        for table, values in zip((self.weight, self.first, self.second), rows, strict=True):
            table.index_copy_(0, self._ids, values)
        self.updated_to[self._ids] = self.missed.last_step

    @torch.no_grad()
    def flush(self) -> None:
        if self.pending:
            self._catch_up_all(self.weight, self.first, self.second)
            self.updated_to.fill_(self.missed.last_step)
        self.missed.begin(self.missed.last_step)

    def _catch_up_all(self, weight: Tensor, first: Tensor, second: Tensor) -> None:
        for start in range(0, len(weight), _ROWS):
            part = slice(start, start + _ROWS)
            self.missed.catch_up(self.updated_to[part], weight[part], first[part], second[part])

    @torch.no_grad()
    def tensors(self) -> tuple[dict[str, Tensor], dict[nn.Parameter, Tensor]]:
        """State and weights of dense Adam, and the deferred updates, to resume bit for bit."""
        self._restore_table()
        state, _ = super().tensors()
        tables = {"weight": self.weight.detach(), "exp_avg": self.first, "exp_avg_sq": self.second}
        # ``deferred``: the table without the deferred updates, and the sums needed to apply them; a
        # resumed run continues from these. ``tables``: with the updates applied, as dense Adam
        # would save them, for code that does not know RowAdam
        deferred: dict[str, Tensor] = {}
        if self.pending:
            deferred = {f"{PENDING}{name}": table for name, table in tables.items()}
            deferred |= {f"{PENDING}after": self.updated_to, f"{PENDING}sums": self._sums()}
            tables = {name: table.clone() for name, table in tables.items()}
            self._catch_up_all(*tables.values())
        weight = tables.pop("weight")
        fields = {**tables, "step": torch.tensor(float(self._last_step)), **deferred}
        fields |= self._further_fields()
        state.update({f"{self._number}.{name}": value for name, value in fields.items()})
        return state, {self.weight: weight}

    @torch.no_grad()
    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self._restore_table()
        own_prefix = f"{self._number}."
        super().load({n: value for n, value in tensors.items() if not n.startswith(own_prefix)})
        state = fields_by_number(tensors).get(self._number)
        if state is None:
            return
        last = int(state["step"])
        pending = f"{PENDING}weight" in state and self._reads(state)
        prefix = PENDING if pending else ""
        self.first.copy_(state[f"{prefix}exp_avg"])
        self.second.copy_(state[f"{prefix}exp_avg_sq"])
        if pending:
            self.weight.copy_(state[f"{PENDING}weight"])
            self.updated_to.copy_(state[f"{PENDING}after"])
            self._load_missed(last, state)
        else:
            self.updated_to.fill_(last)
            self._begin(last)

    @property
    def _last_step(self) -> int:
        """The number of steps taken."""
        return self.missed.last_step

    def _further_fields(self) -> dict[str, Tensor]:
        """Further checkpoint fields of a subclass."""
        return {}

    def _sums(self) -> Tensor:
        """What :meth:`_load_missed` needs of the missed steps."""
        return self.missed.sums()

    def _begin(self, step: int) -> None:
        """All rows are up to date after this step."""
        self.missed.begin(step)

    def _reads(self, state: Mapping[str, Tensor]) -> bool:
        """Whether this optimizer can apply the deferred updates of a checkpoint.

        If not, it begins with the weights of the checkpoint that have all updates.
        """
        return STEPS_ON_DEVICE not in state

    def _load_missed(self, last: int, state: Mapping[str, Tensor]) -> None:
        self.missed.load(last, state[f"{PENDING}sums"])
