"""The heaviest paths against trying all of them."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from hasten.ops.graph.best_paths import PathGraph, best_paths, bounds_to
from tests.ops.reference import best_paths_reference


def graph(seed: int, nodes: int = 9, edges: int = 40, levels: int = 0) -> PathGraph:
    """Node 2 has no edges; pairs may have several; levels: so few distinct weights, hence ties."""
    generator = np.random.default_rng(seed)
    head = np.sort(generator.choice([n for n in range(nodes) if n != 2], edges))
    weight = generator.random(edges)
    if levels:
        weight = np.ceil(weight * levels) / levels
    weight[::11] = 0.0
    offsets = np.concatenate([[0], np.cumsum(np.bincount(head, minlength=nodes))])
    return PathGraph(
        offsets.astype(np.int64),
        generator.integers(0, nodes, edges),
        generator.integers(0, 4, edges),
        weight,
    )


@pytest.mark.parametrize("levels", [0, 2])
@pytest.mark.parametrize("edges", [1, 2, 3, 4])
def test_all_paths_come_heaviest_first(edges, levels):
    found = 0
    for seed in range(6):
        made = graph(seed, levels=levels)
        for source in range(4):
            expected = best_paths_reference(made, source, 7, edges)
            ours = list(best_paths(made, source, 7, edges))
            assert [path.edges for path in ours] == [path.edges for path in expected]
            assert [p.weight for p in ours] == pytest.approx([p.weight for p in expected])
            found += len(ours)
    assert found > 5


def test_the_first_few_are_the_first_of_all_and_bounds_may_be_shared():
    made = graph(3)
    bounds = bounds_to(made, 7, 3)
    for source in (0, 1, 5):
        first = list(islice(best_paths(made, source, 7, 3, bounds), 2))
        assert first == best_paths_reference(made, source, 7, 3)[:2]


def test_nodes_without_a_path_have_none():
    assert not list(best_paths(graph(0), 2, 7, 4))
