"""The training engine with models of unusual structure: stubs of KGAT, HGT and ConvE."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.table import EmbeddingTable
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.training.stubs import ConvolutionalScorer, TwoDenominators, TwoPhaseGraph

MODELS = (TwoPhaseGraph, TwoDenominators, ConvolutionalScorer)
CPU = torch.device("cpu")


def _steps(kind: type[nn.Module], shard: DataParallelRank = DataParallelRank(), **options: object):  # noqa: B008
    torch.manual_seed(5)
    model = kind().double()
    phases = model.phases()
    training = TrainingOptions(**options)
    steps = [
        OptimizerStep(phase, n, training, Precision("fp32", CPU), shard, CPU)
        for n, phase in enumerate(phases)
    ]
    return model, steps


def _train(kind: type[nn.Module], epochs: int = 3, **options: object) -> dict[str, torch.Tensor]:
    model, steps = _steps(kind, **options)
    for epoch in range(epochs):
        for step in steps:
            step.phase.start_epoch(0, epoch)
            for index in range(step.phase.steps()):
                step(step.phase.plan(0, epoch, index), 0.01)
    return model.state_dict()


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("accumulate", [2, 3, 5])
def test_micro_batches_change_nothing(kind, accumulate):
    whole, split = _train(kind), _train(kind, accumulate=accumulate)
    for name in whole:
        torch.testing.assert_close(split[name], whole[name], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("world", [2, 3])
def test_gradients_of_the_processes_add_up(kind, world):
    """The sum over simulated processes is the gradient of the global batch; rank 0 regularises."""
    model, (step, *_) = _steps(kind)
    batch = step.phase.plan(0, 0, 0)
    step.phase.start_epoch(0, 0)
    step.accumulate(batch)
    whole = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    total: dict[str, torch.Tensor] = {}
    for rank in range(world):
        model, (step, *_) = _steps(kind, DataParallelRank(rank, world))
        step.phase.start_epoch(0, 0)
        step.accumulate(batch)
        for name, p in model.named_parameters():
            if p.grad is not None:
                total[name] = total.get(name, 0) + p.grad
    assert total.keys() == whole.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(total[name], gradient, rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("kind", MODELS)
def test_gradients_equal_one_plain_backward(kind):
    """Encode once, detach, gather, one backward through it = plain autograd of the whole loss."""
    model, (step, *_) = _steps(kind, accumulate=3)
    step.phase.start_epoch(0, 0)
    batch = step.phase.plan(0, 0, 1)
    step.accumulate(batch)
    ours = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    encoded = step.phase.encode(batch)
    terms = [*step.phase.terms(encoded, batch, batch.ids), *step.phase.regularizers(encoded, batch)]
    sum(t.numerator * t.weight / t.denominator for t in terms).backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(ours[name], p.grad, rtol=1e-6, atol=1e-10)


def test_the_graph_is_encoded_once_a_step():
    _, (step, *_) = _steps(TwoPhaseGraph, accumulate=4)
    step.phase.start_epoch(0, 0)
    step(step.phase.plan(0, 0, 0), 0.01)
    assert step.phase.encodings == 1


def test_a_phase_updates_exactly_its_parameters():
    model, (first, second) = _steps(TwoPhaseGraph)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    first.phase.start_epoch(0, 0)
    first(first.phase.plan(0, 0, 0), 0.01)
    assert torch.equal(before["relation"], model.relation)
    assert not torch.equal(before["entities"], model.entities)
    middle = model.mix.weight.detach().clone()
    second(second.phase.plan(0, 0, 0), 0.01)
    assert torch.equal(middle, model.mix.weight)
    assert not torch.equal(before["relation"], model.relation)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 16, 17, 31])
@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_shares_hold_every_row_once_and_no_group_of_one(count, parts):
    for group in (1, 4, 8):
        batch = Batch(torch.arange(count), 0, 0, 0, group=group)
        shares = [batch.micro_batch_ids(p, parts) for p in range(parts)]
        assert sorted(torch.cat(shares).tolist()) == list(range(count))
        if group > 1 and count > 1:
            assert all(len(share) != 1 for share in shares)


class ShardedTable(nn.Module):
    """A fake of a table sharded by rows: several parameters behind the same two methods."""

    def __init__(self, table: EmbeddingTable, shards: int) -> None:
        super().__init__()
        self.shards = nn.ParameterList(
            nn.Parameter(s.detach().clone()) for s in table.weight.tensor_split(shards)
        )

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        return self.block(0, len(self))[ids]

    def block(self, start: int, stop: int) -> torch.Tensor:
        return torch.cat(list(self.shards))[start:stop]

    def __len__(self) -> int:
        return sum(len(s) for s in self.shards)


@pytest.mark.parametrize("loss", ["ce", "bce", "gbce"])
def test_a_sharded_table_takes_the_place_of_a_whole_one(loss):
    import numpy as np

    from hasten.data.tables import Histories
    from hasten.models.interface import Sizes
    from hasten.models.sequential.sasrec import SASRec, SASRecOptions
    from hasten.objectives.next_item import NextItemPhase
    from hasten.scoring import RecommenderQueries

    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 9, 12)
    history = Histories(
        np.concatenate([[0], np.cumsum(lengths)]), generator.integers(0, 31, lengths.sum())
    )
    torch.manual_seed(0)
    options = SASRecOptions(width=8, max_length=6, dropout=0.0, loss=loss)
    model = SASRec(options, Sizes(users=12, items=31))
    phase = NextItemPhase(
        model,
        history,
        item_count=31,
        batch_size=12,
        max_length=6,
        negative_count=0 if loss == "ce" else 2,
    )

    def gradient() -> tuple[float, dict[str, torch.Tensor]]:
        model.zero_grad()
        batch = phase.plan(0, 0, 0)
        (term,) = phase.terms((), batch, batch.ids)
        term.numerator.backward()
        return term.numerator.item(), {n: p.grad for n, p in model.named_parameters()}

    queries = RecommenderQueries(np.arange(12), history)
    value, whole = gradient()
    scores = model.eval().scorer(queries).block(3, 29)
    model.items = ShardedTable(model.items, 3)
    sharded_value, sharded = gradient()
    assert sharded_value == pytest.approx(value, rel=1e-6)
    pieces = torch.cat([sharded[f"items.shards.{i}"] for i in range(3)])
    torch.testing.assert_close(pieces, whole["items.weight"], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.scorer(queries).block(3, 29), scores, rtol=1e-5, atol=1e-6)
