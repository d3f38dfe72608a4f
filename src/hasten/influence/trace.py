"""TracIn over checkpoints: the influence of training examples on tests, and on themselves.

    TracInCP(z, z') = Σ_i η_i ∇ℓ(z; θ_i) · ∇ℓ(z'; θ_i)

over checkpoints θ_i with learning rates η_i (Pruthi et al. 2020, section 3.2). Training terms are
processed in blocks that do not depend on the number of processes. Each process computes its share
of the blocks, and the scores, zero elsewhere, are then summed: any number of processes gives the
same bytes. As many tests as fit into memory are processed at once; their gradients are computed
once per checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.errors import HastenError, UsageError
from hasten.influence.autograd import AutogradSource
from hasten.influence.example_blocks import cut
from hasten.influence.factored import FactoredSource
from hasten.ops.ranking.topk_all import topk_all
from hasten.runs.progress import Progress

#: inner products of the gradients of examples, under the model's current weights
Source = FactoredSource | AutogradSource


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint: its learning rate, and a function that loads its weights into the model.

    epoch, step: its position in the run.
    """

    name: str
    lr: float
    load: Callable[[], None]
    epoch: int = 0
    step: int = 0


@dataclass(frozen=True)
class Limits:
    """memory: bytes beside the weights; rows: terms per block, at most."""

    memory: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """How many tests a pass takes, and how many terms a block has."""

    tests: int
    rows: int

    @classmethod
    def within(cls, limits: Limits, source: Source) -> Plan:
        """Half of the memory for tests, half for blocks. Raises UsageError if it is too little."""
        sizes, examples = source.sizes(), source.examples
        item_bytes = examples.dtype.itemsize
        numbers = limits.memory // (2 * item_bytes)
        # the tests' own gradients are computed in blocks too
        rows = min(limits.rows, max(1, examples.terms), numbers // sizes.term)
        tests = min(examples.tests, numbers // (sizes.test + 2 * sizes.pair * max(rows, 1)))
        if rows < 1 or (examples.tests and tests < 1):
            least = 2 * item_bytes * max(sizes.term, sizes.test + 2 * sizes.pair)
            raise UsageError(
                f"--memory-budget: {limits.memory:,} bytes are too few for one test and one "
                f"training example at a time, which take about {least:,}"
            )
        return cls(tests, rows)


@dataclass(frozen=True)
class Best:
    """The k best training examples of each test.

    ids: int64 [T, k], -1 beyond the last; scores: [T, k].
    """

    ids: Tensor
    scores: Tensor


@torch.no_grad()
def trace(
    source: Source,
    checkpoints: Sequence[Checkpoint],
    *,
    topk: int,
    limits: Limits,
    processes: Processes,
    quiet: bool = True,
) -> tuple[Best, Best]:
    """Proponents and opponents of every test: the ``topk`` largest scores above 0, and below."""
    examples = source.examples
    plan = Plan.within(limits, source)
    blocks = examples.blocks(plan.rows)[processes.rank :: processes.world]
    passes = cut(examples.tests, plan.tests)
    best_lists: list[list[Best]] = [[], []]
    with Progress(len(passes), quiet or not processes.is_rank0, "pass") as progress:
        for number, (start, stop) in enumerate(passes):
            progress.start_epoch(number + 1, len(blocks) * len(checkpoints))
            scores = torch.zeros(
                stop - start, examples.terms, dtype=examples.dtype, device=examples.terms_of.device
            )
            for checkpoint in checkpoints:
                processes.activity = f"the influences at {checkpoint.name}"
                checkpoint.load()
                gradients: Any = source.gradients(start, stop, plan.rows)
                for first, last in blocks:
                    products = source.products(gradients, first, last)
                    scores[:, first:last].add_(products, alpha=checkpoint.lr)
                    progress.advance()
            processes.sum_(scores, "adding up the influences")
            require_finite(scores)
            for best, sign in zip(best_lists, (1, -1), strict=True):
                best.append(best_of(scores, examples.terms_of, topk, sign))
    proponents, opponents = (
        Best(torch.cat([p.ids for p in parts]), torch.cat([p.scores for p in parts]))
        for parts in best_lists
    )
    return proponents, opponents


@torch.no_grad()
def trace_self(
    source: Source,
    checkpoints: Sequence[Checkpoint],
    *,
    limits: Limits,
    processes: Processes,
    quiet: bool = True,
) -> Tensor:
    """[examples] the influence of every training example on itself: its gradient's squared norm."""
    examples = source.examples
    plan = Plan.within(limits, source)
    directions, count = examples.terms_of.shape
    # where an example is a term, the blocks of terms
    rows = max(1, plan.rows // directions)
    blocks = examples.blocks(rows) if directions == 1 else cut(count, rows)
    own_blocks = blocks[processes.rank :: processes.world]
    total = torch.zeros(count, dtype=examples.dtype, device=examples.terms_of.device)
    with Progress(1, quiet or not processes.is_rank0, "pass") as progress:
        progress.start_epoch(1, len(own_blocks) * len(checkpoints))
        for checkpoint in checkpoints:
            processes.activity = f"the influences at {checkpoint.name}"
            checkpoint.load()
            for start, stop in own_blocks:
                ids, norms = source.norms(start, stop)
                total.index_add_(0, ids, norms, alpha=checkpoint.lr)
                progress.advance()
    processes.sum_(total, "adding up the influences")
    require_finite(total)
    return total


class _Signed:
    """A scorer of training examples by their influence of one sign; -inf for the other sign."""

    def __init__(self, scores: Tensor, terms_of: Tensor, sign: int) -> None:
        self.scores, self.terms_of, self.sign = scores, terms_of, sign

    def block(self, start: int, stop: int) -> Tensor:
        total = self.scores.index_select(1, self.terms_of[0, start:stop])
        for terms in self.terms_of[1:, start:stop]:
            total += self.scores.index_select(1, terms)
        total = total.mul_(self.sign).to(torch.float32)
        return total.masked_fill_(total <= 0, -torch.inf)


def best_of(scores: Tensor, terms_of: Tensor, topk: int, sign: int) -> Best:
    """The best examples of one sign; equal scores in the order of the training part."""
    scorer = _Signed(scores, terms_of, sign)
    ids, _ = topk_all(scorer, len(scores), terms_of.shape[1], topk)
    total = torch.zeros(ids.shape, dtype=scores.dtype, device=scores.device)
    for terms in terms_of:
        total += scores.gather(1, terms[ids.clamp(min=0)])
    return Best(ids, total)


def require_finite(scores: Tensor) -> None:
    """Refuse influences of a diverged model."""
    if not bool(scores.isfinite().all()):
        raise HastenError(
            "the influences are not finite: the weights of a checkpoint are not, or their scores "
            "are too large for this precision (--precision fp64)"
        )
