"""Exports of vectors without scores, compared by the nearest neighbors of their rows.

``projector``: the TSV files of the TensorFlow Embedding Projector. ``heterodata``: the graph of
PyTorch Geometric with the embeddings of its nodes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.data.tables import KnowledgeGraph
from hasten.errors import UsageError
from hasten.exporting.sample import Found, Search
from hasten.inference.embed import embed, write_embeddings
from hasten.inference.vectors import vectors
from hasten.models.typed_graph.hgt import HGT

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun


def write_projector(
    loaded: LoadedRun, out: Path
) -> tuple[list[Path], NDArray[np.float32], NDArray[np.float32]]:
    """Write ``vectors.tsv`` and ``metadata.tsv`` of the items or the entities.

    Returns the files, the vectors that they hold, and those of hasten.
    """
    found = vectors(loaded)
    files = write_embeddings(found, out, "projector")
    return files, np.loadtxt(files[0], np.float32, delimiter="\t", ndmin=2), found.vectors


def write_heterodata(
    loaded: LoadedRun, out: Path
) -> tuple[list[Path], NDArray[np.float32], NDArray[np.float32]]:
    """Write ``graph.pt``: a HeteroData with ``edge_index`` and, for each node type, ``embedding``.

    Returns the files, the vectors that they hold, and those of hasten.
    """
    from hasten.integrations.heterodata import to_hetero_data  # noqa: PLC0415 - optional

    graph = loaded.dataset
    if not isinstance(loaded.model, HGT) or not isinstance(graph, KnowledgeGraph):
        raise UsageError(
            f"{loaded.path}: HeteroData is for typed graphs (hgt), and the model is "
            f"{loaded.config.model.name}: --to numpy or projector writes vectors"
        )
    data, found = to_hetero_data(graph), embed(loaded).vectors
    first = 0
    for kind in data.node_types:
        stop = first + data[kind].num_nodes
        data[kind].embedding = torch.from_numpy(found[first:stop])
        first = stop
    path = out / "graph.pt"
    torch.save(data, path)
    read = torch.load(path, weights_only=False)  # written above
    return [path], torch.cat([read[kind].embedding for kind in read.node_types]).numpy(), found


def nearest(table: NDArray[np.float32], rows: Int64, k: int) -> Search:
    """Search the k rows of the largest cosine with each of ``rows``, which are left out."""
    unit = F.normalize(torch.from_numpy(table))

    def search(numbers: Int64) -> Found:
        asked = torch.from_numpy(rows[numbers])
        cosine = unit[asked] @ unit.T
        cosine[torch.arange(len(asked)), asked] = -torch.inf
        values, places = cosine.topk(k)
        return places.numpy(), values.numpy()

    return search
