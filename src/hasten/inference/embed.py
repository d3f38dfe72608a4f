"""The node embeddings of a run, and files of embeddings."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from hasten.atomic_write import atomic_path, write_atomically
from hasten.data.graph.node_types import NodeTypes, ids_of
from hasten.data.tables import KnowledgeGraph
from hasten.errors import HastenError, UsageError, os_errors_as
from hasten.inference.export import escape_formulas
from hasten.inference.table_view import TableResult
from hasten.models.interface import NodeEmbedder

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

_COLUMNS = ("node_id", "node_name", "node_type")


@dataclass(frozen=True, eq=False, repr=False)
class Embeddings(TableResult):
    """vectors: float32 [N, D]; ids: Arrow [N]; names (nulls where unknown), kinds: string [N]."""

    vectors: NDArray[np.float32]
    ids: pa.Array
    names: pa.Array
    kinds: pa.Array

    def __len__(self) -> int:
        return len(self.vectors)

    def to_table(self) -> pa.Table:
        """Columns node_id, node_name, node_type, and embedding with lists of float32."""
        flat = pa.array(self.vectors.reshape(-1))
        lists = pa.FixedSizeListArray.from_arrays(flat, self.vectors.shape[1])
        return pa.table([self.ids, self.names, self.kinds, lists], [*_COLUMNS, "embedding"])


def embed(loaded: LoadedRun, block: int | None = None) -> Embeddings:
    """The embeddings of all nodes of the graph. block: the number of nodes computed at a time.

    Raises:
        UsageError: its model has none.
    """
    model, graph = loaded.model, loaded.dataset
    if not isinstance(model, NodeEmbedder) or not isinstance(graph, KnowledgeGraph):
        raise UsageError(
            f"{loaded.path}: a run of {loaded.config.model.name} has no embeddings of nodes "
            "(hasten vectors RUN writes those of items, users or entities)"
        )
    with torch.inference_mode():
        output = model.embed() if block is None else model.embed(block)
        vectors = output.to("cpu", torch.float32).numpy()
    types = NodeTypes.of(graph)
    labels = graph.entities.labels.cast(pa.string())
    kinds = pa.array(np.array(types.names, object)[types.code].tolist(), pa.string())
    names = graph.entities.names
    return Embeddings(
        vectors,
        ids_of(labels) if graph.typed else labels,
        pa.nulls(len(labels), pa.string()) if names is None else names,
        kinds,
    )


def write_embeddings(embeddings: Embeddings, out: Path, form: str) -> list[Path]:
    """Write them; returns the files.

    csv, parquet: node_id, node_name, node_type, embedding (in CSV a JSON list); npy: the matrix,
    and ``X.nodes.csv`` beside it; projector: a folder with vectors.tsv and metadata.tsv.

    Raises:
        HastenError: they cannot be written.
    """
    with os_errors_as(HastenError, "cannot be written", out):
        if form == "projector":
            out.mkdir(exist_ok=True)
            return _write_projector(embeddings, out)
        with atomic_path(out) as new:
            if form == "npy":
                with new.open("wb") as file:
                    np.save(file, embeddings.vectors, allow_pickle=False)
            elif form == "parquet":
                _write_parquet(new, embeddings)
            else:
                _write_csv(new, [*_COLUMNS, "embedding"], _rows(embeddings), embeddings.vectors)
        if form != "npy":
            return [out]
        nodes = out.with_suffix(".nodes.csv")
        with atomic_path(nodes) as new:
            _write_csv(new, list(_COLUMNS), _rows(embeddings))
        return [out, nodes]


def _write_parquet(path: Path, embeddings: Embeddings) -> None:
    import pyarrow.parquet as pq  # noqa: PLC0415 - only where it is needed

    table = embeddings.to_table()
    table = table.set_column(0, "node_id", table["node_id"].cast(pa.string()))
    pq.write_table(table, path, compression="zstd")


def _rows(embeddings: Embeddings) -> list[tuple[str, str, str]]:
    """Ids and types as they are, names without formulas."""
    names = escape_formulas(pa.chunked_array([embeddings.names.fill_null("")]))
    columns = (embeddings.ids.cast(pa.string()), names, embeddings.kinds)
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _write_csv(
    path: Path,
    header: list[str],
    rows: list[tuple[str, str, str]],
    vectors: NDArray[np.float32] | None = None,
) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for number, row in enumerate(rows):
            more = [] if vectors is None else [_listed(vectors[number])]
            writer.writerow([*row, *more])


def _listed(vector: NDArray[np.float32]) -> str:
    """A JSON list; nine digits represent every float32 exactly."""
    return "[" + ", ".join(f"{value:.9g}" for value in vector.tolist()) + "]"


def _write_projector(embeddings: Embeddings, folder: Path) -> list[Path]:
    vectors, metadata = folder / "vectors.tsv", folder / "metadata.tsv"
    with atomic_path(vectors) as new:
        np.savetxt(new, embeddings.vectors, fmt="%.7g", delimiter="\t")
    lines = ["node_id\tnode_name\tnode_type"]
    lines += ["\t".join(" ".join(cell.split()) for cell in row) for row in _rows(embeddings)]
    write_atomically(metadata, ("\n".join(lines) + "\n").encode())
    _show_in_tensorboard(vectors, metadata)
    return [vectors, metadata]


def _show_in_tensorboard(vectors: Path, metadata: Path) -> None:
    """Name the files where TensorBoard's projector looks: in its log folder, or that of a run."""
    folder = vectors.parent
    of_run = (folder.parent / "config.yaml").is_file()
    for place, prefix in ((folder, ""), *([(folder.parent, f"{folder.name}/")] * of_run)):
        paths = f'tensor_path: "{prefix}{vectors.name}" metadata_path: "{prefix}{metadata.name}"'
        text = f'embeddings {{ tensor_name: "{folder.name}" {paths} }}\n'
        write_atomically(place / "projector_config.pbtxt", text.encode())


def read_embeddings(path: Path) -> Embeddings:
    """Read a file of :func:`write_embeddings` (csv, parquet, npy) or of another tool.

    Raises:
        UsageError: with the line of what cannot be read, or a value that is not finite.
    """
    if not path.is_file():
        raise UsageError(f"{path}: no such file")
    ending = path.suffix.lower()
    try:
        if ending == ".npy":
            vectors = np.asarray(np.load(path, allow_pickle=False), np.float32)
            beside = path.with_suffix(".nodes.csv")
            kinds = _column(beside, "node_type") if beside.is_file() else ["node"] * len(vectors)
            ids, names = [str(i) for i in range(len(vectors))], [""] * len(vectors)
        elif ending == ".parquet":
            import pyarrow.parquet as pq  # noqa: PLC0415 - only where it is needed

            table = pq.read_table(path)
            vectors = np.array(table["embedding"].to_pylist(), np.float32)
            ids, names, kinds = (table[f"node_{n}"].to_pylist() for n in ("id", "name", "type"))
        elif ending == ".csv":
            ids, names, kinds, vectors = _read_csv(path)
        else:
            raise UsageError(f"{path}: .csv, .parquet and .npy can be read")
    except (ValueError, KeyError, OSError, csv.Error, pa.ArrowException) as error:
        raise UsageError(f"{path}: no embeddings can be read: {error}") from error
    if vectors.ndim != 2 or not len(vectors) or len(kinds) != len(vectors):
        raise UsageError(f"{path}: a row of equally many numbers for every node is expected")
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(1))[0])
        raise UsageError(f"{path}: row {row + 1} holds a number that is not finite")
    order = np.argsort(np.array(kinds, object).astype(str), kind="stable")
    picked = [pa.array([c[i] for i in order], pa.string()) for c in (ids, names, kinds)]
    return Embeddings(vectors[order], *picked)


def _column(path: Path, name: str) -> list[str]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row[name] for row in csv.DictReader(file)]


def _read_csv(path: Path) -> tuple[list[str], list[str], list[str], NDArray[np.float32]]:
    csv.field_size_limit(1 << 24)
    ids, names, kinds, vectors = [], [], [], []
    with path.open(encoding="utf-8", newline="") as file:
        for line, row in enumerate(csv.DictReader(file), 2):
            try:
                vectors.append(np.array(json.loads(row["embedding"]), np.float32))
                ids.append(row["node_id"])
                names.append(row.get("node_name") or "")
                kinds.append(row.get("node_type") or "node")
            except (KeyError, TypeError, ValueError, RecursionError) as error:
                raise UsageError(
                    f"{path}: line {line}: node_id, node_name, node_type and a JSON list "
                    f"as embedding are expected ({error})"
                ) from error
            if vectors[-1].shape != vectors[0].shape:
                raise UsageError(
                    f"{path}: line {line}: {vectors[-1].size} numbers, {vectors[0].size} before"
                )
    return ids, names, kinds, np.stack(vectors) if vectors else np.empty((0, 0), np.float32)
