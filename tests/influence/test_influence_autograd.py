"""Influence of models with per-example losses, against one gradient per example."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten import registry
from hasten.cli.main import main
from hasten.config_loading.build import build_config
from hasten.data.interactions.load import load_dataset
from hasten.data.tables import TRAIN, VALID
from hasten.errors import UsageError
from hasten.influence import autograd
from hasten.influence.autograd import AutogradSource
from hasten.influence.losses import EventLosses, TripleLosses
from hasten.influence.queries import Selection, part_of_events, select_triples, triples_of
from hasten.influence.support import choose_method
from hasten.influence.trace import Checkpoint, Limits, trace_self
from hasten.loaded_run import load_run
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.base import TripleModel
from hasten.models.knowledge_graph.distmult import DistMultOptions
from hasten.models.knowledge_graph.triple_options import TripleOptions
from hasten.models.sequential.base import SequentialModel, SequentialOptions
from hasten.objectives.base import Batch
from hasten.objectives.completion import CompletionPhase
from hasten.objectives.next_item import NextItemPhase
from hasten.objectives.triple_examples import KvsAllExamples, TripleExamples
from hasten.ops.table import EmbeddingTable
from tests.contract.cases import sequences
from tests.influence.naive import gradient
from tests.influence.rotation import Rotation, RotationOptions
from tests.influence.test_influence_triples import (  # noqa: F401 - a fixture
    alone,
    found_matrix,
    graph,
    make,
    some_tests,
    source_of,
)

ONCE = [Checkpoint("only", 0.5, lambda: None)]


def rotation_source(graph, negatives, kept=None):  # noqa: F811
    torch.manual_seed(0)
    model = Rotation(RotationOptions(), Sizes.of(graph)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.7)
    data = TripleExamples(graph, negatives) if negatives else KvsAllExamples(graph)
    phase = CompletionPhase(model, data, 4)
    kept = np.arange(len(graph.of(TRAIN))) if kept is None else kept
    return model, AutogradSource(model, TripleLosses(phase, graph, some_tests(graph), kept, 3))


def expected(model, source):
    """[T, n] products and [n] squared norms, from one backward pass per example."""
    examples = source.examples

    def rows(batch_of, count):
        found = []
        for number in range(count):
            batch, positions = batch_of(number)
            found.append(gradient(model, model.example_losses(batch)[positions].sum()))
        return torch.stack(found)

    terms = examples.terms_of.numpy()
    tests = rows(lambda i: examples.test_batch(i, i + 1), examples.tests)
    train = rows(lambda i: examples.batch_of(terms[:, i]), terms.shape[1])
    return tests @ train.T, (train * train).sum(1)


@pytest.mark.parametrize("negatives", [0, 2])
def test_many_tests_together_give_the_products_of_each(negatives, graph, monkeypatch):  # noqa: F811
    """Gradients of the training examples, written out, instead of a pass for each test."""
    _, source = rotation_source(graph, negatives)
    tests, terms = source.examples.tests, source.examples.terms
    one_by_one = source.products(source.gradients(0, tests, 4), 1, terms)
    monkeypatch.setattr(autograd, "_TESTS", tests - 1)
    together = source.products(source.gradients(0, tests, 4), 1, terms)
    torch.testing.assert_close(together, one_by_one, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("negatives", [0, 2])
def test_a_knowledge_graph_model_of_another_package(negatives, graph):  # noqa: F811
    model, source = rotation_source(graph, negatives)
    matrix, norms = expected(model, source)
    assert float(matrix.abs().max()) > 0.1
    for rows in (3, 500):
        limits = Limits(1 << 30, rows)
        torch.testing.assert_close(
            found_matrix(source, ONCE, limits), 0.5 * matrix, rtol=1e-9, atol=1e-12
        )
        own = trace_self(source, ONCE, limits=limits, **alone())
        torch.testing.assert_close(own, 0.5 * norms, rtol=1e-9, atol=1e-12)


def test_the_losses_are_those_of_the_first_epoch(graph):  # noqa: F811
    """The training terms add up to the loss of an epoch whose weights do not change."""
    model, source = rotation_source(graph, 2)
    phase = CompletionPhase(model, TripleExamples(graph, 2), 4)
    total = 0.0
    for index in range(phase.steps()):
        batch = phase.plan(3, 0, index)
        (term,) = phase.terms((), batch, batch.ids)
        total += float(term.numerator.detach())
    batch, positions = source.examples.batch_of(np.arange(source.examples.terms))
    losses = model.example_losses(batch)[positions].detach()
    assert float(losses.sum()) == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("negatives", [0, 2])
def test_a_sample_of_triples_has_the_influences_of_the_whole(negatives, graph):  # noqa: F811
    limits, kept = Limits(1 << 30, 7), np.arange(1, len(graph.of(TRAIN)), 3)
    whole = found_matrix(rotation_source(graph, negatives)[1], ONCE, limits)
    some = found_matrix(rotation_source(graph, negatives, kept)[1], ONCE, limits)
    torch.testing.assert_close(some, whole[:, kept], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["distmult", "complex"])
@pytest.mark.parametrize("trained", ["1-n", "1vsall"])
def test_factors_are_equal_to_automatic_differentiation(name, trained, graph):  # noqa: F811
    model, tests, limits = make(name, trained), some_tests(graph), Limits(1 << 30, 16)
    data = KvsAllExamples(graph) if trained == "1-n" else TripleExamples(graph)
    losses = TripleLosses(
        CompletionPhase(model, data, 4), graph, tests, np.arange(len(graph.of(TRAIN))), 0
    )
    plain = AutogradSource(model, losses)
    factored = source_of(model, graph, "training", "all", tests)
    torch.testing.assert_close(
        found_matrix(plain, ONCE, limits), found_matrix(factored, ONCE, limits), rtol=1e-9,
        atol=1e-12,
    )  # fmt: skip
    torch.testing.assert_close(
        trace_self(plain, ONCE, limits=limits, **alone()),
        trace_self(factored, ONCE, limits=limits, **alone()),
    )


class PageRotation(TripleModel):
    """RotatE from a score and a loss that sums over triples."""

    name, summary, Options = "page", "", RotationOptions
    scores = Rotation.scores

    def __init__(self, options, sizes) -> None:
        super().__init__(TripleOptions(name="page", width=6, loss="sampled"), sizes)
        self.angles = EmbeddingTable(2 * sizes.relations, 3)

    def sampled_loss(self, true, sampled):
        weight = torch.softmax(sampled.detach(), dim=1)
        return -F.logsigmoid(true).sum() - (weight * F.logsigmoid(-sampled)).sum()


def test_a_subclass_with_a_score_of_its_own_has_example_losses(graph):  # noqa: F811
    model, source = rotation_source(graph, 2)
    page = PageRotation(None, Sizes.of(graph)).double()
    page.load_state_dict({**page.state_dict(), **model.state_dict()})
    batch, _ = source.examples.batch_of(np.arange(7))
    torch.testing.assert_close(page.example_losses(batch), model.example_losses(batch))
    total = page.completion_loss(batch)
    torch.testing.assert_close(page.example_losses(batch).sum(), total)
    plain = AutogradSource(page, source.examples)
    limits = Limits(1 << 30, 16)
    torch.testing.assert_close(
        found_matrix(plain, ONCE, limits), found_matrix(source, ONCE, limits)
    )


class Pointwise(SequentialModel):
    """States without a look at the history."""

    name, summary, Options = "pointwise", "", SequentialOptions

    def encode(self, rows_TD, batch):
        return torch.tanh(rows_TD)


@pytest.mark.parametrize("trained", ["ce", "bce", "gbce"])
def test_losses_of_sequential_models_add_up(trained):
    config = build_config(
        "sasrec", None, flags={"model.width": 8, "model.loss": trained, "model.dropout": 0.0}
    )
    dataset = load_dataset(config.data, 0, sequences(9, 24))
    model = Pointwise(config.model, Sizes.of(dataset)).double()
    (phase,) = model.phases(dataset, config.training)
    rows = np.argsort(-phase.target_counts, kind="stable")
    batch = phase.build_micro_batch(Batch(torch.from_numpy(rows), 0, 0, 0), rows)
    torch.testing.assert_close(model.example_losses(batch).sum(), model.next_item_loss(batch))


class Recurrent(nn.Module):
    """A small GRU4Rec as another package would write it."""

    def __init__(self, items: int, loss: str) -> None:
        super().__init__()
        self.items, self.loss = EmbeddingTable(items, 5), loss
        self.gru = nn.GRU(5, 5, batch_first=True)

    def states(self, batch):
        rows = self.items.rows(batch.tokens)
        found = []
        for bucket in batch.buckets:
            some = rows[bucket.start : bucket.stop].view(bucket.rows, bucket.length, -1)
            found.append(self.gru(some)[0].reshape(-1, 5))
        return batch.at_targets(torch.cat(found))

    def example_losses(self, batch):
        states = self.states(batch)
        if self.loss == "ce":
            scores = states @ self.items.weight.T
            return F.cross_entropy(scores, batch.targets, reduction="none")
        ids = torch.cat([batch.targets[:, None], batch.negatives], 1)
        scores = (self.items.rows(ids) @ states[:, :, None])[:, :, 0]
        return F.softplus(-scores[:, 0]) + F.softplus(scores[:, 1:]).sum(1)


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_a_sequential_model_of_another_package(loss):
    config = build_config("sasrec", None, flags={"model.width": 8})
    dataset = load_dataset(config.data, 0, sequences(9, 24))
    torch.manual_seed(1)
    model = Recurrent(len(dataset.items), loss).double()
    phase = NextItemPhase(
        model, dataset.histories(TRAIN), item_count=len(dataset.items), batch_size=4, max_length=4,
        negative_count=2 if loss == "bce" else 0,
    )  # fmt: skip
    users, items = part_of_events(dataset, "test")
    histories = dataset.histories(TRAIN, VALID).take(users)
    kept = np.arange(int(phase.target_counts.sum()))
    source = AutogradSource(
        model, EventLosses(phase, histories, items, kept, 3, len(dataset.items))
    )
    batch, last = source.examples.test_batch(0, len(users))
    assert batch.targets[last].tolist() == items.tolist()
    matrix, norms = expected(model, source)
    for rows in (9, 500):
        limits = Limits(1 << 30, rows)
        torch.testing.assert_close(
            found_matrix(source, ONCE, limits), 0.5 * matrix, rtol=1e-9, atol=1e-12
        )
        own = trace_self(source, ONCE, limits=limits, **alone())
        torch.testing.assert_close(own, 0.5 * norms, rtol=1e-9, atol=1e-12)


class Opaque(torch.autograd.Function):
    """An operation without a forward mode."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


def test_the_command_runs_on_a_plug_in(tmp_path, monkeypatch, capfd):
    entry = registry.ModelEntry("rotation", "tests.influence.rotation", "Rotation", "RotatE")
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, entry))
    run = str(tmp_path / "run")
    arguments = ["--epochs", "2", "--seed", "5", "--quiet", "--out", run]
    assert main(["train", "rotation", *arguments]) == 0, capfd.readouterr().err
    capfd.readouterr()
    precise = ["--json", "--quiet", "--precision", "fp64"]
    assert main(["influence", run, "--part", "test", "--limit", "3", *precise]) == 0
    shown = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert (shown["loss"], shown["layers"], shown["method"]) == ("training", "all", "exact")
    loaded = load_run(Path(run), checkpoint="best", device="cpu")
    model, data = loaded.model.double(), loaded.dataset
    count = len(data.of(TRAIN))
    (phase,) = model.phases(data, loaded.config.training)
    selection = Selection(part="test", limit=3)
    tests = select_triples(data, selection, loaded.config.data)
    source = AutogradSource(model, TripleLosses(phase, data, tests, np.arange(count), 5))
    examples, train = source.examples, data.of(TRAIN)
    for row in [row for row in shown["influences"] if row["rank"] == 1]:
        one = triples_of(data, [(row["head"], row["relation"], row["tail"])])
        same = (
            (train.head == one.head) & (train.relation == one.relation) & (train.tail == one.tail)
        )
        terms = examples.terms_of[:, int(np.flatnonzero(same)[0])].numpy()
        grads = []
        for batch, positions in (
            examples.test_batch(row["test"] - 1, row["test"]),
            examples.batch_of(terms),
        ):
            grads.append(gradient(model, model.example_losses(batch)[positions].sum()))
        found = shown["checkpoints"][0]["lr"] * float(grads[0] @ grads[1])
        assert row["influence"] == pytest.approx(found, rel=1e-5)
    assert main(["influence", run, "--self", "--topk", "2", *precise]) == 0
    assert main(["influence", run, "--part", "test", "--loss", "positive"]) == 2


def test_operations_without_a_forward_mode_are_refused(graph):  # noqa: F811
    model, source = rotation_source(graph, 2)
    plain = model.example_losses
    model.example_losses = lambda batch: Opaque.apply(plain(batch))
    with pytest.raises(UsageError, match="example_losses"):
        found_matrix(source, ONCE, Limits(1 << 30, 16))


def test_the_method_follows_from_the_model_and_the_options():
    model = Rotation(RotationOptions(), Sizes(entities=4, relations=1))
    method = choose_method(model, "rotate", None, None, None)
    assert (method.factored, method.loss, method.layers) == (False, "training", "all")
    for options, words in (
        (("positive", None, None), "--loss training"),
        ((None, "last", None), "--layers all"),
        ((None, None, "--projection"), "--projection needs factored gradients"),
    ):
        with pytest.raises(UsageError, match=words):
            choose_method(model, "rotate", *options)
    with pytest.raises(UsageError, match="does not support influence"):
        choose_method(nn.Linear(2, 2), "linear", None, None, None)
    plain = make("distmult", "1-n")
    method = choose_method(plain, "distmult", None, None, "--projection")
    assert (method.factored, method.loss, method.layers) == (True, "positive", "all")
    assert choose_method(plain, "distmult", "training", None, None).factored
    # terms beside the loss of the scores have no factors
    for changes in ({"n3": 0.1}, {"relation_weight": 1.0}):
        plain.options = DistMultOptions(width=5, **{"loss": "1-n", **changes})
        method = choose_method(plain, "distmult", "training", None, None)
        assert (method.factored, method.loss, method.layers) == (False, "training", "all")
        assert choose_method(plain, "distmult", "positive", None, None).factored
