"""SASRec: its inputs, its memory, its options; the equations are in test_attention_model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential import base as sequential
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.objectives.next_item import NextItemPhase
from hasten.scoring import RecommenderQueries
from tests.models.sequential.equations import ITEMS, build, phase_of, random_histories


def test_many_negatives_take_another_way_to_the_same_loss(monkeypatch):
    histories, model = random_histories(), build(SASRec, loss="bce", negatives=5)
    phase = phase_of(model, histories, 5)
    batch = phase.plan(0, 0, 0)
    together = phase.terms((), batch, batch.ids)[0].numerator
    monkeypatch.setattr(sequential, "FEW_ROWS", 0)
    apart = phase.terms((), batch, batch.ids)[0].numerator
    assert apart.item() == pytest.approx(together.item(), rel=1e-9)


def test_targets_never_see_themselves():
    """Changing the last event changes only the loss of the target it is."""
    histories, model = random_histories(), build(SASRec)
    queries = RecommenderQueries(np.arange(9), histories)
    before = model.eval().query_vectors(queries)
    later = Histories(
        histories.offsets + np.arange(10),
        np.insert(histories.items, histories.offsets[1:], 5),
    )
    after = model.query_vectors(RecommenderQueries(np.arange(9), later))
    shortened = Histories(
        later.offsets - np.arange(10), np.delete(later.items, later.offsets[1:] - 1)
    )
    assert not torch.equal(before, after)
    torch.testing.assert_close(
        before, model.query_vectors(RecommenderQueries(np.arange(9), shortened))
    )


def test_only_what_the_history_needs_is_read():
    histories, model = random_histories(longest=30), build(SASRec).eval()
    cut = [
        histories.items[a:b][-7:]
        for a, b in zip(histories.offsets, histories.offsets[1:], strict=False)
    ]
    short = Histories(np.concatenate([[0], np.cumsum([len(c) for c in cut])]), np.concatenate(cut))
    users = np.arange(9)
    torch.testing.assert_close(
        model.query_vectors(RecommenderQueries(users, histories)),
        model.query_vectors(RecommenderQueries(users, short)),
    )


def test_recompute_keeps_far_fewer_activations():
    """Bytes that the graph holds for the backward pass, with dropout, at two and six blocks."""
    histories = random_histories(users=60, longest=40)

    def held(recompute, blocks):
        options = SASRecOptions(width=16, max_length=40, dropout=0.3, blocks=blocks, feedforward=4)
        model = SASRec(options, Sizes(users=60, items=ITEMS)).train()
        model.recompute = recompute
        phase = NextItemPhase(
            model, histories, item_count=ITEMS, batch_size=60, max_length=40, negative_count=0
        )
        batch = phase.plan(0, 0, 0)
        seen: dict[int, int] = {}

        def pack(tensor):
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = phase.terms((), batch, batch.ids)[0].numerator
        loss.backward()
        return sum(seen.values())

    assert held(True, 2) < 0.5 * held(False, 2)
    assert held(True, 6) < 0.3 * held(False, 6)


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match=r"heads \(3\) must divide width \(64\)"):
        SASRecOptions(heads=3)
