"""Checkpoints, passes, ties, limits of memory, approximations: what is around the products."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.data.tables import TRAIN, Triples
from hasten.errors import HastenError, UsageError
from hasten.influence.factors import Arithmetic
from hasten.influence.products import products
from hasten.influence.run import Options, sampled
from hasten.influence.sketch import Sketch
from hasten.influence.trace import Checkpoint, Limits, Plan, best_of, trace
from tests.influence.test_influence_triples import (  # noqa: F401 - a fixture
    alone,
    expected,
    found_matrix,
    graph,
    make,
    some_tests,
    source_of,
)

LIMITS = Limits(1 << 30, 16)


@pytest.mark.parametrize("name", ["conve", "conve-kernel-2"])
@pytest.mark.parametrize("loss", ["training", "positive"])
def test_checkpoints_are_added_up_by_their_learning_rates(loss, name, graph):  # noqa: F811
    model, tests = make(name, "1-n"), some_tests(graph)
    first = {k: v.clone() for k, v in model.state_dict().items()}
    second = {k: v * 1.1 + 0.05 for k, v in first.items()}
    source = source_of(model, graph, loss, "all", tests)
    wanted = 0
    for weights, lr in ((first, 0.1), (second, 0.03)):
        model.load_state_dict(weights)
        wanted = wanted + lr * expected(model, graph, tests, loss, "all")[0]
    both = [
        Checkpoint("first", 0.1, lambda: model.load_state_dict(first)),
        Checkpoint("second", 0.03, lambda: model.load_state_dict(second)),
    ]
    found = found_matrix(source, both, LIMITS)
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    # as many passes as memory makes of it change nothing
    sizes = source.sizes()
    least = 2 * 8 * (sizes.term + sizes.test + 40 * sizes.pair)
    plan = Plan.within(Limits(least, 5), source)
    assert 1 <= plan.tests < source.examples.tests
    found = found_matrix(source, both, Limits(least, 5))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_a_budget_that_holds_nothing_is_refused(graph):  # noqa: F811
    source = source_of(make("conve", "1-n"), graph, "positive", "all", some_tests(graph))
    with pytest.raises(UsageError, match="--memory-budget: 100 bytes are too few"):
        found_matrix(source, [Checkpoint("only", 1.0, lambda: None)], Limits(100, 16))


def test_equal_scores_come_in_the_order_of_the_training_part():
    scores = torch.tensor([[0.5, 0.5, -1.0, 0.5, 2.0, -1.0, 0.0]])
    members = torch.arange(7)[None]
    best = best_of(scores, members, 3, 1)
    assert best.ids.tolist() == [[4, 0, 1]]
    assert best.scores.tolist() == [[2.0, 0.5, 0.5]]
    worst = best_of(scores, members, 3, -1)
    assert worst.ids.tolist() == [[2, 5, -1]]  # what is neither is not listed


def test_influences_that_are_not_finite_are_refused(graph):  # noqa: F811
    model = make("distmult", "1-n")
    source = source_of(model, graph, "positive", "all", some_tests(graph))
    with torch.no_grad():
        model.entities.weight[0] = torch.inf
    with pytest.raises(HastenError, match="not finite"):
        found_matrix(source, [Checkpoint("only", 1.0, lambda: None)], LIMITS)


@pytest.mark.parametrize("loss", ["training", "positive"])
def test_a_sample_has_the_influences_of_the_whole(loss, graph):  # noqa: F811
    model, tests = make("complex", "1-n"), some_tests(graph)
    count = len(graph.of(TRAIN))
    kept = sampled(count, Options(sample_rate=0.4, seed=3))
    assert 0 < len(kept) < count
    assert np.array_equal(kept, sampled(count, Options(sample_rate=0.4, seed=3)))
    assert not np.array_equal(kept, sampled(count, Options(sample_rate=0.4, seed=4)))
    once = [Checkpoint("only", 1.0, lambda: None)]
    whole = found_matrix(source_of(model, graph, loss, "all", tests), once, LIMITS)
    some = found_matrix(source_of(model, graph, loss, "all", tests, kept), once, LIMITS)
    torch.testing.assert_close(some, whole[:, kept], rtol=1e-9, atol=1e-12)
    with pytest.raises(UsageError, match="none of the 5 training examples"):
        sampled(5, Options(sample_rate=1e-6))


@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.parametrize(("name", "layers"), [("conve", "all"), ("distmult", "last")])
def test_a_projection_is_right_on_average(name, layers, loss, graph):  # noqa: F811
    """The mean over seeds comes near as one over the root of their number."""
    tests = some_tests(graph)
    source = source_of(make(name, "1-n"), graph, loss, layers, tests).examples
    test, block = source.test(0, source.tests), source.block(0, source.terms, None)
    exact = products(test, block, Arithmetic())
    scale = float(exact.norm(dim=1).max())
    size = 64
    errors = []
    total = torch.zeros_like(exact)
    for seed in range(200):
        sketch = Sketch(size, seed, rows=9, relations=4)
        found = sketch(test) @ sketch(block).T
        errors.append(float((found - exact).norm(dim=1).max()) / scale)
        total += found
    norms = torch.outer(*((f * f).sum(1).sqrt() for f in (sketch(test), sketch(block))))
    # a product's standard deviation is about norm · norm / sqrt(size)
    assert float(((found - exact) / norms).abs().mean()) < 3 / size**0.5
    mean_error = float((total / 200 - exact).norm(dim=1).max()) / scale
    assert mean_error < 0.2 * np.mean(errors)


def test_projected_influences_are_products_of_sketches(graph):  # noqa: F811
    tests = some_tests(graph)
    once, sketch = [Checkpoint("only", 1.0, lambda: None)], Sketch(16, 0, 9, 4)
    projected = source_of(make("conve", "1-n"), graph, "positive", "all", tests, sketch=sketch)
    source = projected.examples
    terms = sketch(source.test(0, source.tests)).view(2, -1, 16).sum(0)
    each = sketch(source.block(0, source.terms, None))
    wanted = (terms @ each.T)[:, source.terms_of].sum(1)
    torch.testing.assert_close(found_matrix(projected, once, LIMITS), wanted)


def test_low_precision_is_near(graph):  # noqa: F811
    source = source_of(make("conve", "1-n", torch.float32), graph, "training", "all",
                       some_tests(graph))  # fmt: skip
    once = [Checkpoint("only", 1.0, lambda: None)]
    exact = found_matrix(source, once, LIMITS)
    low = Arithmetic(torch.bfloat16)
    factors = source.examples.factors
    source.arithmetic = factors.arithmetic = factors.encoder.arithmetic = low
    count = source.examples.terms_of.shape[1]
    pro, _ = trace(source, once, topk=count, limits=LIMITS, **alone())
    for row, (ids, scores) in enumerate(zip(pro.ids, pro.scores, strict=True)):
        wanted = exact[row, ids[ids >= 0]]
        scale = float(exact[row].abs().max())
        assert not torch.equal(scores[ids >= 0], wanted)
        assert float((scores[ids >= 0] - wanted).abs().max()) < 0.05 * scale


def test_tests_are_summed_over_both_directions(graph):  # noqa: F811
    """A single triple asked alone has the row that it has among others."""
    model, tests = make("conve", "1-n"), some_tests(graph)
    once = [Checkpoint("only", 1.0, lambda: None)]
    whole = found_matrix(source_of(model, graph, "training", "all", tests), once, LIMITS)
    one = Triples(tests.head[2:3], tests.relation[2:3], tests.tail[2:3])
    alone_row = found_matrix(source_of(model, graph, "training", "all", one), once, LIMITS)
    torch.testing.assert_close(alone_row[0], whole[2])
