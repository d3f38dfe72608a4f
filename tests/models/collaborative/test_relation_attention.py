"""Attention logits grouped by relation against one edge after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.models.collaborative import relation_attention as module
from hasten.models.collaborative.relation_attention import RelationEdges, relation_attention
from tests.ops.reference import relation_attention_reference


@pytest.mark.parametrize(("heads", "tails"), [(7, 3), (3, 7), (7, 7)])
def test_equals_one_edge_after_the_other(heads, tails, monkeypatch):
    monkeypatch.setattr(module, "_ROWS_CPU", 2)  # several pieces of a relation
    generator = np.random.default_rng(0)
    head, tail = np.sort(generator.integers(0, heads, 40)), generator.integers(0, tails, 40)
    relation = generator.choice([0, 1, 3], 40)  # relation 2 has no edge
    torch.manual_seed(0)
    nodes, relations, weights = torch.randn(7, 5), torch.randn(4, 3), torch.randn(4, 5, 3)
    edges = RelationEdges.build(head, relation, tail)
    assert [span.relation for span in edges.spans] == [0, 1, 3]
    ours = relation_attention(edges, nodes, relations, weights)
    columns = (torch.from_numpy(c) for c in (head, relation, tail))
    theirs = relation_attention_reference(*columns, nodes, relations, weights)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
