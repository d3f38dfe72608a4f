"""The shared operations on a device against their references on the CPU, and the step's guard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.ops.attention.causal_attention import causal_attention, causal_attention_reference
from hasten.ops.attention.interval_attention import (
    find_intervals,
    interval_attention,
    interval_attention_reference,
)
from hasten.ops.buckets import Bucket
from hasten.ops.graph.csr import CSR
from hasten.ops.losses.catalog_loss import (
    catalog_cross_entropy,
    catalog_cross_entropy_reference,
)
from hasten.ops.losses.sampled_loss import sampled_loss
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import bits, key
from hasten.ops.ranking.lists import RankingLists
from hasten.ops.ranking.rank_all import rank_all
from hasten.ops.ranking.topk_all import topk_all
from hasten.ops.table import EmbeddingTable
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

Check = Callable[[torch.device], dict[str, Any]]
TOLERANCE = 1e-4


def random_numbers(device: torch.device) -> dict[str, Any]:
    """Counter-based bits and negatives are the same numbers on every device."""
    counters = torch.arange(100_000)
    here, there = bits(key(1, 2), counters), bits(key(1, 2), counters.to(device))
    generator = np.random.default_rng(0)
    user, item = generator.integers(0, 500, 20_000), generator.integers(0, 3000, 20_000)
    known = KnownItems.build(user, item, 500, 3000)
    rows = torch.arange(500)[:, None]
    draws = torch.arange(64)
    drawn = negatives(known, rows, key(3), rows, draws)
    drawn_there = negatives(
        known.to(device), rows.to(device), key(3), rows.to(device), draws.to(device)
    )
    same = torch.equal(here, there.cpu()) and torch.equal(drawn, drawn_there.cpu())
    return {"passed": same}


def attention(device: torch.device) -> dict[str, Any]:
    """Causal attention over buckets, value and gradients, against the equation in float64."""
    buckets = [Bucket(0, 4, 50), Bucket(200, 9, 11), Bucket(299, 1, 1)]

    def fast(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return causal_attention(query, key, value, buckets, 2, 0.0, training=True)

    def reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return causal_attention_reference(query, key, value, buckets, 2)

    inputs = [torch.randn(300, 64, generator=_generator(seed)) for seed in range(3)]
    return _compare(fast, reference, inputs, device)


def intervals(device: torch.device) -> dict[str, Any]:
    """Interval attention by bins, value and gradients, against the equations in float64."""
    buckets, span = [Bucket(0, 2, 90), Bucket(180, 9, 11), Bucket(279, 1, 1)], 40
    times = torch.randint(0, 3 * span, (280,), generator=_generator(5))

    def fast(
        query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor
    ) -> Tensor:
        found = find_intervals(times.to(query.device), buckets, span)
        return interval_attention(
            query, key, value, key_table, value_table, found, 2, 0.0, training=True
        )

    def reference(
        query: Tensor, key: Tensor, value: Tensor, key_table: Tensor, value_table: Tensor
    ) -> Tensor:
        return interval_attention_reference(
            query, key, value, key_table, value_table, times, buckets, 2
        )

    rows = [280, 280, 280, span + 1, span + 1]
    inputs = [torch.randn(n, 64, generator=_generator(seed)) for seed, n in enumerate(rows)]
    return _compare(fast, reference, inputs, device)


def catalog_loss(device: torch.device) -> dict[str, Any]:
    """Chunked cross-entropy, value and gradients, against all logits in float64."""
    x = torch.randn(300, 64, generator=_generator(0))
    table = torch.randn(5000, 64, generator=_generator(1)) / 8
    targets = torch.randint(0, 5000, (300,), generator=_generator(2))

    def fast(x: Tensor, table: Tensor) -> Tensor:
        return catalog_cross_entropy(x, [table], targets.to(x.device), chunk_bytes=2 << 20)

    def reference(x: Tensor, table: Tensor) -> Tensor:
        return catalog_cross_entropy_reference(x, [table], targets)

    return _compare(fast, reference, [x, table], device)


def sampled(device: torch.device) -> dict[str, Any]:
    """Sampled binary cross-entropy, value and gradients, against the CPU in float64."""
    x = torch.randn(300, 64, generator=_generator(0))
    rows = torch.randn(300, 5, 64, generator=_generator(1)) / 8
    return _compare(sampled_loss, sampled_loss, [x, rows], device)


def ranking(device: torch.device) -> dict[str, Any]:
    """Ranks and top-k over small whole numbers, where every score is exact, are equal."""
    generator = np.random.default_rng(0)
    vectors = torch.from_numpy(generator.integers(-3, 4, (256, 16))).float()
    table = EmbeddingTable(7000, 16)
    with torch.no_grad():
        table.weight.copy_(torch.from_numpy(generator.integers(-3, 4, (7000, 16))))
    targets = CSR(np.arange(257), generator.integers(0, 7000, 256))
    hidden = CSR(np.arange(0, 257 * 9, 9), generator.integers(0, 7000, 256 * 9)).distinct()
    found = []
    for place in (torch.device("cpu"), device):
        scorer = FactorScorer(vectors.to(place), Catalog(table.to(place)))
        lists = to_device(RankingLists.of(targets, hidden), place)
        ranks = rank_all(scorer, 7000, lists, columns=1024).masked()
        ids, _ = topk_all(scorer, 256, 7000, 20, hidden, columns=1024)
        found.append([part.cpu() for part in (ranks.higher, ranks.tied, ids)])
    return {"passed": all(torch.equal(a, b) for a, b in zip(*found, strict=True))}


def guard(device: torch.device) -> dict[str, Any]:
    """A bad step changes no byte of weights or moments; no step waits for the device."""
    outcome: dict[str, Any] = {"passed": True}
    for name in ("fp32", "bf16", "fp16"):
        phase = _Quadratic(device)
        options = TrainingOptions(clip_norm=1.0)
        precision = Precision(name, device)
        step = OptimizerStep(phase, 0, options, precision, DataParallelRank(), device)
        batch = Batch(torch.arange(4), 0, 0, 0)
        for _ in range(3):
            step(batch, 1e-2)
        before = _state(step)
        phase.poison.fill_(math.nan)
        # the loss scaler decides on the host whether to step: fp16 waits once a step
        silent = name != "fp16" and device.type == "cuda"
        with no_synchronisation(silent):
            step(batch, 1e-2)
        untouched = all(torch.equal(a, b) for a, b in zip(before, _state(step), strict=True))
        phase.poison.fill_(0.0)
        with no_synchronisation(silent):
            step(batch, 1e-2)
        moved = not torch.equal(before[0], _state(step)[0])
        good = (
            untouched
            and moved
            and int(step.nonfinite_steps) == 1
            and int(step.consecutive_nonfinite_steps) == 0
        )
        outcome[name] = {"bad_step_left_out": untouched, "good_step_taken": moved}
        outcome["passed"] = outcome["passed"] and good
    return outcome


OPERATIONS: Sequence[Check] = (
    random_numbers,
    attention,
    intervals,
    catalog_loss,
    sampled,
    ranking,
    guard,
)


def operations(device: torch.device) -> dict[str, Any]:
    """The outcome of every check."""
    found: dict[str, dict[str, Any]] = {}
    for check in OPERATIONS:
        try:
            found[check.__name__] = check(device)
        except Exception as error:  # noqa: BLE001 - recorded: one must not hide the others
            told = f"{type(error).__name__}: {error}"
            found[check.__name__] = {"passed": False, "error": told}
    failed = [name for name, each in found.items() if not each["passed"]]
    problem = {"error": f"failed: {', '.join(failed)}"} if failed else {}
    return {"passed": not failed, "checks": found, **problem}


class _Quadratic(Phase):
    """Whatever is on the device stays there: a loss whose gradient can be poisoned."""

    name = "quadratic"

    def __init__(self, device: torch.device) -> None:
        self.weight = nn.Parameter(torch.ones(8, device=device))
        self.poison = torch.zeros((), device=device)

    def steps(self) -> int:
        return 1

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        return Batch(torch.arange(4), seed, epoch, index)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        return [Term("loss", (self.weight * self.weight * (1 + self.poison)).sum(), 4.0)]

    def parameters(self) -> Sequence[nn.Parameter]:
        return [self.weight]

    def examples(self, batch: Batch) -> int:
        return 4

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return False


def _state(step: OptimizerStep) -> list[Tensor]:
    """Copies of the weights and of everything the optimiser keeps."""
    (parameter,) = step.parameters
    moments = step.optimizer.state[parameter]
    return [parameter.detach().clone(), *(moments[name].clone() for name in sorted(moments))]


@contextmanager
def no_synchronisation(wanted: bool) -> Iterator[None]:
    """Make waiting for the device an error inside."""
    if not wanted:
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _compare(
    fast: Callable[..., Tensor],
    reference: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    device: torch.device,
) -> dict[str, Any]:
    """Largest relative error of the value and of every gradient."""
    errors = {}
    there = [tensor.to(device, copy=True).requires_grad_() for tensor in inputs]
    exact = [tensor.double().requires_grad_() for tensor in inputs]
    found, expected = fast(*there), reference(*exact)
    weights = torch.randn(expected.shape, generator=_generator(9))
    (found * weights.to(device)).sum().backward()  # type: ignore[no-untyped-call]
    (expected * weights.double()).sum().backward()  # type: ignore[no-untyped-call]
    errors["value"] = _error(found, expected)
    for number, (a, b) in enumerate(zip(there, exact, strict=True)):
        assert a.grad is not None
        assert b.grad is not None
        errors[f"gradient_{number}"] = _error(a.grad, b.grad)
    return {"passed": max(errors.values()) < TOLERANCE, "errors": errors}


def _error(found: Tensor, expected: Tensor) -> float:
    difference = (found.detach().cpu().double() - expected.detach()).abs().max()
    return float(difference / expected.detach().abs().max().clamp_min(1e-12))
