"""AUROC and average precision against scikit-learn, and which links are compared."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from hasten.config import TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import TEST
from hasten.evaluation.links import (
    auroc,
    average_precision,
    link_quality,
    link_scores,
    negative_links,
)
from hasten.models.interface import Sizes
from hasten.models.knowledge_graph.distmult import DistMult
from tests.models.typed_graph.test_hgt import table


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_sklearn_with_ties(seed):
    rng = np.random.default_rng(seed)
    scores = rng.integers(6, size=80).astype(np.float64)
    true = rng.random(80) < 0.4
    assert auroc(scores, true) == pytest.approx(roc_auc_score(true, scores))
    assert average_precision(scores, true) == pytest.approx(average_precision_score(true, scores))


def graph():
    return load_graph(TripleOptions(ratios=(0.6, 0.1, 0.3)), 0, table())


def model_of(dataset):
    model = DistMult(DistMult.Options(width=4), Sizes.of(dataset))
    return model.double()


def test_negative_links_are_of_the_right_types_and_in_no_part():
    dataset = graph()
    types = NodeTypes.of(dataset)
    t = dataset.triples
    known = set(zip(t.head.tolist(), t.relation.tolist(), t.tail.tolist(), strict=True))
    code = types.code
    for side in (0, 1):
        heads, relations, tails = negative_links(dataset, TEST, 0, side)
        assert len(heads) > 0.9 * len(dataset.of(TEST))
        for h, r, o in zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True):
            assert (h, r, o) not in known
            assert (code[h], code[o]) == (types.source[r], types.target[r])


def test_scores_are_those_of_the_model_one_by_one():
    dataset = graph()
    model = model_of(dataset)
    t = dataset.of(TEST)
    found = link_scores(model, t.head, t.relation, t.tail)
    e, r = model.entities.weight, model.relations.weight
    expected = (e[t.head] * r[t.relation] * e[t.tail]).sum(1) + model.bias[t.tail]
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-6)


def test_quality_is_given_for_every_relation_and_in_the_mean():
    dataset = graph()
    found = link_quality(model_of(dataset), dataset, TEST)
    assert set(found.relations) == {"targets", "treats", "associates", "meets"}
    each = [figures["auroc"] for figures in found.relations.values()]
    assert found.auroc == pytest.approx(np.mean(each))
    assert sum(f["links"] for f in found.relations.values()) == len(dataset.of(TEST))
