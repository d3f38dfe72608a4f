"""Export to NumPy arrays and id files: scores that are inner products, or weights of items."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.tables import KnowledgeGraph, Vocabulary
from hasten.errors import UsageError
from hasten.exporting.sample import Found, Sample, Search, best
from hasten.inference.export import write_table
from hasten.inference.vectors import vectors
from hasten.models.knowledge_graph.complex import ComplEx
from hasten.models.knowledge_graph.distmult import DistMult
from hasten.models.linear.base import SparseItemModel
from hasten.models.linear.ease import EASE
from hasten.scoring import TripleQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

Array = NDArray[np.float32]


def write_ids(vocabulary: Vocabulary, kind: str, out: Path) -> Path:
    """``KINDs.csv``: the row of each array, the id, and the name if names are known."""
    columns: dict[str, pa.Array] = {
        "row": pa.array(np.arange(len(vocabulary))),
        f"{kind}_id": vocabulary.labels,
    }
    if vocabulary.names is not None:
        columns[f"{kind}_name"] = vocabulary.names
    path = out / f"{'entities' if kind == 'entity' else kind + 's'}.csv"
    write_table(pa.table(columns), path)
    return path


def write_numpy(loaded: LoadedRun, out: Path, sample: Sample) -> tuple[list[Path], Search]:
    """Write ``*.npy`` and ``*.csv``.

    items.npy and users.npy [rows, D], whose products are the scores; weights.npy [N, N] of ease;
    offsets.npy, targets.npy and weights.npy of slim and itemknn, in compressed sparse rows;
    entities.npy, relations.npy and bias.npy of distmult and complex, and with ``exclude_self``
    self_scores.npy.
    """
    arrays, model, dataset = arrays_of(loaded), loaded.model, loaded.dataset
    files = []
    for name, array in arrays.items():
        files.append(out / f"{name}.npy")
        np.save(files[-1], array, allow_pickle=False)
    if isinstance(dataset, KnowledgeGraph):
        files.append(write_ids(dataset.entities, "entity", out))
        files.append(write_ids(dataset.relations, "relation", out))
    else:
        files.append(write_ids(dataset.items, "item", out))
        if "users" in arrays:
            files.append(write_ids(dataset.users, "user", out))
    read = {name: np.load(out / f"{name}.npy", allow_pickle=False) for name in arrays}

    def search(rows: Int64) -> Found:
        queries = sample.queries.take(rows)
        if isinstance(queries, TripleQueries):
            heads, relations = read["entities"][queries.entity], read["relations"][queries.relation]
            if isinstance(model, ComplEx):
                query = _complex_product(heads, relations)
            else:
                query = heads * relations
            scores = query @ read["entities"].T + read["bias"]
            if "self_scores" in read:
                own = read["self_scores"][queries.relation]
                scores[np.arange(len(rows)), queries.entity] += own
            return best(scores, sample.k)
        history, _ = sample.histories(rows)
        if "users" in read:
            scores = read["users"][queries.user] @ read["items"].T
        else:
            scores = np.stack([_weighed(read, np.unique(each[each >= 0])) for each in history])
        for score, each in zip(scores, history, strict=True):
            score[each[each >= 0]] = -np.inf
        items, found = best(scores, sample.k)
        return np.where(np.isfinite(found), items, -1), found

    return files, search


def arrays_of(loaded: LoadedRun) -> dict[str, Array]:
    """The arrays by the name of their file. Raises UsageError if the model has none."""
    model = loaded.model
    if isinstance(model, DistMult | ComplEx):
        tables = {
            "entities": model.entities.block(0, len(model.entities)),
            "relations": model.relations.block(0, len(model.relations)),
            "bias": model.bias,
        }
        if model.self_link_scores is not None:
            tables["self_scores"] = model.self_link_scores
        return {name: table.detach().cpu().numpy() for name, table in tables.items()}
    if isinstance(model, EASE):
        return {"weights": model.weights.cpu().numpy()}
    if isinstance(model, SparseItemModel):
        return {n: getattr(model, n).cpu().numpy() for n in ("offsets", "targets", "weights")}
    if isinstance(loaded.dataset, KnowledgeGraph):
        raise UsageError(
            f"{loaded.path}: {loaded.config.model.name} computes the vector of a query by a "
            "network, so arrays alone do not give its scores: --to onnx or torch exports the "
            "network, and hasten vectors RUN writes the vectors of the entities"
        )
    return {"items": vectors(loaded, "items").vectors, "users": vectors(loaded, "users").vectors}


def _complex_product(first: Array, second: Array) -> Array:
    """[B, D] products of complex numbers: the left half of D holds real parts."""
    (a, b), (c, d) = np.split(first, 2, 1), np.split(second, 2, 1)
    return np.concatenate([a * c - b * d, a * d + b * c], 1)


def _weighed(read: dict[str, NDArray[np.float32]], items: Int64) -> Array:
    """[N] sums of the weights from these items."""
    if "offsets" not in read:
        return np.asarray(read["weights"][items].sum(0), np.float32)
    offsets, scores = read["offsets"].astype(np.int64), np.zeros(len(read["offsets"]) - 1)
    for item in items:
        part = slice(offsets[item], offsets[item + 1])
        np.add.at(scores, read["targets"][part].astype(np.int64), read["weights"][part])
    return scores.astype(np.float32)
