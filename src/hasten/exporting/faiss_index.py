"""Export to an exact inner-product index of FAISS, with id files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.tables import Dataset
from hasten.errors import UsageError
from hasten.exporting.arrays import write_ids
from hasten.exporting.sample import Found, Sample, Search
from hasten.inference.vectors import vectors
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.models.typed_graph.hgt import HGT
from hasten.scoring import FactorScorer, SelfScorer, TripleQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun


def write_faiss(loaded: LoadedRun, out: Path, sample: Sample) -> tuple[list[Path], Search]:
    """Write ``index.faiss`` and the ids of its rows.

    The index of a recommender holds the vectors of the items; ``users.npy`` are the queries. That
    of a knowledge graph model holds the vectors of the entities, and one more column with their
    biases: append 1 to a query. Self-scores, and ``exclude_self``, are not in it: a search may find
    the entity of the query itself.
    """
    try:
        import faiss  # noqa: PLC0415 - optional
    except ImportError as error:
        raise UsageError(f'{error}: pip install "hasten[faiss]"') from error
    model, dataset = loaded.model, loaded.dataset
    if isinstance(dataset, Dataset):
        table, users = vectors(loaded, "items").vectors, vectors(loaded, "users").vectors
        files = [out / "index.faiss", out / "users.npy"]
        np.save(files[1], users, allow_pickle=False)
        files += [write_ids(dataset.items, "item", out), write_ids(dataset.users, "user", out)]
    else:
        if not isinstance(model, FactorizedTripleModel | HGT):
            raise UsageError(
                f"{loaded.path}: the scores of {loaded.config.model.name} are no inner products, "
                "which an index searches: --to onnx or torch exports rotate"
            )
        table = vectors(loaded, "entities").vectors
        if isinstance(model, FactorizedTripleModel):
            table = np.column_stack([table, model.bias.detach().cpu().numpy()])
        files = [out / "index.faiss", write_ids(dataset.entities, "entity", out)]
    index: Any = faiss.IndexFlatIP(table.shape[1])
    index.add(np.ascontiguousarray(table, np.float32))
    faiss.write_index(index, str(files[0]))
    index = faiss.read_index(str(files[0]))

    def search(rows: Int64) -> Found:
        queries = sample.queries.take(rows)
        if isinstance(queries, TripleQueries):
            scorer = model.scorer(queries)
            assert isinstance(scorer, FactorScorer)
            found, shift = scorer.vectors, scorer.query_bias
            if isinstance(model, FactorizedTripleModel):
                found = torch.nn.functional.pad(found, (0, 1), value=1.0)
            # one more: the query's own node is taken out where it has a score of its own
            own = isinstance(scorer, SelfScorer)
            scores, entities = index.search(found.cpu().numpy(), min(sample.k + own, sample.count))
            if shift is not None:
                scores = scores + shift.cpu().numpy()[:, None]
            if isinstance(scorer, SelfScorer):
                scores, entities = with_self(scorer, scores, entities)
            return entities[:, : sample.k], scores[:, : sample.k]
        history, _ = sample.histories(rows)
        wider = min(sample.count, sample.k + history.shape[1])
        scores, items = index.search(users[queries.user], wider)
        hidden = (items[:, :, None] == history[:, None]).any(2)
        scores = np.where(hidden, -np.inf, scores)
        order = np.argsort(hidden, axis=1, kind="stable")[:, : sample.k]
        scores = np.take_along_axis(scores, order, 1)
        items = np.take_along_axis(items, order, 1)
        return np.where(np.isfinite(scores), items, -1), scores

    return files, search


def with_self(
    scorer: SelfScorer, scores: NDArray[np.float32], entities: Int64
) -> tuple[NDArray[np.float32], Int64]:
    """Results [Q, k], best first, with the nodes of the queries by their scores with themselves."""
    node = scorer.node[:, None]
    score, others = scorer.pairs(node).cpu().numpy(), entities != node.cpu().numpy()
    scores = np.column_stack([np.where(others, scores, -np.inf), score])
    entities = np.column_stack([entities, node.cpu().numpy()])
    order = np.argsort(-scores, axis=1, kind="stable")
    return np.take_along_axis(scores, order, 1), np.take_along_axis(entities, order, 1)
