"""The vectors of items, users and entities, and the items most similar to an item.

The score of a user and an item is the inner product of their vectors. Models with another score
function have no such vectors. Vectors of a knowledge graph model are those of its entities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.data.tables import Dataset, KnowledgeGraph, Vocabulary
from hasten.errors import UsageError
from hasten.evaluation.query_tiles import make_tiles
from hasten.evaluation.ranker import scoring
from hasten.inference.embed import Embeddings, embed
from hasten.inference.labels import as_list, indices_of
from hasten.inference.recommend import Until, queries_of
from hasten.inference.table_view import TableResult
from hasten.models.interface import NodeEmbedder
from hasten.models.knowledge_graph.base import TripleModel
from hasten.models.supports import Supports
from hasten.scoring import FactorScorer

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

What = Literal["items", "users", "entities"]
#: rows of a matrix of similarities
_BLOCK = 64


def vectors(loaded: LoadedRun, what: What | None = None, until: Until = "test") -> Embeddings:
    """The vectors of the items, users or entities of a run; None: of items, or of entities.

    until: the last part of the data in the history of a user, for models that encode histories.
    Raises UsageError if the model has none.
    """
    dataset = loaded.dataset
    graph = isinstance(dataset, KnowledgeGraph)
    chosen = what or ("entities" if graph else "items")
    if chosen not in get_args(What) or graph != (chosen == "entities"):
        name, has = loaded.config.model.name, "entities" if graph else "items and users"
        raise UsageError(f"{loaded.path}: a run of {name} has vectors of {has}, not of {chosen}")
    if isinstance(dataset, KnowledgeGraph):
        if isinstance(loaded.model, NodeEmbedder):
            return embed(loaded)
        if not isinstance(loaded.model, TripleModel):
            raise _no_vectors(loaded)
        table = loaded.model.entities
        return _embeddings(table.block(0, len(table)).detach(), dataset.entities, "entity")
    with scoring(loaded.model):
        if chosen == "users":
            return _embeddings(_of_users(loaded, dataset, until), dataset.users, "user")
        table = _scorer(loaded, dataset, np.zeros(1, np.int64), "train").catalog.table
        return _embeddings(table.block(0, len(table)), dataset.items, "item")


def _of_users(loaded: LoadedRun, dataset: Dataset, until: Until) -> Tensor:
    users = np.arange(len(dataset.users), dtype=np.int64)
    tiles = make_tiles(queries_of(dataset, users, until).lengths)
    parts = [
        _scorer(loaded, dataset, tile.padded_rows, until).vectors[: tile.count].cpu()
        for tile in tiles
    ]
    order = np.argsort(np.concatenate([tile.rows for tile in tiles]))
    return torch.cat(parts)[torch.from_numpy(order)]


def _scorer(loaded: LoadedRun, dataset: Dataset, users: Int64, until: Until) -> FactorScorer:
    scorer = loaded.model.scorer(queries_of(dataset, users, until))
    if not isinstance(scorer, FactorScorer) or not Supports.of(type(loaded.model)).gradient_steps:
        raise _no_vectors(loaded)
    return scorer


def _no_vectors(loaded: LoadedRun) -> UsageError:
    return UsageError(
        f"{loaded.path}: {loaded.config.model.name} scores without vectors of items and users; "
        "models trained by gradient steps, such as sasrec, bprmf and lightgcn, have vectors"
    )


def _embeddings(values: Tensor, labels: Vocabulary, kind: str) -> Embeddings:
    count = len(labels)
    names = pa.nulls(count, pa.string()) if labels.names is None else labels.names
    array = values.to("cpu", torch.float32).numpy()
    return Embeddings(array, labels.labels, names, pa.array([kind] * count, pa.string()))


@dataclass(frozen=True, eq=False, repr=False)
class SimilarItems(TableResult):
    """The k nearest items (or entities) of each of Q items, by the cosine of their vectors.

    asked: int64 [Q]; item: int64 [Q, k]; cosine: float32 [Q, k], descending.
    """

    items: Vocabulary
    asked: Int64
    item: Int64
    cosine: NDArray[np.float32]

    def __len__(self) -> int:
        return self.item.size

    def to_table(self) -> pa.Table:
        """Columns item_id, rank, similar_id, cosine, and similar_name if names are known."""
        count, k = self.item.shape
        flat = self.item.reshape(-1)
        columns = {
            "item_id": self.items.take(np.repeat(self.asked, k)),
            "rank": pa.array(np.tile(np.arange(1, k + 1, dtype=np.int32), count)),
            "similar_id": self.items.take(flat),
            "cosine": pa.array(self.cosine.reshape(-1)),
        }
        if self.items.names is not None:
            columns["similar_name"] = self.items.names.take(pa.array(flat))
        return pa.table(columns)


def similar_items(loaded: LoadedRun, items: object, k: int = 10) -> SimilarItems:
    """The ``k`` items whose vectors have the largest cosine with that of an item.

    items: a label, or several. In a knowledge graph, items are entities. The item itself is left
    out. Raises DataError for unknown labels, UsageError if the model has no vectors.
    """
    if k < 1:
        raise UsageError(f"k {k}: must be 1 or more")
    dataset = loaded.dataset
    graph = isinstance(dataset, KnowledgeGraph)
    vocabulary = dataset.entities if isinstance(dataset, KnowledgeGraph) else dataset.items
    indices = indices_of(vocabulary, as_list(items), "entity" if graph else "item", "check the id")
    unit = F.normalize(torch.from_numpy(vectors(loaded).vectors))
    blocks = []
    for rows in torch.split(torch.from_numpy(indices), _BLOCK):
        cosine = unit[rows] @ unit.T
        cosine[torch.arange(len(rows)), rows] = -torch.inf
        blocks.append(cosine.topk(min(k, len(unit) - 1)))
    values, nearest = (torch.cat(each).numpy() for each in zip(*blocks, strict=True))
    return SimilarItems(vocabulary, indices, nearest, values)
