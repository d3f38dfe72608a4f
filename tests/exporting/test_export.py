"""Exports rank as hasten does, and models that a form cannot hold are refused with the reason."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import hasten
from hasten.cli.main import main
from hasten.errors import UsageError
from hasten.exporting.export import FORMS, export
from tests.contract.cases import CASES

SMALL = {"training.epochs": 1, "training.batch_size": 8, "device": "cpu", "threads": 1}
BY_LABEL = {case.label: case for case in CASES}

LINEAR = {"ease": "onnx torch numpy", "slim": "numpy", "itemknn": "numpy", "gfcf": "", "pop": ""}
#: the forms of each model; projector and heterodata apart
HELD = {
    "sasrec": "onnx torch faiss numpy",
    "tisasrec": "onnx torch faiss numpy",
    **LINEAR,
    **dict.fromkeys(
        ["bprmf", "lightgcn", "kgat", "mmgcn", "bm3", "freedom", "dragon"],
        "onnx torch faiss numpy",
    ),
    **dict.fromkeys(["distmult", "complex"], "onnx torch faiss numpy"),
    **dict.fromkeys(["conve", "tucker", "hgt"], "onnx torch faiss"),
    "rotate": "onnx torch",
    "degree": "",
}
FAST = {
    ("sasrec-ce", "onnx"), ("bprmf", "faiss"), ("bprmf", "numpy"), ("complex-sampled", "numpy"),
    ("slim", "numpy"), ("conve", "faiss"), ("rotate", "torch"), ("sasrec-events", "onnx"),
    ("tisasrec-events", "torch"), ("tisasrec-features", "torch"), ("sasrec-features", "onnx"),
    ("complex-n3", "faiss"),
}  # fmt: skip


def trained(case, out):
    given = {**SMALL, **case.settings} if case.trains else dict(case.settings)
    return hasten.train(case.model, case.data, settings=given, out=str(out), quiet=True).loaded


def marked(case, to):
    marks = [] if (case.label, to) in FAST else [pytest.mark.slow]
    return pytest.param(case, to, marks=marks, id=f"{case.label}-{to}")


@pytest.mark.parametrize(
    ("case", "to"), [marked(case, to) for case in CASES for to in HELD[case.model].split()]
)
def test_rankings_are_the_same(case, to, tmp_path):
    pytest.importorskip({"onnx": "onnxruntime", "faiss": "faiss"}.get(to, "torch"))
    found = export(trained(case, tmp_path / "run"), to, tmp_path / "out")
    assert found.parity.overlap >= 0.999
    assert found.parity.difference < 1e-4
    assert found.parity.queries >= 50
    assert all(path.stat().st_size for path in found.files)
    record = json.loads((tmp_path / "out" / "export.json").read_text())
    assert record["overlap"] == found.parity.overlap


@pytest.mark.parametrize(
    ("case", "to"),
    [
        pytest.param(case, to, id=f"{case.label}-{to}")
        for case in (BY_LABEL["slim"], BY_LABEL["degree"])
        for to in FORMS
        if to not in HELD[case.model]
    ],
)
def test_a_model_that_a_form_cannot_hold_is_refused(case, to, tmp_path):
    run = trained(case, tmp_path / "run")
    with pytest.raises(UsageError, match=case.model):
        export(run, to, tmp_path / "out")


def test_the_torch_program_needs_no_hasten(tmp_path):
    run = trained(BY_LABEL["sasrec-ce"], tmp_path / "run")
    export(run, "torch", tmp_path / "out", k=3)
    history = [[4, 5, -1], [7, -1, -1]]
    script = (
        "import sys, json, torch\n"
        f"program = torch.export.load({str(tmp_path / 'out' / 'model.pt2')!r}).module()\n"
        f"history = torch.tensor({history})\n"
        "vectors, items, scores = program(history, history)\n"
        "assert not any(name.startswith('hasten') for name in sys.modules)\n"
        "print(json.dumps([vectors.tolist(), items.tolist(), scores.tolist()]))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script]
    told = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    _, items, scores = (np.array(each) for each in json.loads(told))
    labels = run.dataset.items.labels.to_pylist()
    given = {row: [labels[i] for i in each if i >= 0] for row, each in enumerate(history)}
    expected = run.recommend(histories=given, topk=3)
    assert expected.item.tolist() == items.reshape(-1).tolist()
    np.testing.assert_allclose(expected.score, scores.reshape(-1), rtol=1e-4, atol=1e-5)


def test_vectors_have_the_same_neighbors(tmp_path):
    found = export(trained(BY_LABEL["bprmf"], tmp_path / "run"), "projector", tmp_path / "out")
    assert found.parity.overlap >= 0.999
    assert found.parity.difference < 1e-5


def test_a_typed_graph_has_the_embeddings_of_its_nodes(tmp_path):
    pytest.importorskip("torch_geometric")
    settings = {k: v for k, v in BY_LABEL["hgt"].settings.items() if k != "training.batch_size"}
    run = hasten.train(
        "hgt", epochs=1, settings=settings, out=tmp_path / "run", quiet=True, threads=1
    ).loaded
    found = export(run, "heterodata", tmp_path / "out")
    assert found.parity.overlap == 1.0
    read = torch.load(found.files[0], weights_only=False)
    assert read["drug"].embedding.shape == (read["drug"].num_nodes, 16)
    assert read.edge_types


def test_the_command(tmp_path, capsys):
    run = str(trained(BY_LABEL["bprmf"], tmp_path / "run").path)
    assert main(["export", run, "--to", "numpy", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["overlap"] == 1.0
    assert "top 10 of 50 queries: 100.00 % the same" in told.err
    assert (tmp_path / "run" / "export-numpy" / "items.npy").is_file()
    assert main(["export", run, "--to", "onx"]) == 2
    assert "did you mean 'onnx'?" in capsys.readouterr().err
