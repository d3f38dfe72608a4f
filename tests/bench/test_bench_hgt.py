"""The sides of HGT's benchmarks do the same work, and their runner writes what it measured."""

import json
import subprocess
import warnings

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from bench import hgt_sizes
from bench.jaccard_side import MEMBERS, jaccard_pairs_reference, made_sets
from bench.link_step import NEGATIVES, WIDTH, LinkStep, PlainHGT
from bench.made_graph import MadeGraph, made_graph
from bench.plain_hgt import Edges, PlainHGTLayer, attend
from hasten.models.typed_graph.hgt_layer import HGTLayer
from hasten.models.typed_graph.jaccard import jaccard_pairs
from hasten.ops.attention.edge_attention import edge_attention
from hasten.ops.graph.typed_edges import TypedEdges

SIZES, ENDS, HEADS = (60, 90, 50), [[0, 1], [2, 2], [1, 0], [1, 2]], 4


@pytest.fixture(scope="module", autouse=True)
def _torch_geometric():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric", reason="pip install torch_geometric")


@pytest.fixture
def graph():
    """Links of four relations between nodes of three types."""
    generator = np.random.default_rng(0)
    relation = np.arange(400) % 4
    offsets, ends = np.concatenate([[0], np.cumsum(SIZES)]), np.array(ENDS)[relation]
    head, tail = generator.integers(offsets[ends], offsets[ends + 1]).T
    return MadeGraph(np.array(SIZES), np.array(ENDS), head, relation, tail)


def typed_edges(graph):
    source, relation, target, _ = graph.messages()
    return TypedEdges.build(source, relation, target, (sum(SIZES),) * 2)


def test_the_edge_part_of_all_sides_is_the_same(graph):
    from bench import pyg_hgt

    width, relations = 16, len(graph.both_ends)
    names, edges, _ = pyg_hgt.edges_of(graph)
    conv = pyg_hgt.HGTConv(width, width, (names, list(edges)), heads=HEADS).double()
    q, k, v = torch.randn(3, sum(SIZES), width, dtype=torch.float64)
    theirs = pyg_hgt.edge_part(conv, q, k, v, list(SIZES), edges)
    # a map of PyG's is numbered by head, then edge type
    maps = [m.weight.view(HEADS, relations, 4, 4).transpose(0, 1) for m in (conv.k_rel, conv.v_rel)]
    torch.testing.assert_close(
        theirs, edge_attention(typed_edges(graph), q, torch.cat([k, v], 1), maps[0] / 2, maps[1])
    )
    prior = torch.ones(relations, HEADS, dtype=torch.float64)
    plain = attend(Edges.of(graph), q, torch.cat([k, v], 1), torch.cat(maps, 1), prior)
    torch.testing.assert_close(theirs, plain)


@pytest.mark.parametrize("width", [8, 16])
def test_a_plain_layer_is_ours_forward_and_backward(graph, width):
    types, relations = len(SIZES), len(graph.both_ends)
    ours = HGTLayer(types, relations, width, 16, HEADS).double()
    plain = PlainHGTLayer(types, relations, width, 16, HEADS).double()
    torch.nn.init.uniform_(ours.prior, 0.5, 1.5)
    kinds = (
        ("query", ours.query.weight), ("query_bias", ours.query.bias),
        ("keys_values", torch.cat([ours.key.weight, ours.value.weight], 2)),
        ("keys_values_bias", torch.cat([ours.key.bias, ours.value.bias], 1)),
        ("result", ours.result.weight), ("result_bias", ours.result.bias),
        ("maps", torch.cat([ours.attention, ours.message], 1)), ("prior", ours.prior),
    )  # fmt: skip
    with torch.no_grad():
        for name, value in kinds:
            getattr(plain, name).copy_(value)
    x = torch.randn(sum(SIZES), width, dtype=torch.float64, requires_grad=True)
    bounds = graph.offsets.tolist()
    found = [ours(typed_edges(graph), x, SIZES), plain(Edges.of(graph), x, bounds, x, bounds)]
    torch.testing.assert_close(*found)
    upper = torch.randn_like(found[0])
    weights = ((ours.prior, ours.query.bias), (plain.prior, plain.query_bias))
    grads = [
        torch.autograd.grad(out, (x, *of), upper) for out, of in zip(found, weights, strict=True)
    ]
    torch.testing.assert_close(*grads)
    key, value = torch.autograd.grad(
        ours(typed_edges(graph), x, SIZES), (ours.attention, ours.message), upper
    )
    out = plain(Edges.of(graph), x, bounds, x, bounds)
    maps = torch.autograd.grad(out, plain.maps, upper)[0]
    torch.testing.assert_close(torch.cat([key, value], 1), maps)


def test_a_last_layer_of_wanted_nodes_is_that_of_all(graph):
    model = PlainHGT(graph)
    keep, nodes = torch.rand(len(graph.head)) < 0.8, torch.arange(sum(SIZES))
    wanted = nodes[torch.rand(len(nodes)) < 0.4]
    torch.testing.assert_close(model(keep, wanted), model(keep, nodes)[wanted])


@pytest.mark.parametrize("passes", [1, 4])
@pytest.mark.parametrize("encoder", ["plain", "pyg"])
def test_a_step_scores_links_of_every_relation_and_moves_all_weights(graph, encoder, passes):
    from bench import pyg_hgt

    torch.manual_seed(0)
    step = LinkStep(graph, {"plain": PlainHGT, "pyg": pyg_hgt.PyGHGT}[encoder](graph), 20, passes)
    links = step.draw_links()
    assert links.shape == (len(ENDS), 20)
    assert (step.relation[links] == torch.arange(len(ENDS))[:, None]).all()
    assert len(links.unique()) == links.numel()
    before = [p.detach().clone() for p in step.parameters()]
    losses = [step.take_pass() for _ in range(passes - 1)]
    assert all(torch.equal(p, old) for p, old in zip(step.parameters(), before, strict=True))
    losses.append(step.take_pass())
    assert np.isfinite(losses).all()
    moved = [not torch.equal(p, old) for p, old in zip(step.parameters(), before, strict=True)]
    assert np.mean(moved) > 0.9


class Rows(torch.nn.Module):
    """An encoder that returns rows of a table."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, keep, wanted):
        return self.table[wanted]


def test_the_loss_is_that_of_single_links_against_the_drawn_ends(graph):
    table = torch.randn(sum(SIZES), WIDTH)
    step = LinkStep(graph, Rows(table), 3, 1)
    torch.nn.init.normal_(step.relations)
    links = step.draw_links()
    state = torch.get_rng_state()
    found = step.loss(links)
    torch.set_rng_state(state)
    share, total = torch.rand(len(SIZES), NEGATIVES), 0.0
    offsets = graph.offsets.tolist()
    for r, (s, t) in enumerate(ENDS):
        scores = (table * step.relations[r]) @ table.T / WIDTH**0.5
        tails = offsets[t] + (share[t] * SIZES[t]).long()
        heads = offsets[s] + (share[s] * SIZES[s]).long()
        for link in links[r].tolist():
            one, other = graph.head[link], graph.tail[link]
            total += F.softplus(-scores[one, other])
            total += F.softplus(scores[one, tails]).mean() / 2
            total += F.softplus(scores[heads, other]).mean() / 2
    torch.testing.assert_close(found, total)


def test_a_made_graph_has_relations_of_equal_size_between_two_types():
    graph = made_graph("guide", 0.01)
    assert np.ptp(np.bincount(graph.relation)) <= 1
    for r, (s, t) in enumerate(graph.ends.tolist()):
        mine = graph.relation == r
        for ends, kind in ((graph.head, s), (graph.tail, t)):
            assert (ends[mine] >= graph.offsets[kind]).all()
            assert (ends[mine] < graph.offsets[kind + 1]).all()
    source, relation, target, link = graph.messages()
    back = relation >= len(graph.ends)
    assert (np.where(back, graph.tail[link], graph.head[link]) == source).all()
    assert (np.where(back, graph.head[link], graph.tail[link]) == target).all()


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
