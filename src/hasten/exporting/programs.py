"""Export to ONNX and to torch.export, and search with the written file."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from hasten.arrays import Int64
from hasten.atomic_write import write_atomically
from hasten.errors import UsageError
from hasten.exporting.recommender_graphs import (
    ItemWeightGraph,
    RecommenderGraph,
    SASRecGraph,
    TiSASRecGraph,
    UserGraph,
)
from hasten.exporting.sample import Found, Sample, Search, best
from hasten.exporting.triple_graphs import ConvEGraph, HGTGraph, RotatEGraph, TripleGraph
from hasten.inference.vectors import vectors
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.models.knowledge_graph.rotate import RotatE
from hasten.models.linear.ease import EASE
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.models.supports import Supports
from hasten.models.typed_graph.hgt import HGT
from hasten.scoring import TripleQueries

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

#: arrays of the inputs to arrays of the outputs
Run = Callable[..., list[Any]]
_OPSET = 18
_WIDTHS = {"history": "length", "times": "length", "exclude": "excluded"}
_FEATURES = ("categories", "numbers")
#: the first of these classes that a model is an instance of
_GRAPHS: dict[Any, Any] = {
    TiSASRec: TiSASRecGraph,
    SASRec: SASRecGraph,
    EASE: ItemWeightGraph,
    ConvE: ConvEGraph,
    RotatE: RotatEGraph,
    FactorizedTripleModel: TripleGraph,
    HGT: HGTGraph,
}


def graph_of(loaded: LoadedRun, k: int) -> Any:
    """The module that computes the model's scores. Raises UsageError if it has none."""
    model = loaded.model
    for kind, graph in _GRAPHS.items():
        if isinstance(model, kind):
            if issubclass(graph, SASRecGraph):
                events = getattr(loaded.dataset, "event_features", None)
                return graph(model, k, () if events is None else events.columns)
            return graph(model, k) if issubclass(graph, RecommenderGraph) else graph(model)
    outside = model.reads in ("triples", "interactions", "sequences")
    if not Supports.of(type(model)).gradient_steps or outside:
        raise UsageError(
            f"{loaded.path}: {loaded.config.model.name} computes its scores outside of torch's "
            "dense tensors: it cannot be exported to onnx or torch; slim and itemknn can be "
            "exported to numpy, and hasten serve serves every model"
        )
    users, items = (torch.from_numpy(vectors(loaded, what).vectors) for what in ("users", "items"))
    return UserGraph(users, items, k)


def write_torch(loaded: LoadedRun, out: Path, sample: Sample) -> tuple[list[Path], Search]:
    """Write ``model.pt2``, which ``torch.export.load`` reads without hasten."""
    graph, path = graph_of(loaded, sample.k), out / "model.pt2"
    with _quiet():
        torch.export.save(_traced(graph), path)
        files = [path, *write_columns(loaded, out)]
        module = torch.export.load(path).module()

    def run(*arrays: Int64) -> list[Any]:
        with torch.inference_mode():
            found = module(*map(torch.from_numpy, arrays))
        return [each.numpy() for each in (found if isinstance(found, tuple) else (found,))]

    return files, _search(graph, run, sample)


def write_onnx(loaded: LoadedRun, out: Path, sample: Sample) -> tuple[list[Path], Search]:
    """Write ``model.onnx``."""
    try:
        import onnxruntime  # noqa: PLC0415 - optional
        import onnxscript  # noqa: F401, PLC0415 - torch needs it
    except ImportError as error:
        raise UsageError(f'{error}: pip install "hasten[onnx]"') from error
    graph, path = graph_of(loaded, sample.k), out / "model.onnx"
    with _quiet():
        program = torch.onnx.export(
            _traced(graph), dynamo=True, opset_version=_OPSET, verbose=False,
            input_names=graph.inputs, output_names=graph.outputs,
        )  # fmt: skip
        assert program is not None
        program.save(path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(*arrays: Int64) -> list[Any]:
        return list(session.run(None, dict(zip(graph.inputs, arrays, strict=True))))

    files = [path, *sorted(out.glob("model.onnx.data")), *write_columns(loaded, out)]
    return files, _search(graph, run, sample)


def write_columns(loaded: LoadedRun, out: Path) -> list[Path]:
    """``event_features.json``: the columns in the order of the inputs, if there are any."""
    events = getattr(loaded.dataset, "event_features", None)
    if events is None:
        return []
    path = out / "event_features.json"
    write_atomically(path, json.dumps(events.about(), indent=2, ensure_ascii=False).encode())
    return [path]


def _traced(graph: nn.Module) -> torch.export.ExportedProgram:
    """The exported program; the sizes of batches, histories and exclusions may vary."""
    batch = torch.export.Dim("batch")
    names: tuple[str, ...] = graph.inputs  # type: ignore[assignment]
    given: dict[str, torch.Tensor] = {}
    shapes: dict[str, dict[int, Any]] = {}
    for name in names:
        described = name in _FEATURES
        width = "length" if described else _WIDTHS.get(name)
        size = (2, 3) if width else (2,)
        if described:
            size = (*size, len(getattr(graph, f"{name}_first")))
        kind = torch.float64 if name == "numbers" else torch.int64
        given[name] = torch.zeros(size, dtype=kind)
        shapes[name] = {0: batch}
        if width:
            longest = _longest(graph) if width == "length" else None
            shapes[name][1] = torch.export.Dim(width, max=longest)
    dynamic: list[Any] = [shape for name, shape in shapes.items() if name not in _FEATURES]
    if features := [shapes[name] for name in _FEATURES if name in shapes]:
        dynamic.append(tuple(features))  # they are the variable arguments
    with torch.no_grad():
        arguments = tuple(given.values())
        return torch.export.export(graph, arguments, dynamic_shapes=tuple(dynamic))


def _longest(graph: nn.Module) -> int | None:
    return graph.model.options.max_length if isinstance(graph, SASRecGraph) else None


def _search(graph: nn.Module, run: Run, sample: Sample) -> Search:
    def search(rows: Int64) -> Found:
        queries = sample.queries.take(rows)
        if isinstance(queries, TripleQueries):
            return best(run(queries.entity, queries.relation)[0], sample.k)
        exclude, _ = sample.histories(rows)
        history, times = sample.histories(rows, _longest(graph))
        names: tuple[str, ...] = graph.inputs  # type: ignore[assignment]
        values = {"user": queries.user, "history": history, "times": times, "exclude": exclude}
        if sample.features is not None:
            values |= sample.described(rows, _longest(graph))
        items, scores = run(*(values[name] for name in names))[-2:]
        return np.where(np.isfinite(scores), items, -1), scores

    return search


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's notes about missing packages and about its own deprecations."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
