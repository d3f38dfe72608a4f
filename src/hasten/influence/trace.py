"""TracIn over checkpoints: influences of training examples on tests, and on themselves.

    TracInCP(z, z') = Σ_i η_i ∇ℓ(z; θ_i) · ∇ℓ(z'; θ_i)

over checkpoints θ_i with learning rates η_i (Pruthi et al. 2020, section 3.2). Training terms are
streamed in blocks that do not depend on the number of processes; each process takes its share of
them, and the scores are then added up, where all but one are zero: the same bytes on any number.
Tests are taken as many at once as the memory allows, and their factors are computed once for each
checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.distributed.processes import Processes
from hasten.errors import HastenError, UsageError
from hasten.influence.examples import Source, cut, stacked
from hasten.influence.factors import Arithmetic, Factors
from hasten.influence.products import products
from hasten.influence.sketch import Sketch
from hasten.ops.ranking.topk_all import topk_all
from hasten.runs.progress import Progress


@dataclass(frozen=True)
class Weighted:
    """A checkpoint: its learning rate, and how its weights get into the model."""

    name: str
    lr: float
    load: Callable[[], None]


@dataclass(frozen=True)
class Limits:
    """memory: bytes for what is held beside the weights; rows: terms in a block, at most."""

    memory: int
    rows: int


@dataclass(frozen=True)
class Plan:
    """How many tests are taken at once, and how many terms make a block."""

    tests: int
    rows: int

    @classmethod
    def within(cls, limits: Limits, source: Source, item_bytes: int, sketch: int | None) -> Plan:
        """Half of the memory for tests, half for blocks. Raises UsageError for too little.

        sketch: the numbers that stand for a gradient, if they are projected.
        """
        sizes = source.sizes()
        numbers = limits.memory // (2 * item_bytes)
        term = sizes.term + (0 if sketch is None else 8 * sketch)
        # a test's own factors are made in blocks too
        rows = min(limits.rows, max(1, source.terms), numbers // term)
        held = sizes.test if sketch is None else source.terms + sketch
        test = held + 2 * sizes.pair * max(rows, 1)
        tests = min(source.tests, numbers // test) if source.tests else 0
        if rows < 1 or (source.tests and tests < 1):
            least = 2 * item_bytes * max(term, held + 2 * sizes.pair)
            raise UsageError(
                f"--memory-budget: {limits.memory:,} bytes are too few for one test and one "
                f"training example at a time, which take about {least:,}"
            )
        return cls(tests, rows)


@dataclass(frozen=True)
class Best:
    """The k best of each test. ids: int64 [T, k], -1 beyond the last; scores: [T, k]."""

    ids: Tensor
    scores: Tensor


@torch.no_grad()
def trace(
    source: Source,
    checkpoints: Sequence[Weighted],
    *,
    topk: int,
    limits: Limits,
    arithmetic: Arithmetic,
    processes: Processes,
    quiet: bool = True,
    sketch: Sketch | None = None,
) -> tuple[Best, Best]:
    """Proponents and opponents of every test: the ``topk`` largest scores above 0, and below."""
    kind = source.dtype
    plan = Plan.within(limits, source, kind.itemsize, None if sketch is None else sketch.size)
    blocks = source.blocks(plan.rows)
    mine = [block for n, block in enumerate(blocks) if n % processes.world == processes.rank]
    passes = cut(source.tests, plan.tests)
    found: list[tuple[Best, Best]] = []
    with Progress(len(passes), quiet or not processes.first, "pass") as progress:
        for number, (start, stop) in enumerate(passes):
            progress.start_epoch(number + 1, len(mine) * len(checkpoints))
            shape = stop - start, source.terms
            scores = torch.zeros(shape, dtype=kind, device=source.members.device)
            for checkpoint in checkpoints:
                processes.place = f"the influences by {checkpoint.name}"
                checkpoint.load()
                test = _test(source, (start, stop), plan.rows, sketch)
                add_scores(scores, source, test, mine, checkpoint.lr, arithmetic, progress, sketch)
            processes.sum_(scores, "adding up the influences")
            require_finite(scores)
            found.append(
                (
                    best_of(scores, source.members, topk, 1),
                    best_of(scores, source.members, topk, -1),
                )
            )
    return _joined([each[0] for each in found]), _joined([each[1] for each in found])


def add_scores(
    scores: Tensor,
    source: Source,
    test: Factors | Tensor,
    blocks: Sequence[tuple[int, int]],
    weight: float,
    arithmetic: Arithmetic,
    progress: Progress,
    sketch: Sketch | None,
) -> None:
    """Add to [T, terms] the products of some tests, or their sketches, with these blocks."""
    directions = len(source.members)
    wanted = source.wanted(test) if isinstance(test, Factors) else None
    for start, stop in blocks:
        block = source.block(start, stop, wanted)
        if isinstance(test, Factors):
            found = products(test, block, arithmetic)
            found = found.view(directions, -1, stop - start).sum(0)
        else:
            assert sketch is not None
            found = arithmetic.product(test, sketch(block).T)
        scores[:, start:stop].add_(found, alpha=weight)
        progress.advance()


def _test(
    source: Source, tests: tuple[int, int], rows: int, sketch: Sketch | None
) -> Factors | Tensor:
    """The tests' factors, or their sketches [T, K] summed over the terms of each.

    Made a few tests at a time, because what is made on the way is larger than what is kept.
    """
    start, stop = tests
    parts = cut(stop - start, max(1, rows // len(source.members)))
    directions = len(source.members)
    if sketch is not None:
        made = [sketch(source.test(start + a, start + b)) for a, b in parts]
        return torch.cat([each.view(directions, -1, sketch.size).sum(0) for each in made])
    factors = [source.test(start + a, start + b).single() for a, b in parts]
    if len(factors) == 1:
        return factors[0]
    # each part has its first terms before its second: all first terms come first
    parted = [each.take(half) for each in factors for half in _halves(each, directions)]
    return stacked([*parted[::directions], *parted[1::directions]] if directions > 1 else parted)


def _halves(factors: Factors, directions: int) -> Sequence[Tensor]:
    return torch.arange(len(factors), device=factors.vectors.device).chunk(directions)


class _Signed:
    """Scores of training examples with one sign; -inf marks those of the other."""

    def __init__(self, scores: Tensor, members: Tensor, sign: int) -> None:
        self.scores, self.members, self.sign = scores, members, sign

    def block(self, start: int, stop: int) -> Tensor:
        found = _of_examples(self.scores, self.members[:, start:stop])
        found = found.mul_(self.sign).to(torch.float32)
        return found.masked_fill_(found <= 0, -torch.inf)


def _of_examples(scores: Tensor, members: Tensor) -> Tensor:
    """[T, p] the scores of examples from those of their terms."""
    total = scores.index_select(1, members[0])
    for terms in members[1:]:
        total += scores.index_select(1, terms)
    return total


def best_of(scores: Tensor, members: Tensor, topk: int, sign: int) -> Best:
    """The best of one sign, equal ones in the order of the training part."""
    ids, _ = topk_all(_Signed(scores, members, sign), len(scores), members.shape[1], topk)
    total = torch.zeros(ids.shape, dtype=scores.dtype, device=scores.device)
    for terms in members:
        total += scores.gather(1, terms[ids.clamp(min=0)])
    return Best(ids, total)


@torch.no_grad()
def trace_self(
    source: Source,
    checkpoints: Sequence[Weighted],
    *,
    limits: Limits,
    processes: Processes,
    quiet: bool = True,
) -> Tensor:
    """[examples] the influence of every training example on itself: its gradient's squared norm."""
    kind = source.dtype
    plan = Plan.within(limits, source, kind.itemsize, None)
    examples, directions = source.members.shape[1], len(source.members)
    blocks = blocks_of_examples(source, examples, max(1, plan.rows // directions))
    mine = [block for n, block in enumerate(blocks) if n % processes.world == processes.rank]
    total = torch.zeros(examples, dtype=kind, device=source.members.device)
    with Progress(1, quiet or not processes.first, "pass") as progress:
        progress.start_epoch(1, len(mine) * len(checkpoints))
        for checkpoint in checkpoints:
            processes.place = f"the influences by {checkpoint.name}"
            checkpoint.load()
            for start, stop in mine:
                ids, norms = source.own(start, stop)
                total.index_add_(0, ids, norms, alpha=checkpoint.lr)
                progress.advance()
    processes.sum_(total, "adding up the influences")
    require_finite(total)
    return total


def blocks_of_examples(source: Source, examples: int, rows: int) -> list[tuple[int, int]]:
    """The examples in blocks; where an example is a term, in the blocks of terms."""
    return source.blocks(rows) if len(source.members) == 1 else cut(examples, rows)


def require_finite(scores: Tensor) -> None:
    """Refuse influences of a model that has diverged."""
    if not bool(scores.isfinite().all()):
        raise HastenError(
            "the influences are not finite: the weights of a checkpoint are not, or their scores "
            "are too large for this precision (--precision fp64)"
        )


def _joined(parts: Sequence[Best]) -> Best:
    return Best(torch.cat([p.ids for p in parts]), torch.cat([p.scores for p in parts]))
