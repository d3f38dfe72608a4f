"""DRAGON against its equations in float64, its graphs, their cache."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hasten.config import TrainingOptions
from hasten.errors import ConfigurationError
from hasten.models.interface import Sizes
from hasten.models.multimodal import graph_cache, modal_graphs
from hasten.models.multimodal.dragon import DRAGON, DRAGONOptions
from hasten.models.multimodal.modal_data import training_pairs
from hasten.models.multimodal.modal_graphs import item_graph, user_graph
from tests.models.multimodal.modal_data import (
    HELD,
    ITEMS,
    USERS,
    assert_same_loss,
    judged,
    loss_of,
    modal_dataset,
    naive_dragon,
    naive_item_graph,
    naive_user_graph,
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "graphs"


def build(widths=(5, 4), batch_size=6, **options):
    dataset = modal_dataset(widths)
    torch.manual_seed(0)
    small = {"width": 3, "hidden": 6, "neighbours": 4, "companions": 3}
    chosen = DRAGONOptions(**{**small, **options})
    model = DRAGON(chosen, Sizes.of(dataset)).double()
    training = TrainingOptions(batch_size=batch_size)
    (phase,) = model.phases(dataset, training)
    return dataset, model, phase


def dense(graph):
    found = torch.zeros(graph.structure.shape, dtype=torch.float64)
    found[graph.structure.rows, graph.structure.columns.long()] = graph.weights.values.double()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layers": 1, "mm_layers": 2},
        {"layers": 3, "mm_layers": 0},
        {"companions": 0, "first_weight": 0.7},
        {"companions": 40, "neighbours": 40},
    ],
    ids=str,
)
@pytest.mark.parametrize("widths", [(5,), (5, 4), (5, 4, 3)])
def test_loss_and_gradients_are_those_of_the_equations(options, widths):
    if len(widths) == 1:
        options = {k: v for k, v in options.items() if k != "first_weight"}
    dataset, model, phase = build(widths, l2=0.05, **options)
    batch = phase.plan(3, 1, 0)
    ours = loss_of(phase, batch, parts=2)
    pairs = phase.pairs(batch, batch.ids)
    vectors = naive_dragon(model, dataset)
    u, i, j = (vectors[n] for n in (pairs.user + ITEMS, pairs.positive, pairs.negative))
    naive = -torch.log2(torch.sigmoid((u * i).sum(1) - (u * j).sum(1))).mean()
    penalty = sum((c.users[pairs.user] ** 2).mean() for c in model.channels)
    naive = naive + 0.05 * (penalty + (model.shares**2).mean())
    assert_same_loss(model, ours, naive)


def test_graphs_are_those_of_the_definitions():
    dataset, model, _ = build(companions=2)
    chosen = dict(zip(dataset.modalities, (0.1, 0.9), strict=True))
    torch.testing.assert_close(dense(item_graph(chosen, 4)), naive_item_graph(model, dataset))
    users = dense(user_graph(training_pairs(dataset), ITEMS, 2))
    torch.testing.assert_close(users, naive_user_graph(2))
    assert users[6].sum() == 0  # who shares nothing has no companions
    assert (users[3] > 0).sum() == 1  # fewer than wanted, and none of them twice
    assert torch.allclose(users.sum(1)[:6], torch.ones(6, dtype=torch.float64))


def test_shares_begin_near_a_half_and_sum_to_one():
    _, model, _ = build()
    torch.testing.assert_close(model.shares.sum(1), torch.ones(USERS, dtype=torch.float64))
    with pytest.raises(ConfigurationError, match="first_weight"):
        build((5,), first_weight=0.5)


def test_judging_is_the_whole_graph():
    dataset, model, phase = build()
    with torch.inference_mode():
        expected = naive_dragon(model, dataset)
    judged(dataset, model, expected)
    loss_of(phase, phase.plan(0, 0, 0)).backward()


def test_graphs_are_kept_under_their_content(cache, monkeypatch):
    phase = build()[2]
    first = phase.state()["vectors"]
    files = sorted(cache.iterdir())
    assert len(files) == 3  # two modalities, one of users

    def not_again(*_):
        raise AssertionError("made anew")

    with monkeypatch.context() as patch:
        patch.setattr(modal_graphs, "nearest", not_again)
        patch.setattr(modal_graphs, "companions", not_again)
        assert torch.equal(build()[2].state()["vectors"], first)
        with pytest.raises(AssertionError, match="made anew"):  # other features, another graph
            build(widths=(5, 3))[2].state()
        with pytest.raises(AssertionError, match="made anew"):
            build(neighbours=5)[2].state()
    for path in files:  # damage is noticed, and mended
        path.write_bytes(path.read_bytes()[:-4] + b"\x07\x00\x00\x00")
    assert torch.equal(build()[2].state()["vectors"], first)
    files[0].write_bytes(b"")
    assert torch.equal(build()[2].state()["vectors"], first)


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "file"))
    assert graph_cache.cached_arrays("x", "ab", lambda: {"a": np.arange(3)})["a"].tolist() == [
        0,
        1,
        2,
    ]


def test_loss_is_in_bits():
    phase = build(l2=0.0)[2]
    batch = phase.plan(0, 0, 0)
    (term,) = phase.terms(phase.encode(batch), batch, batch.ids)
    pairs = phase.pairs(batch, batch.ids)
    u, i, j = phase.model.pair_vectors(phase.encode(batch), pairs)
    nats = -F.logsigmoid((u * (i - j)).sum(1)).mean()
    torch.testing.assert_close(term.numerator * term.weight / term.denominator, nats / math.log(2))
    assert len(HELD) < USERS
