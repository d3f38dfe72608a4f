"""The sides of HGT's benchmarks do the same work, and their runner writes what it measured."""

import json
import subprocess
import warnings

import numpy as np
import pytest
import torch

from bench import hgt_sizes
from bench.edge_attention_side import made
from bench.hgt_side import made_graph
from bench.jaccard_side import MEMBERS, jaccard_pairs_reference, made_sets
from hasten.models.typed_graph.jaccard import jaccard_pairs
from hasten.ops.attention.edge_attention import edge_attention
from hasten.ops.graph.typed_edges import TypedEdges

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch_geometric = pytest.importorskip("torch_geometric", reason="pip install torch_geometric")


def test_the_edge_part_of_both_sides_is_the_same():
    from bench import pyg_hgt

    sizes, offsets, ends, edges = made(300, 900, 5, 3)
    width, heads = 16, 4
    names = [f"t{number}" for number in range(3)]
    kinds = [(names[s], f"r{r}", names[t]) for r, (s, t) in enumerate(ends.tolist())]
    conv = pyg_hgt.HGTConv(width, width, (names, kinds), heads=heads).double()
    index = {}
    for r, (s, t) in enumerate(ends.tolist()):
        mine = edges[:, edges[1] == r]
        index[kinds[r]] = torch.from_numpy(np.stack([mine[0] - offsets[s], mine[2] - offsets[t]]))
    q, k, v = torch.randn(3, 300, width, dtype=torch.float64)
    theirs = pyg_hgt.edge_part(conv, q, k, v, sizes.tolist(), index)
    # a map of PyG's is numbered by head, then edge type
    maps = [m.weight.view(heads, 5, 4, 4).transpose(0, 1) for m in (conv.k_rel, conv.v_rel)]
    found = TypedEdges.build(edges[0], edges[1], edges[2], (300, 300))
    ours = edge_attention(found, q, k, v, maps[0] / 2, maps[1])
    torch.testing.assert_close(theirs, ours)


def test_one_product_a_type_is_what_pyg_computes(monkeypatch):
    from bench import pyg_hgt

    monkeypatch.setattr(pyg_hgt.HeteroLinear, "forward_naive", pyg_hgt.HeteroLinear.forward_naive)
    lin = pyg_hgt.HeteroLinear(4, 3, 5, bias=False, is_sorted=True)
    x, kind = torch.randn(9, 4), torch.tensor([0, 0, 1, 1, 1, 3, 4, 4, 4])
    before = lin(x, kind)
    pyg_hgt.fair()
    torch.testing.assert_close(lin(x, kind), before)


def test_a_step_of_the_guide_sums_its_shares():
    from bench import pyg_hgt

    graph = made_graph(200, 400, 2)
    assert (np.diff(graph.offsets) == graph.sizes).all()
    for r, (s, t) in enumerate(graph.ends.tolist()):
        mine = graph.relation == r
        for ends, kind in ((graph.head, s), (graph.tail, t)):
            assert (ends[mine] >= graph.offsets[kind]).all()
            assert (ends[mine] < graph.offsets[kind + 1]).all()
    edges = {("a", "r", "b"): torch.randint(5, (2, 12)), ("b", "s", "a"): torch.randint(5, (2, 9))}
    torch.manual_seed(0)
    model = pyg_hgt.GuideModel({"a": 5, "b": 5}, edges, hidden=16, width=8)
    optimiser = torch.optim.SGD(model.parameters(), 0.0)
    assert np.isfinite(pyg_hgt.guide_step(model, optimiser, 8, 4))
    assert all(p.grad is not None for p in model.layers[0].parameters())


def test_made_sets_have_similar_pairs():
    sets = made_sets(300)
    found = jaccard_pairs(sets, MEMBERS, 0.1)
    pairs = set(zip(found.rows.tolist(), found.items.tolist(), strict=True))
    assert pairs == jaccard_pairs_reference(sets, 0.1)
    assert pairs


def test_sizes_writes_what_it_measured(tmp_path, monkeypatch):
    report = {
        "epoch_seconds": 2.0, "epoch_cpu_seconds": 3.0,
        "peak_memory_bytes": 5 << 20, "bytes_above": 1 << 20,
    }  # fmt: skip
    monkeypatch.setattr(hgt_sizes, "run_side", lambda *_: report)
    assert hgt_sizes.main(["--only", "jaccard"], tmp_path) == 0
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["lines"]["jaccard"]["report"] == report
    assert "| similar pairs of 20,000 sets | 2 | 3 | 5 | 1 |" in path.with_suffix(".md").read_text()


def test_a_line_that_takes_too_long_loses_no_other(tmp_path, monkeypatch, capsys):
    report = {"epoch_seconds": 2.0, "epoch_cpu_seconds": 3.0, "peak_memory_bytes": 5 << 20}

    def run_side(side, *_):
        if "similar" in side.label:
            return report | {"bytes_above": 1 << 20}
        raise subprocess.TimeoutExpired(side.command, 7)

    monkeypatch.setattr(hgt_sizes, "run_side", run_side)
    assert hgt_sizes.main(["--only", "primekg-full", "jaccard"], tmp_path) == 1
    assert "primekg-full: not measured" in capsys.readouterr().err
    (path,) = tmp_path.glob("*.json")
    assert list(json.loads(path.read_text())["lines"]) == ["jaccard"]
    (tmp_path / "none").mkdir()
    assert hgt_sizes.main(["--only", "primekg-full"], tmp_path / "none") == 1
    assert not list((tmp_path / "none").iterdir())
