"""Terms of the bilinear models' losses, TuckER and RotatE against their equations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hasten.config_loading.build import build_config
from hasten.data.graph.load import load_graph
from hasten.data.tables import KnowledgeGraph
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph import rotate
from hasten.models.knowledge_graph.complex import ComplEx
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.distmult import DistMult
from hasten.models.knowledge_graph.rotate import RotatE
from hasten.models.knowledge_graph.tucker import EPS, TuckER
from hasten.objectives.shared_negatives import Sample
from hasten.scoring import TripleQueries
from tests.contract.cases import graph as ring

LOSSES = ("1-n", "1-n-softmax", "1vsall", "sampled-softmax", "sampled")


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    return load_graph(build_config("complex", None).data, 0, ring())


def make(kind, graph: KnowledgeGraph, **options):
    """A model in float64 with its phase over the whole graph as one batch."""
    torch.manual_seed(0)
    model = kind(kind.Options(width=6, **options), Sizes.of(graph)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    flags = {"training.batch_size": 10_000}
    (phase,) = model.phases(graph, build_config(kind.name, None, flags=flags).training)
    return model, phase


def triples_of(batch) -> list[tuple[int, int, int, int]]:
    """(query, entity, relation, answer) of each answer."""
    queries = list(zip(batch.entity.tolist(), batch.relation.tolist(), strict=True))
    if batch.target is not None:
        pairs = list(enumerate(batch.target.tolist()))
    else:
        pairs = list(zip(batch.answer_query.tolist(), batch.answer.tolist(), strict=True))
    return [(query, *queries[query], answer) for query, answer in pairs]


def numbers(model, rows: torch.Tensor) -> torch.Tensor:
    """The rows as the numbers that the paper multiplies: complex ones for ComplEx."""
    return torch.complex(*rows.chunk(2, -1)) if isinstance(model, ComplEx) else rows


def written_out(model, batch) -> dict[str, torch.Tensor]:
    """The sums of N3 and of relation prediction, triple by triple."""
    entities = numbers(model, model.entities.weight)
    relations = numbers(model, model.relations.weight)
    cubes, losses = [], []
    for _, h, r, t in triples_of(batch):
        cubes += [each.abs().pow(3).sum() for each in (entities[h], relations[r], entities[t])]
        scores = torch.stack(
            [(entities[h] * each * entities[t].conj()).sum().real for each in relations]
        )
        losses.append(F.cross_entropy(scores[None], torch.tensor([r])))
    return {"n3": torch.stack(cubes).sum(), "relation": torch.stack(losses).sum()}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [DistMult, ComplEx])
def test_n3_and_relation_prediction_are_what_the_papers_say(kind, loss, graph):
    options = {"loss": loss, "dropout": 0.0, "n3": 0.3, "relation_weight": 0.7}
    model, phase = make(kind, graph, **options)
    whole = phase.plan(0, 0, 0)
    queries = phase.data.batch(whole, whole.ids.numpy(), torch.device("cpu"))
    expected = written_out(model, queries)
    terms = {term.name: term for term in phase.terms((), whole, whole.ids)}
    assert set(terms) == {"loss", "n3", "relation"}
    assert (terms["n3"].weight, terms["relation"].weight) == (0.3, 0.7)
    used = [model.entities.weight, model.relations.weight]
    for name, reference in expected.items():
        torch.testing.assert_close(terms[name].numerator, reference)
        assert terms[name].denominator == len(whole.ids)
        parts = [phase.terms((), whole, whole.micro_batch_ids(part, 3)) for part in range(3)]
        total = sum(t.numerator for part in parts for t in part if t.name == name)
        ours = torch.autograd.grad(total, used, allow_unused=True)
        theirs = torch.autograd.grad(reference, used, retain_graph=True)
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one, other)
    model.eval()
    each = model.example_losses(queries).sum()
    whole_loss = sum(term.weight * term.numerator for term in phase.terms((), whole, whole.ids))
    torch.testing.assert_close(each, whole_loss)


@pytest.mark.parametrize("loss", ["1-n-softmax", "1vsall"])
@pytest.mark.parametrize("kind", [ConvE, ComplEx])
def test_a_softmax_is_smoothed_as_by_pytorch(kind, loss, graph):
    plain = {"dropout": 0.0} if kind is ComplEx else {}
    if kind is ConvE:
        plain = {"kernel": 2, "channels": 2}
    model, phase = make(kind, graph, loss=loss, label_smoothing=0.2, **plain)
    model.eval()  # no dropout, and one BatchNorm
    whole = phase.plan(0, 0, 0)
    queries = phase.data.batch(whole, whole.ids.numpy(), torch.device("cpu"))
    (term,) = phase.terms((), whole, whole.ids)
    vectors = model.vectors(model.entities.rows(queries.entity), queries.relation)
    scores = vectors @ model.entities.weight.T + model.bias
    query, _, _, answer = (
        torch.tensor(column) for column in zip(*triples_of(queries), strict=True)
    )
    expected = F.cross_entropy(scores[query], answer, reduction="sum", label_smoothing=0.2)
    torch.testing.assert_close(term.numerator, expected)
    torch.testing.assert_close(model.example_losses(queries).sum(), expected)
    gradients = [
        torch.autograd.grad(each, list(model.parameters()), retain_graph=True)
        for each in (term.numerator, expected)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", [ConvE, ComplEx])
def test_a_softmax_over_a_sample_of_all_entities_is_that_over_all(kind, graph):
    plain = {"dropout": 0.0} if kind is ComplEx else {"kernel": 2, "channels": 2}
    model, phase = make(kind, graph, loss="sampled-softmax", **plain)
    other, other_phase = make(kind, graph, loss="1-n-softmax", **plain)
    other.load_state_dict(model.state_dict())
    count = len(graph.entities)
    every = Sample(np.arange(count), np.zeros(count))
    phase.data.sample = lambda batch: every
    whole = phase.plan(0, 0, 0)
    totals = []
    for each, its in ((model, phase), (other, other_phase)):
        each.eval()  # no dropout, and one BatchNorm
        (term,) = its.terms((), whole, whole.ids)
        totals.append(term.numerator)
    torch.testing.assert_close(*totals)
    gradients = [
        torch.autograd.grad(total, list(each.parameters()))
        for total, each in zip(totals, (model, other), strict=True)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_step_draws_one_sample_and_leaves_out_the_answers(graph):
    _, phase = make(DistMult, graph, loss="sampled-softmax", negatives=12, dropout=0.0)
    phase.batch_size = 16
    shared, seen = [], set()
    for step in range(phase.steps()):
        batch = phase.plan(3, 1, step)
        parts = [batch.micro_batch_ids(part, 3) for part in range(3)]
        for ids in parts:
            made = phase.data.batch(batch, ids.numpy(), torch.device("cpu"))
            shared.append(made.shared)
            items, row = made.shared.items.tolist(), torch.from_numpy(np.arange(len(ids)))
            answers = {(q, a) for q, _, _, a in triples_of(made)}
            expected = [q * len(items) + j for q in row.tolist() for j, item in enumerate(items)
                        if (q, item) in answers]  # fmt: skip
            assert made.shared.masked.tolist() == expected
            seen |= set(items)
        for one in shared[-2:]:
            assert torch.equal(one.items, shared[-3].items)
            assert torch.equal(one.log_weights, shared[-3].log_weights)
    assert len({tuple(one.items.tolist()) for one in shared}) > phase.steps() // 2
    assert len(seen) == len(graph.entities)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", [ComplEx, TuckER])
def test_a_model_without_biases_has_the_loss_of_one_whose_biases_are_zero(kind, loss, graph):
    plain = {"dropout": 0.0}
    if kind is TuckER:
        plain = {f"{part}_dropout": 0.0 for part in ("input", "relation", "hidden")}
    model, phase = make(kind, graph, loss=loss, bias=False, **plain)
    other, other_phase = make(kind, graph, loss=loss, **plain)
    assert set(dict(other.named_parameters())) - set(dict(model.named_parameters())) == {"bias"}
    assert set(other.state_dict()) - set(model.state_dict()) == {"bias"}
    assert "bias" in other.rows_of()
    assert "bias" not in model.rows_of()
    other.load_state_dict({**model.state_dict(), "bias": torch.zeros_like(other.bias)})
    whole = phase.plan(0, 0, 0)
    totals = [
        sum(term.weight * term.numerator for term in each.terms((), whole, whole.ids))
        for each in (phase, other_phase)
    ]
    torch.testing.assert_close(*totals)
    names = list(dict(model.named_parameters()))
    ours, theirs = (
        torch.autograd.grad(total, [dict(each.named_parameters())[name] for name in names])
        for total, each in zip(totals, (model, other), strict=True)
    )
    for one, another in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, another)
    queries = TripleQueries(np.array([0, 3]), np.array([0, 1]))
    scores = [each.eval().scorer(queries).block(0, len(each.entities)) for each in (model, other)]
    torch.testing.assert_close(*scores)


def test_tucker_is_what_the_paper_says(graph):
    plain = {f"{name}_dropout": 0.0 for name in ("input", "relation", "hidden")}
    model, _ = make(TuckER, graph, relation_width=4, group=64, **plain)
    entity, relation = torch.tensor([0, 3, 3, 9]), torch.tensor([0, 1, 3, 2])

    def norm(x, moments, gain, shift):
        state = moments.mean.clone(), moments.variance.clone()
        return F.batch_norm(x, *state, gain, shift, training=model.training, eps=EPS)

    for training in (True, False):
        model.train(training)
        head = norm(
            model.entities.weight[entity], model.input_moments, model.input_gain, model.input_shift
        )
        core = model.core.view(4, 6, 6)
        hidden = torch.einsum("bi,bj,jik->bk", head, model.relations.weight[relation], core)
        hidden = norm(hidden, model.hidden_moments, model.hidden_gain, model.hidden_shift)
        expected = hidden @ model.entities.weight.T + model.bias
        found = model.vectors(model.entities.rows(entity), relation)
        found = found @ model.entities.weight.T + model.bias
        torch.testing.assert_close(found, expected)
        weight = torch.randn_like(expected)
        gradients = [
            torch.autograd.grad((each * weight).sum(), list(model.parameters()))
            for each in (found, expected)
        ]
        for ours, theirs in zip(*gradients, strict=True):
            torch.testing.assert_close(ours, theirs)
        if training:
            for moments in model.moments:
                assert float(moments.gathered[-1]) == 4
                moments.update_running(torch.tensor(True))
    queries = TripleQueries(entity.numpy(), relation.numpy())
    torch.testing.assert_close(model.scorer(queries).block(2, 7), found[:, 2:7])
    halves = model.train(), model.options.model_copy(update={"group": 2})
    model.group = halves[1].group
    head = model.entities.rows(entity)
    parts = [model.vectors(head[i : i + 2], relation[i : i + 2]) for i in (0, 2)]
    torch.testing.assert_close(model.vectors(head, relation), torch.cat(parts))


def test_rotate_is_what_the_paper_says(graph, monkeypatch):
    model, phase = make(RotatE, graph, negatives=3, margin=2.0, temperature=0.7)
    count = len(graph.relations)
    entities = torch.complex(*model.entities.weight.chunk(2, 1))
    turns = torch.polar(torch.ones(count, 3).double(), model.relations.weight)
    turns = torch.cat([turns, turns.conj()])
    entity, relation = torch.tensor([0, 3, 9]), torch.tensor([0, 1, count + 1])
    every = torch.arange(len(entities)).expand(3, -1)
    rotated = entities[entity] * turns[relation]
    expected = 2.0 - (rotated[:, None] - entities).abs().sum(2)
    torch.testing.assert_close(
        model.scores(entity, relation, every), expected, rtol=1e-6, atol=1e-6
    )
    scorer = model.scorer(TripleQueries(entity.numpy(), relation.numpy()))
    for numbers, queries in ((1, 1), (2 * 6 * 2, 2), (1 << 18, 4)):  # columns: 1, 2, all
        monkeypatch.setattr(rotate, "_DIFFERENCES_CPU", numbers)
        monkeypatch.setattr(rotate, "_QUERIES_CPU", queries)
        block = scorer.block(2, 7)
        torch.testing.assert_close(block, expected[:, 2:7], rtol=1e-6, atol=1e-6)
    # a query for heads scores a triple as the query for tails does
    torch.testing.assert_close(
        model.scores(torch.tensor([4]), torch.tensor([1]), torch.tensor([[5]])),
        model.scores(torch.tensor([5]), torch.tensor([count + 1]), torch.tensor([[4]])),
    )
    whole = phase.plan(0, 0, 0)
    batch = phase.data.batch(whole, whole.ids.numpy(), torch.device("cpu"))
    (term,) = phase.terms((), whole, whole.ids)
    distance = (entities[batch.entity] * turns[batch.relation])[:, None] - entities[
        torch.cat([batch.target[:, None], batch.negatives], 1)
    ]
    scores = 2.0 - distance.abs().sum(2)
    weights = torch.softmax(0.7 * scores[:, 1:], 1).detach()
    loss = -F.logsigmoid(scores[:, 0]) - (weights * F.logsigmoid(-scores[:, 1:])).sum(1)
    torch.testing.assert_close(term.numerator, loss.sum(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(model.example_losses(batch), loss, rtol=1e-6, atol=1e-6)
    gradients = [
        torch.autograd.grad(each, list(model.parameters())) for each in (term.numerator, loss.sum())
    ]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
