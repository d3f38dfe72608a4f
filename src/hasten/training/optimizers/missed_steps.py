"""Apply all Adam steps that a row missed (zero gradient) in one closed form.

Adam updates every element at every step, even if the gradient is zero. With the moments m and v of
step a and no gradient since, step s subtracts

    c_s m / (d_s √v + ε),   c_s = lr_s β1^(s−a) / (1 − β1^s),   d_s = β2^((s−a)/2) / √(1 − β2^s).

With d the first d_s, x_s = 1 − d_s/d (in [0, 1), because d_s decreases) and u = d√v / (d√v + ε) (in
[0, 1)),

    c_s m / (d_s √v + ε) = m / (d√v + ε) · c_s / (1 − u x_s) = m / (d√v + ε) · c_s Σ_j u^j x_s^j,

so the steps a+1 ... t together subtract ``m / (d√v + ε) · Σ_j u^j M_j`` with numbers
``M_j = Σ_s c_s x_s^j`` that are the same for all elements last updated at step a. All terms are
positive; those after the J-th are at most ``M_{J+1} / ((1 − x_t) M_0)`` of the whole, for any v and
ε. With β2 = 0.999, x grows by some 5e-4 per step while c shrinks by a tenth: five terms are
accurate to float32. ``M_j`` are updated with every step, for any learning rates.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: most numbers M_j kept for a step; many are needed early in training, where d_s falls fast. Twice
#: as many are kept if it falls fast throughout
_TERMS = {torch.float32: 25, torch.float64: 49}
#: beta2 below which d_s falls fast
_FAST = 0.99
#: largest share of the terms that are left out
_SMALLEST = {torch.float32: 2.0**-27, torch.float64: 2.0**-54}
#: bits of precision: smaller contributions of a missed step are ignored
_BITS = {torch.float32: 34, torch.float64: 60}
#: elements per piece: few calls, and its buffers stay in cache
_ELEMENTS = 1 << 17

Array = npt.NDArray[np.float64]


class MissedSteps:
    """The numbers M_j of the steps after ``start_step``, at which every row was up to date."""

    def __init__(
        self,
        betas: tuple[float, float],
        eps: float,
        dtype: torch.dtype,
        terms: int | None = None,
    ) -> None:
        """terms: the most numbers M_j of a step; None: as many as steps on a CPU may need."""
        self.betas, self.eps, self.dtype = betas, eps, dtype
        self.terms = terms or _TERMS[dtype] * (2 if betas[1] < _FAST else 1)
        falls = betas[0] / math.sqrt(betas[1])
        assert falls < 1, "Adam's first moment must fall faster than the root of the second"
        bits = _BITS[dtype] * math.log(2)
        #: number of past steps whose sums a further step still changes
        self.window = 1 + (math.ceil(bits / -math.log(falls)) if falls > 0 else 0)
        self.begin(0)

    def begin(self, step: int) -> None:
        """Start after this step, at which every row is up to date."""
        self.start_step = self.last_step = step
        # column n, for rows last updated at step start_step + n: d, then M_0, M_1, ...
        self._sums = np.zeros((1 + self.terms, 64))
        #: how many of the M each column needs
        self._terms = np.ones(64, np.int64)

    def add(self, lr: float) -> bool:
        """Record a further step. False, and nothing recorded, if the sums would be inaccurate.

        Then update all rows and call :meth:`begin` first.
        """
        step = self.last_step + 1
        count, (beta1, beta2) = step - self.start_step, self.betas
        self._reserve(count + 1)
        moved = slice(max(0, count - self.window), count)
        behind = np.arange(moved.stop - moved.start, 0, -1, dtype=np.float64)
        scale = beta2 ** (behind / 2) / math.sqrt(1 - beta2**step)
        sums = self._sums[:, moved].copy()
        sums[0, -1] = scale[-1]
        fallen = 1 - scale / sums[0]
        added = lr * beta1**behind / (1 - beta1**step)
        for row in sums[1:]:
            np.add(row, added, out=row)
            added = added * fallen
        left = sums[2:] <= _SMALLEST[self.dtype] * (1 - fallen) * sums[1]
        if not left[-1].all():
            return False
        self._sums[:, moved], self._terms[moved] = sums, 1 + left.argmax(0)
        self.last_step = step
        return True

    def _reserve(self, count: int) -> None:
        """Allocate memory for this many steps, and for the last one, which misses nothing."""
        while count >= self._sums.shape[1]:
            self._sums = np.concatenate([self._sums, np.zeros_like(self._sums)], 1)
            self._terms = np.concatenate([self._terms, np.ones_like(self._terms)])

    def catch_up(self, updated_to: Tensor, weight: Tensor, first: Tensor, second: Tensor) -> None:
        """Apply all missed steps to rows, in place.

        updated_to: int64 [S], the last step applied to each row. weight, first (m), second (v):
        [S, D].
        """
        place = (updated_to - self.start_step).numpy()
        terms = int(self._terms[place].max(initial=1))
        sums = torch.from_numpy(np.ascontiguousarray(self._sums[: 1 + terms].T[place]))
        behind = (self.last_step - updated_to).double()
        falls = torch.stack([beta**behind for beta in self.betas], 1)
        factors = torch.cat([sums, falls], 1).to(self.dtype)
        step = max(1, _ELEMENTS // max(1, weight.shape[1]))
        for start in range(0, len(updated_to), step):
            part = slice(start, start + step)
            self._move(factors[part], weight[part], first[part], second[part])

    def _move(self, factors: Tensor, weight: Tensor, m: Tensor, v: Tensor) -> None:
        if not self.betas[0]:  # no momentum: a missed step moves nothing
            v.mul_(factors[:, -1:])
            m.mul_(factors[:, -2:-1])
            return
        lead, *sums, fall1, fall2 = torch.split(factors, 1, 1)
        scaled = v.sqrt().mul_(lead)
        below = scaled + self.eps
        share = scaled.div_(below)
        total = sums[-1].expand_as(share)
        for term in reversed(sums[:-1]):
            total = torch.addcmul(term, total, share)
        weight.sub_(torch.mul(m, total).div_(below))
        m.mul_(fall1)
        v.mul_(fall2)

    def sums(self) -> Tensor:
        """The numbers of all steps, to continue exactly: float64 [steps, ...]."""
        count = self.last_step - self.start_step
        return torch.from_numpy(np.concatenate([self._sums, self._terms[None]])[:, :count].T.copy())

    def load(self, last: int, sums: Tensor) -> None:
        """The inverse of :meth:`sums`, after this many steps."""
        count = len(sums)
        self.begin(last - count)
        self._reserve(count)
        *columns, terms = sums.numpy().T
        self._sums[:, :count], self._terms[:count] = columns, terms
        self.last_step = last
