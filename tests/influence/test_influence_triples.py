"""Influences of triples against gradients written out, in float64 and float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.config_loading.build import build_config
from hasten.data.graph.load import load_graph
from hasten.data.tables import TEST, TRAIN, KnowledgeGraph, Triples
from hasten.distributed.processes import Processes
from hasten.influence.factored import FactoredSource
from hasten.influence.factors import Arithmetic
from hasten.influence.support import encoder_of
from hasten.influence.trace import Checkpoint, Limits, trace, trace_self
from hasten.influence.triples import Answers, FactoredTriples, TripleFactors
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.complex import ComplEx, ComplExOptions
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.conve_options import ConvEOptions
from hasten.models.knowledge_graph.distmult import DistMult, DistMultOptions
from tests.influence.naive import gradient, randomise, triple_loss

SIZES = Sizes(entities=9, relations=2)
MODELS = {
    "conve": (ConvE, ConvEOptions, {"width": 12, "channels": 3}),
    "conve-kernel-2": (ConvE, ConvEOptions, {"width": 6, "channels": 11, "kernel": 2}),
    "distmult": (DistMult, DistMultOptions, {"width": 5}),
    "complex": (ComplEx, ComplExOptions, {"width": 6}),
}


@pytest.fixture(scope="module")
def graph() -> KnowledgeGraph:
    """Few entities, so that everything meets: shared questions, loops, tests known in training."""
    generator = np.random.default_rng(1)
    rows = {tuple(row) for row in generator.integers(0, [9, 2, 9], (26, 3)).tolist()}
    rows |= {(4, 0, 4), (4, 1, 4), (0, 0, 1), (1, 0, 0)} | {(i, 0, (i + 1) % 9) for i in range(9)}
    table = dict(zip(("head", "relation", "tail"), zip(*sorted(rows), strict=True), strict=True))
    arrays = {name: np.array(column) for name, column in table.items()}
    return load_graph(build_config("conve", None).data, 0, arrays)


def make(name: str, loss: str, kind: torch.dtype = torch.float64, **changes):
    model, options, settings = MODELS[name]
    return randomise(model(options(**settings, loss=loss, **changes), SIZES).to(kind), 3)


def source_of(model, graph, loss, layers, tests, kept=None, sketch=None) -> FactoredSource:
    arithmetic = Arithmetic()
    encoder = encoder_of(model, arithmetic)
    factors = TripleFactors(model, encoder, Answers.build(graph), loss, layers, arithmetic)
    kept = np.arange(len(graph.of(TRAIN))) if kept is None else kept
    return FactoredSource(FactoredTriples(graph, factors, tests, kept), arithmetic, sketch)


def alone() -> dict:
    return {"processes": Processes(torch.device("cpu"))}


def as_list(triples: Triples) -> list[tuple[int, int, int]]:
    return list(zip(*(c.tolist() for c in (triples.head, triples.relation, triples.tail)),
                    strict=True))  # fmt: skip


def some_tests(graph) -> Triples:
    """Test triples, and a training triple and a loop."""
    rest, train = graph.of(TEST), graph.of(TRAIN)
    loop = Triples(np.array([4]), np.array([0]), np.array([4]))
    every = (rest, train.take(np.arange(2)), loop)
    return Triples(
        *(np.concatenate([getattr(part, name) for part in every])
          for name in ("head", "relation", "tail"))
    )  # fmt: skip


def expected(model, graph, tests, loss, layers) -> tuple[torch.Tensor, torch.Tensor]:
    """[T, n] products and [n] squared norms by the definition."""
    known = as_list(graph.of(TRAIN))

    def rows(triples):
        losses = (triple_loss(model, z, known, loss, layers) for z in triples)
        return torch.stack([gradient(model, value) for value in losses])

    train = rows(known)
    return rows(as_list(tests)) @ train.T, (train * train).sum(1)


def found_matrix(source, checkpoints, limits) -> torch.Tensor:
    """[T, n] from proponents and opponents, so that both are tested too."""
    count = source.examples.terms_of.shape[1]
    pro, con = trace(source, checkpoints, topk=count, limits=limits, **alone())
    matrix = pro.scores.new_zeros(len(pro.ids), count)
    for best in (pro, con):
        for row, (ids, scores) in enumerate(zip(best.ids, best.scores, strict=True)):
            matrix[row, ids[ids >= 0]] = scores[ids >= 0]
    return matrix


CASES = [(name, "1-n") for name in MODELS] + [("distmult", "1vsall"), ("complex", "1vsall")]


@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.parametrize(
    ("name", "trained"),
    [
        *CASES,
        *(("conve", "1vsall"), ("distmult", "1-n-softmax")),
        *(("distmult", "sampled"), ("complex", "sampled-softmax")),
    ],
)
def test_influences_are_products_of_gradients(name, trained, loss, layers, graph):
    if loss == "training" and trained in ("sampled", "sampled-softmax"):
        pytest.skip("the training loss of sampled negatives is refused")
    model, tests = make(name, trained), some_tests(graph)
    source = source_of(model, graph, loss, layers, tests)
    wanted, norms = expected(model, graph, tests, loss, layers)
    once = [Checkpoint("only", 0.5, lambda: None)]
    for rows in (3, 7, 500):
        limits = Limits(1 << 30, rows)
        torch.testing.assert_close(
            found_matrix(source, once, limits), 0.5 * wanted, rtol=1e-9, atol=1e-12
        )
        own = trace_self(source, once, limits=limits, **alone())
        torch.testing.assert_close(own, 0.5 * norms, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.parametrize(("name", "trained"), [("conve", "1-n-softmax"), ("distmult", "1vsall")])
def test_influences_with_a_smoothed_softmax(name, trained, loss, graph):
    model, tests = make(name, trained, label_smoothing=0.3), some_tests(graph)
    source = source_of(model, graph, loss, "all", tests)
    wanted, _ = expected(model, graph, tests, loss, "all")
    once = [Checkpoint("only", 1.0, lambda: None)]
    found = found_matrix(source, once, Limits(1 << 30, 7))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("layers", ["all", "last"])
@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.parametrize("name", ["conve", "complex"])
def test_influences_without_biases(name, loss, layers, graph):
    model, tests = make(name, "1-n", bias=False), some_tests(graph)
    source = source_of(model, graph, loss, layers, tests)
    wanted, norms = expected(model, graph, tests, loss, layers)
    once = [Checkpoint("only", 1.0, lambda: None)]
    limits = Limits(1 << 30, 7)
    found = found_matrix(source, once, limits)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    own = trace_self(source, once, limits=limits, **alone())
    torch.testing.assert_close(own, norms, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.parametrize(
    ("layers", "frozen"),
    [("last-2", ("relations", "filters", "feature")), ("last-3", ("relations",))],
)
def test_the_last_layers_of_conve(layers, frozen, loss, graph):
    model, tests = make("conve", "1-n"), some_tests(graph)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(frozen))
    known = as_list(graph.of(TRAIN))

    def rows(triples):
        trained = [p for p in model.parameters() if p.requires_grad]
        losses = (triple_loss(model, z, known, loss, layers) for z in triples)
        found = (torch.autograd.grad(value, trained) for value in losses)
        return torch.stack([torch.cat([g.flatten() for g in each]) for each in found])

    source, train = source_of(model, graph, loss, layers, tests), rows(known)
    once, limits = [Checkpoint("only", 0.5, lambda: None)], Limits(1 << 30, 7)
    wanted = 0.5 * rows(as_list(tests)) @ train.T
    torch.testing.assert_close(found_matrix(source, once, limits), wanted, rtol=1e-9, atol=1e-12)
    own = trace_self(source, once, limits=limits, **alone())
    torch.testing.assert_close(own, 0.5 * (train * train).sum(1), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.parametrize("name", ["conve", "complex"])
def test_float32_is_as_good_as_it_can_be(name, loss, graph):
    tests = some_tests(graph)
    source = source_of(make(name, "1-n", torch.float32), graph, loss, "all", tests)
    wanted, norms = expected(make(name, "1-n"), graph, tests, loss, "all")
    limits, once = Limits(1 << 30, 16), [Checkpoint("only", 1.0, lambda: None)]
    found = found_matrix(source, once, limits).double()
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5
    own = trace_self(source, once, limits=limits, **alone()).double()
    torch.testing.assert_close(own, norms, rtol=1e-5, atol=1e-6)
