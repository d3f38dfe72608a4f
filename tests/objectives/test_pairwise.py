"""The distinct nodes of a batch of pairs, and where each node is among them."""

from __future__ import annotations

import pytest
import torch

from hasten.objectives.pairwise import InnerProductPairs


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("last", [7, 5000])
def test_distinct_nodes_and_their_places(fixed, last):
    """By a table of marks where the numbers are few, by sorting otherwise."""
    pairs, nodes = InnerProductPairs(), torch.tensor([3, last, 0, 3, last, 1])
    pairs.fixed = fixed
    distinct = pairs.distinct(nodes)
    assert distinct.tolist() == [0, 1, 3, last] + 2 * fixed * [last]
    assert pairs.places(distinct, nodes).tolist() == [2, 3, 0, 2, 3, 1]
