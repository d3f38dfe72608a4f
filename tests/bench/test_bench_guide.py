"""The tables of the ConvE guide and of the large graph: what is run, and what is written."""

from __future__ import annotations

import json
from argparse import Namespace

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench import guide_conve, large_catalog, large_graph, precision_memory


def test_rows_of_a_lower_precision_only_where_it_is_fast(monkeypatch):
    options = Namespace(precision=None, device="cpu")
    monkeypatch.setattr(guide_conve, "resolve_precision", lambda name, device: "fp32")
    assert list(guide_conve.configurations(options)) == [
        "fp32", "fp32 + cleanup", "fp32 + recompute",
    ]  # fmt: skip
    monkeypatch.setattr(guide_conve, "resolve_precision", lambda name, device: "bf16")
    rows = guide_conve.configurations(options)
    assert rows["bf16 + recompute"] == ("--precision", "bf16", "--recompute")
    assert "fp16" in guide_conve.configurations(Namespace(precision="fp16", device="cpu"))


def test_the_table_is_written(monkeypatch, tmp_path):
    monkeypatch.setattr(guide_conve, "resolve_precision", lambda name, device: "fp32")
    asked = []

    def run_once(extra, batch, options):
        asked.append((tuple(extra), batch))
        return 2.0 + len(asked), 300.0 * 2**20

    monkeypatch.setattr(guide_conve, "run_once", run_once)
    arguments = ["--data", "umls", "--batches", "256", "512", "--rounds", "2", "--provisional"]
    assert guide_conve.main(arguments, tmp_path) == 0
    assert asked[:6] == asked[:5:-1]  # there and back
    assert (("--recompute",), 512) in asked
    (page,) = tmp_path.glob("*-guide-conve-umls-cpu.md")
    text = page.read_text()
    assert "no fast lower precision" in text
    assert "Provisional" in text
    assert "| fp32 + recompute | 512 | 8.5 (8-9) | 300 |" in text


def test_the_table_of_precision_and_memory_is_written(monkeypatch, tmp_path):
    def run_once(model, extra, threads):
        share = 0.5 if "training.precision=bf16" in extra else 1.0
        return {
            "peak_bytes": 300.0 * 2**20,
            "activation_bytes": share * 2**20,
            "epoch_seconds": 2.0,
        }

    monkeypatch.setattr(precision_memory, "run_once", run_once)
    arguments = ["--models", "conve", "hgt", "--rounds", "2", "--provisional"]
    assert precision_memory.main(arguments, tmp_path) == 0
    (page,) = tmp_path.glob("*-precision-memory.md")
    row = "| hgt, redda-k | both | 300 | 1.00 | 0.5 | 0.50 | 2 |"
    assert row in page.read_text()
    table = precision_memory.memory_table("results", tmp_path)
    assert row in table
    assert f"provisional: do not compare the seconds ([result](results/{page.name}))." in table
    assert precision_memory.main(["--models", "conve", "--rounds", "1"], tmp_path) == 0
    again = precision_memory.memory_table("results", tmp_path)
    assert row in again  # the other model keeps its result
    assert "`conve`: CPU, 2 thread(s), 1 round(s), medians ([result]" in again


def test_the_large_graph_holds_every_entity(tmp_path):
    large_graph.write_graph(tmp_path, 3000, 4000)
    train = pq.read_table(tmp_path / "train.parquet")
    assert train.num_rows == 4000
    assert set(np.asarray(train["head"])) == set(range(3000))
    test = pq.read_table(tmp_path / "test.parquet")
    head, relation, tail = (np.asarray(test[name]) for name in ("head", "relation", "tail"))
    assert ((head + 1 + 7919 * relation) % 3000 == tail).all()
    with pytest.raises(SystemExit, match="cannot hold all"):
        large_graph.write_graph(tmp_path, 10, 9)


def test_a_large_graph_is_trained_and_its_figures_written(tmp_path):
    arguments = ["--entities", "400", "--triples", "600", "--width", "16", "--batch-size", "64"]
    arguments += ["--seconds", "600", "--threads", "1", "--provisional"]
    assert large_graph.main(arguments, tmp_path) == 0
    (file,) = tmp_path.glob("*-large-graph-conve-sampled.json")
    result = json.loads(file.read_text())
    assert result["settings"]["entities"] == 400
    assert result["stopped_by"] == "epochs"
    assert result["test"]
    page = file.with_suffix(".md").read_text()
    assert f"{result['examples_per_second']:,.0f} examples a second" in page


def test_a_step_is_timed_by_the_number_of_items(tmp_path):
    arguments = ["--items", "100", "20000", "--steps", "2", "--rounds", "1", "--width", "8"]
    assert large_catalog.main([*arguments, "--threads", "1", "--provisional"], tmp_path) == 0
    (file,) = tmp_path.glob("*-large-catalogue-sampled-softmax.json")
    few, many = json.loads(file.read_text())["lines"]
    assert few["against_first"]["median"] == 1
    assert (few["optimizer"], many["optimizer"]) == ("PhaseAdam", "RowAdam")
    assert many["peak_memory_bytes"] > many["model_bytes"] > 4 * 8 * 20_000
    assert "| 20,000 |" in file.with_suffix(".md").read_text()
