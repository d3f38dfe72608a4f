"""Relations that link no entity to itself, such as "sibling of".

A score made of products is high for two entities with similar embeddings, and an entity is most
similar to itself. For symmetric relations between similar entities, models then rank the entity of
the query above the true answers. If no training triple of a relation links an entity to itself,
``model.exclude_self`` ranks the entity of the query last.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hasten.data.graph_store.mapped import triple_blocks
from hasten.data.tables import TRAIN, KnowledgeGraph

#: added to the score; finite, so that it can be multiplied by 0
_LAST = -1e9


def self_link_scores(graph: KnowledgeGraph) -> Tensor:
    """Float32 [2R], for R relations and their reciprocals: what is added to self-link scores.

    It is 0 if a training triple of the relation links an entity to itself, or if the relation has
    no training triple.
    """
    count = len(graph.relations)
    triples, self_links = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for block in triple_blocks(graph, TRAIN):
        triples += np.bincount(block.relation, minlength=count)
        self_links += np.bincount(block.relation[block.head == block.tail], minlength=count)
    added = np.where((triples > 0) & (self_links == 0), _LAST, 0.0)
    return torch.from_numpy(np.tile(added, 2).astype(np.float32))
