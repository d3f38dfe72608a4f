"""Searches of an index: the node of a query stands where its self-score puts it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.exporting.faiss_index import with_self
from hasten.ops.table import FixedTable
from hasten.scoring import Catalog, SelfScorer


@pytest.mark.parametrize("self_score", [-3.0, 0.0, 3.0])
def test_results_of_inner_products_become_those_of_the_scorer(self_score):
    torch.manual_seed(0)
    vectors, node, bias = torch.randn(9, 4), torch.tensor([0, 3, 8]), torch.randn(3)
    scorer = SelfScorer(
        vectors[node], Catalog(FixedTable(vectors)), bias,
        node=node, self_score=torch.full((3,), self_score),
    )  # fmt: skip
    products = vectors[node] @ vectors.T + bias[:, None]
    found, entities = products.topk(5)
    scores, entities = with_self(scorer, found.numpy(), entities.numpy())
    expected, columns = scorer.block(0, 9).topk(4)
    np.testing.assert_allclose(scores[:, :4], expected, rtol=1e-5)
    assert np.array_equal(entities[:, :4], columns)
