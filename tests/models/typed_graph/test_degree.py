"""The degree baseline against its definition."""

from __future__ import annotations

import numpy as np
import torch

from hasten.config import TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.tables import TRAIN
from hasten.models.interface import Sizes
from hasten.models.typed_graph.degree import Degree, DegreeOptions
from hasten.scoring import TripleQueries
from tests.models.typed_graph.test_hgt import table


def test_scores_are_the_logarithms_of_both_degrees():
    dataset = load_graph(TripleOptions(ratios=(0.7, 0.15, 0.15)), 0, table())
    sizes = Sizes.of(dataset)
    model = Degree(DegreeOptions(), sizes)
    model.fit(dataset)
    train = dataset.of(TRAIN)
    count = sizes.entities
    for relation in range(sizes.relations):
        mine = train.relation == relation
        leave = np.log1p(np.bincount(train.head[mine], minlength=count))
        reach = np.log1p(np.bincount(train.tail[mine], minlength=count))
        nodes = np.arange(count)
        tails = model.scorer(TripleQueries(nodes, np.full(count, relation))).block(0, count)
        torch.testing.assert_close(
            tails.double(), torch.from_numpy(leave[:, None] + reach[None, :]), rtol=1e-6, atol=1e-6
        )
        asked = TripleQueries(nodes, np.full(count, relation + sizes.relations))
        heads = model.scorer(asked).block(2, 7)
        torch.testing.assert_close(heads, tails.T[:, 2:7])
