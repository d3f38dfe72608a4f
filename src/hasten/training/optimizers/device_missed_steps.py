"""The sums of :mod:`.missed_steps` on a GPU, where each step has the same operations and shapes.

The number of steps, the sums M_j and the step of each row are tensors of the device, so that a step
that is skipped there (``found_inf``) needs no synchronization, and a CUDA graph can hold the
update. The host only counts how many steps there can have been, to tell in advance when all rows
must be brought up to date. All rows take the same number of terms of the series.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hasten.training.optimizers.missed_steps import MissedSteps

#: numbers M_j of a step. Each costs a launch a step; with fewer, all rows are brought up to date
#: more often early in training (usual betas, 10: 12 times, after the 141st step never again)
_TERMS = {torch.float32: 10, torch.float64: 24}
#: steps whose sums are kept; after as many, all rows are brought up to date
_STEPS = 4096


class DeviceMissedSteps:
    """M_j of the steps after ``start_step``, at which every row was up to date.

    taken: float32 scalar on the device, the number of steps taken; the fused Adam increments it.
    """

    def __init__(
        self, betas: tuple[float, float], eps: float, dtype: torch.dtype, taken: Tensor
    ) -> None:
        self.eps, self.dtype, self.taken = eps, dtype, taken
        self.planned = MissedSteps(betas, eps, dtype, _TERMS[dtype])
        window = self.planned.window
        beta1, beta2 = betas
        device, exact = taken.device, torch.float64
        age = torch.arange(window, 0, -1, dtype=exact)
        self._earlier = (age - 1).to(device)
        self._falls = (beta2 ** ((age - 1) / 2)).to(device)
        self._first_moments = (beta1**age)[:, None].to(device)
        self._powers = torch.arange(self.planned.terms, dtype=exact).to(device)
        self._window = torch.arange(window).to(device)
        self._betas = torch.tensor(betas, dtype=exact)[:, None].to(device)
        self.start_step = torch.zeros_like(taken)
        #: row n + window - 1: d, then M_0, M_1, ... of rows last updated at step start_step + n.
        #: The rows before are those of steps before start_step, which none reads
        self._sums = torch.zeros(_STEPS + window, 1 + self.planned.terms, dtype=exact).to(device)

    @property
    def last_step(self) -> int:
        """The number of steps taken. Synchronizes with the device."""
        return int(self.taken)

    @property
    def pending(self) -> bool:
        """Whether a step was taken after ``start_step``, as far as the host knows."""
        return self.planned.last_step > self.planned.start_step

    def plan(self, lr: float) -> bool:
        """Count a step that may be taken. False: call :meth:`begin` first, all rows up to date.

        Steps that were skipped are counted too: fewer steps need no more sums, and what the terms
        leave out is then estimated from a later step than the device's.
        """
        full = self.planned.last_step - self.planned.start_step >= _STEPS - 1
        return not full and self.planned.add(lr)

    def begin(self, step: int | None = None) -> None:
        """Start after this step (None: the last), at which every row is up to date."""
        if step is not None:
            self.taken.fill_(step)
        self.planned.begin(self.planned.last_step if step is None else step)
        self.start_step.copy_(self.taken)
        self._sums.zero_()

    def add(self, lr: Tensor, found_inf: Tensor | None) -> None:
        """Record the step that Adam has just taken, or skipped where ``found_inf`` is 1."""
        beta1, beta2 = self.planned.betas
        step = self.taken.double() if found_inf is None else self.taken.double() + found_inf
        root = (1 - beta2 ** (step - self._earlier).clamp_(min=1)).sqrt_()
        fallen = 1 - self._falls * root / root[-1]
        scale = lr / (1 - beta1**step)
        if found_inf is not None:
            scale = torch.addcmul(scale, scale, found_inf.double(), value=-1)
        added = fallen[:, None] ** self._powers * self._first_moments * scale
        rows = (step - 1 - self.start_step).long() + self._window
        self._sums[:, 1:].index_add_(0, rows, added)
        self._sums[:, 0].index_copy_(0, rows[-1:], math.sqrt(beta2) / root[-1:])

    def catch_up(self, updated_to: Tensor, weight: Tensor, moments: Tensor) -> None:
        """Apply all missed steps to rows, in place.

        updated_to: float32 [S], the last step applied to each row. weight: [S, D]. moments:
        [2, S, D].
        """
        rows = (updated_to - (self.start_step - (self.planned.window - 1))).long()
        lead, *sums = torch.split(self._sums.index_select(0, rows).to(self.dtype), 1, 1)
        falls = (self._betas ** (self.taken - updated_to)).to(self.dtype)
        scaled = moments[1].sqrt().mul_(lead)
        below = scaled + self.eps
        share = scaled.div_(below)
        total = sums[-1]
        for term in reversed(sums[:-1]):
            total = torch.addcmul(term, total, share)
        weight.sub_((moments[0] * total).div_(below))
        moments.mul_(falls[:, :, None])

    def sums(self) -> Tensor:
        """The sums of all steps, those of the host before those of the device: float64 [n, ...]."""
        planned, begin = self.planned.sums(), self.planned.window - 1
        return torch.cat([planned, self._sums[begin : begin + len(planned)].cpu()], 1)

    def reads(self, sums: Tensor) -> bool:
        """Whether :meth:`load` takes these, of as many terms."""
        return sums.shape[1] == 3 + 2 * self.planned.terms and len(sums) < _STEPS

    def load(self, last: int, first: int, planned: int, sums: Tensor) -> None:
        """The inverse of :meth:`sums`: last_step, start_step, planned.last_step."""
        self.begin(first)
        self.taken.fill_(last)
        begin, columns = self.planned.window - 1, 2 + self.planned.terms
        self.planned.load(planned, sums[:, :columns])
        self._sums[begin : begin + len(sums)].copy_(sums[:, columns:])
