"""Export a run to files of another program, and record how far its results agree with hasten's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hasten.atomic_write import write_atomically
from hasten.errors import HastenError, UsageError, did_you_mean, os_errors_as
from hasten.evaluation.ranker import scoring
from hasten.exporting.arrays import write_numpy
from hasten.exporting.faiss_index import write_faiss
from hasten.exporting.nearest import nearest, write_heterodata, write_projector
from hasten.exporting.parity import Parity, compare
from hasten.exporting.programs import write_onnx, write_torch
from hasten.exporting.sample import QUERIES, Sample, Search, spaced

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

_SCORES: dict[str, Callable[[Any, Path, Sample], tuple[list[Path], Search]]] = {
    "onnx": write_onnx,
    "torch": write_torch,
    "faiss": write_faiss,
    "numpy": write_numpy,
}
_VECTORS = {"projector": write_projector, "heterodata": write_heterodata}
FORMS = (*_SCORES, *_VECTORS)


@dataclass(frozen=True)
class Exported:
    """The files of an export, and its comparison with hasten."""

    to: str
    files: tuple[Path, ...]
    parity: Parity
    #: what was compared
    compared: str


def check_form(to: str) -> None:
    """Raise UsageError if there is no such form."""
    if to not in FORMS:
        raise UsageError(f"--to {to}: there are {', '.join(FORMS)}{did_you_mean(to, FORMS)}")


def export(loaded: LoadedRun, to: str, out: Path, k: int = 10) -> Exported:
    """Write the run to the folder ``out`` in a form of :data:`FORMS`, and compare the rankings.

    k: how many items onnx and torch return, and how many are compared. ``export.json`` records the
    comparison. Raises UsageError for a model that cannot be exported in this form.
    """
    check_form(to)
    with os_errors_as(HastenError, "cannot be written", out):
        out.mkdir(parents=True, exist_ok=True)
        if to in _VECTORS:
            files, read, own = _VECTORS[to](loaded, out)
            rows = spaced(np.arange(len(own)), QUERIES)
            k = min(k, len(own) - 1)
            parity = compare(len(rows), k, nearest(read, rows, k), nearest(own, rows, k))
            compared = "nearest rows by cosine"
        else:
            sample = Sample.of(loaded, k)
            files, search = _SCORES[to](loaded, out, sample)
            with scoring(loaded.model):
                hasten = sample.hasten(loaded)
                parity = compare(len(sample.queries), sample.k, search, hasten)
            compared = "highest scores, items of the history excluded"
            if loaded.model.reads in ("triples", "typed_graph"):
                compared = "highest scores of all entities"
        found = Exported(to, tuple(files), parity, compared)
        write_atomically(out / "export.json", json.dumps(_record(loaded, found), indent=2).encode())
    return found


def _record(loaded: LoadedRun, found: Exported) -> dict[str, Any]:
    """What ``export.json`` says."""
    return {
        "to": found.to,
        "model": loaded.config.model.name,
        "run": loaded.path.name,
        "files": [path.name for path in found.files],
        "compared": found.compared,
        **asdict(found.parity),
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("hasten", "torch", "numpy")},
    }
