"""Adam of a table of which a step reads few rows: the dense one's result, without its passes.

Dense Adam reads and writes the table and two moments at every step, though its gradient is zero
but for the rows that the step read. Here a row that is not read stays as it is; when it is read
next, the steps it missed are made up for at once (:mod:`hasten.ops.missed_steps`): the same
numbers but for rounding. The phase's last step brings all rows up to date.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.optim.adam import adam

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch, TableRows
from hasten.ops.missed_steps import MissedSteps

#: the table's rows for one that is read: with fewer, dense passes cost less
FEWEST = 4
#: rows at a time where all are brought up to date
_ROWS = 1 << 13
_PENDING = "pending_"


class RowAdam:
    """The moments of a table's rows and the steps that each has missed.

    rows: the table, and which rows a step reads. Reading and moving are two calls, because
    gradients are made (and summed over processes) between them.
    """

    def __init__(self, rows: TableRows, options: TrainingOptions) -> None:
        self.rows, self.weight, self.options = rows, rows.weight, options
        self.first = torch.zeros_like(self.weight, requires_grad=False)
        self.second = torch.zeros_like(self.first)
        self.after = torch.zeros(len(self.weight), dtype=torch.int64)
        self.missed = MissedSteps(options.betas, options.eps, self.weight.dtype)
        self._ids = self.after[:0]
        self._read: tuple[Tensor, Tensor, Tensor] = (self.first[:0],) * 3

    @classmethod
    def of(cls, rows: TableRows | None, options: TrainingOptions) -> RowAdam | None:
        """Where it is the dense result and cheaper: few rows on a CPU, no weight decay."""
        if rows is None or rows.weight.device.type != "cpu":
            return None
        (beta1, beta2), count = options.betas, len(rows.weight)
        same = beta1**2 < 0.98 * beta2 and options.eps > 0 and options.weight_decay == 0
        few = FEWEST * min(rows.at_most, count) <= count
        return cls(rows, options) if same and few else None

    @property
    def pending(self) -> bool:
        """Whether rows have missed steps."""
        return self.missed.last > self.missed.first

    def read(self, batch: Batch) -> Tensor:
        """[S, D] the rows of a batch as they are now: a leaf that takes gradients."""
        ids = self.rows.read(batch)
        with torch.no_grad():
            weight, first, second = (
                table.index_select(0, ids) for table in (self.weight, self.first, self.second)
            )
            self.missed.catch_up(self.after.index_select(0, ids), weight, first, second)
        self._ids, self._read = ids, (weight, first, second)
        return weight.requires_grad_()

    @torch.no_grad()
    def move(self, lr: float) -> None:
        """The step of the rows that were read last, by the gradient of what was returned."""
        if not self.missed.add(lr):
            self.settle()
            self.missed.add(lr)
        weight, first, second = self._read
        assert weight.grad is not None
        steps = torch.tensor(float(self.missed.last - 1))
        beta1, beta2 = self.options.betas
        adam(
            [weight.detach()], [weight.grad], [first], [second], [], [steps],
            fused=True, amsgrad=False, beta1=beta1, beta2=beta2, lr=lr, weight_decay=0.0,
            eps=self.options.eps, maximize=False,
        )  # fmt: skip
        for table, rows in zip((self.weight, self.first, self.second), self._read, strict=True):
            table.index_copy_(0, self._ids, rows.detach())
        self.after[self._ids] = self.missed.last

    @torch.no_grad()
    def settle(self) -> None:
        """All rows up to date."""
        if self.pending:
            self._catch_up_all(self.weight, self.first, self.second)
            self.after.fill_(self.missed.last)
        self.missed.begin(self.missed.last)

    def _catch_up_all(self, weight: Tensor, first: Tensor, second: Tensor) -> None:
        for start in range(0, len(weight), _ROWS):
            part = slice(start, start + _ROWS)
            self.missed.catch_up(self.after[part], weight[part], first[part], second[part])

    @torch.no_grad()
    def tensors(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The weights, and a dense Adam's state; with what is pending, to go on bit for bit."""
        tables = {"weight": self.weight.detach(), "exp_avg": self.first, "exp_avg_sq": self.second}
        held: dict[str, Tensor] = {}
        if self.pending:
            held = {f"{_PENDING}{name}": table for name, table in tables.items()}
            held |= {f"{_PENDING}after": self.after, f"{_PENDING}sums": self.missed.sums()}
            tables = {name: table.clone() for name, table in tables.items()}
            self._catch_up_all(*tables.values())
        weight = tables.pop("weight")
        return weight, {**tables, "step": torch.tensor(float(self.missed.last)), **held}

    @torch.no_grad()
    def load(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`tensors`; the weights of a dense Adam are in place already."""
        last = int(state["step"])
        pending = f"{_PENDING}weight" in state
        prefix = _PENDING if pending else ""
        self.first.copy_(state[f"{prefix}exp_avg"])
        self.second.copy_(state[f"{prefix}exp_avg_sq"])
        if pending:
            self.weight.copy_(state[f"{_PENDING}weight"])
            self.after.copy_(state[f"{_PENDING}after"])
            self.missed.load(last, state[f"{_PENDING}sums"])
        else:
            self.after.fill_(last)
            self.missed.begin(last)


def of_dense(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a dense Adam takes of a state: all but what is pending."""
    return {name: value for name, value in state.items() if not name.startswith(_PENDING)}
