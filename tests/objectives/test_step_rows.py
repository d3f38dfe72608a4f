"""Phases that read the rows of a step from a large table: the result is that of the whole table."""

import pytest
import torch

import hasten
from hasten.models.sequential import base as sequential
from hasten.objectives import step_rows
from hasten.ops.table import EmbeddingTable
from hasten.run import resume
from hasten.runs.checkpoint import read_checkpoint
from hasten.training.optimizers import row_adam
from tests.contract.cases import graph, sequences

CONVE = {
    "width": 9, "height": 3, "channels": 2, "group": 8,
    "input_dropout": 0, "feature_dropout": 0, "hidden_dropout": 0,
}  # fmt: skip
CASES = {
    "bce": ("sasrec", {"loss": "bce", "dropout": 0}),
    "gbce": ("sasrec", {"loss": "gbce", "negatives": 3, "dropout": 0}),
    "complex": ("complex", {"loss": "sampled", "negatives": 5, "n3": 0.01, "dropout": 0}),
    "softmax": ("complex", {"loss": "sampled-softmax", "negatives": 9, "n3": 0.01, "dropout": 0}),
    "bprmf": ("bprmf", {"width": 8, "l2": 0.01}),
    "conve": ("conve", {"loss": "sampled", "negatives": 5, **CONVE}),
}


def trained(case, out, parts):
    model, options = CASES[case]
    data = sequences() if model in ("sasrec", "bprmf") else graph()
    settings = {f"model.{name}": value for name, value in options.items()}
    settings |= {"training.epochs": 2, "training.batch_size": 16, "training.accumulate": parts}
    settings |= {"training.lr": 1e-3, "training.clip_norm": 1.0, "evaluation.test": False}
    result = hasten.train(
        model, data, settings=settings, out=out, device="cpu", threads=1, quiet=True
    )
    effective = result.summary.effective
    return effective["updates_rows"], read_checkpoint(out / "final").tensors


@pytest.mark.parametrize("case", CASES)
def test_the_result_is_that_of_the_whole_table(case, tmp_path, monkeypatch):
    parts = 1 if case == "gbce" else 2
    by_rows, expected = trained(case, tmp_path / "whole", parts)
    assert not by_rows
    monkeypatch.setattr(step_rows, "MANY_ROWS", 0)
    for module in (row_adam, step_rows):
        monkeypatch.setattr(module, "MIN_TABLE_TO_READ_RATIO", 0)
    if case == "gbce":
        monkeypatch.setattr(sequential, "FEW_ROWS", 0)
    by_rows, found = trained(case, tmp_path / "rows", parts)
    assert by_rows
    for name, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=1e-4, atol=1e-5, msg=name)
    names = {name for name in found["optimisers"] if "pending" not in name}
    assert names == expected["optimisers"].keys()


def test_a_run_over_two_joined_tables_resumes_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(step_rows, "MANY_ROWS", 0)
    for module in (row_adam, step_rows):
        monkeypatch.setattr(module, "MIN_TABLE_TO_READ_RATIO", 0)
    settings = {"training.epochs": 3, "training.batch_size": 16, "checkpoint.every_steps": 5}
    settings |= {"model.width": 8, "checkpoint.keep": 9}
    part = hasten.train(
        "bprmf", sequences(), settings=settings, out=tmp_path / "part", device="cpu", quiet=True
    )
    assert part.summary.effective["updates_rows"]
    saved = sorted((tmp_path / "part" / "checkpoints").iterdir())
    inside = next(path for path in saved if "step" in path.name)
    resume(tmp_path / "part", checkpoint=inside.name, out=tmp_path / "resumed", quiet=True)
    whole, resumed = (read_checkpoint(tmp_path / name / "final") for name in ("part", "resumed"))
    for group, named in whole.tensors.items():
        for name, value in named.items():
            assert torch.equal(resumed.tensors[group][name], value), name


def test_rows_are_read_in_place_of_the_table():
    table = EmbeddingTable(9, 4)
    ids, wanted = torch.tensor([2, 5, 8]), torch.tensor([[8, 2], [5, 8]])
    before = table.rows(wanted)
    with table.reading(ids, 2 * table.weight[ids]):
        assert torch.equal(table.rows(wanted), 2 * before)
    assert torch.equal(table.rows(wanted), before)
