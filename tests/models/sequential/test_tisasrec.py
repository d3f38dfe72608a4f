"""TiSASRec: times, penalties, data; the equations are in test_attention_model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from hasten import api
from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.samples.sequences import make_sittings
from hasten.data.tables import Histories
from hasten.errors import DataError
from hasten.inference.recommend import recommend
from hasten.models.sequential import tisasrec
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.objectives.base import Batch
from hasten.scoring import RecommenderQueries
from tests.models.sequential.equations import ITEMS, LENGTH, build, phase_of, random_histories


def _vector(model, times):
    items = np.array([3, 1, 4, 1, 5])
    stamps = None if times is None else np.array(times)
    history = Histories(np.array([0, 5]), items, stamps)
    return model.query_vectors(RecommenderQueries(np.array([0]), history))


def test_times_matter_and_their_unit_does_not():
    model = build(TiSASRec).eval()
    before = _vector(model, [0, 60, 120, 600, 660])
    assert not torch.equal(before, _vector(model, [0, 60, 120, 300, 660]))
    assert torch.equal(before, _vector(model, [7, 60_007, 120_007, 600_007, 660_007]))
    # evenly spaced where there are none; all at once is no division by zero
    assert torch.equal(_vector(model, None), _vector(model, [10, 20, 30, 40, 50]))
    assert torch.isfinite(_vector(model, [5, 5, 5, 5, 5])).all()


def test_later_items_and_times_change_nothing_earlier():
    """As long as the smallest gap stays, which is the unit of the sequence that is seen."""
    model = build(TiSASRec).train()
    items = np.array([3, 1, 4, 1, 5, 9])
    times = np.array([0, 1, 5, 7, 20, 40])
    changed = (np.array([3, 1, 4, 8, 2, 9]), np.array([0, 1, 5, 30, 33, 90]))
    states = []
    for one, when in ((items, times), changed):
        phase = phase_of(model, Histories(np.array([0, 6]), one, when))
        batch = phase.lay_out(phase.plan(0, 0, 0), np.zeros(1, np.int64))
        rows = model.items.rows(batch.tokens)
        states.append(model.hidden(rows, batch.positions, batch.times, batch.buckets))
    assert torch.equal(states[0][:3], states[1][:3])
    assert not torch.isclose(states[0][3:], states[1][3:]).all(1).any()


def test_the_last_event_of_training_is_no_input():
    """Neither its item nor its time, which may hold the smallest gap."""
    histories, model = random_histories(), build(TiSASRec)
    phase = phase_of(model, histories)
    moved = histories.times.copy()
    moved[histories.offsets[1:] - 1] += 1
    other = phase_of(model, replace(histories, times=moved))
    rows = np.arange(len(phase.users))[np.argsort(-phase.target_counts, kind="stable")]
    one, two = (p.lay_out(p.plan(0, 0, 0), rows) for p in (phase, other))
    assert torch.equal(one.times, two.times)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"loss": "ce"}, 0.0),
        ({"loss": "bce"}, 5e-5),
        ({"loss": "gbce"}, 5e-5),
        ({"loss": "sampled-softmax"}, 0.0),
        ({"loss": "ce", "embedding_l2": 0.1}, 0.1),
        ({"loss": "bce", "embedding_l2": 0.0}, 0.0),
    ],
)
def test_squared_embeddings_beside_the_loss(options, weight):
    model = build(TiSASRec, **options)
    batch = Batch(torch.arange(2), 0, 0, 0, {"targets": 1.0})
    terms = phase_of(model, random_histories()).regularizers((), batch)
    if weight == 0:
        assert not terms
        return
    (term,) = terms
    tables = [p for name, p in model.named_parameters() if name.count(".") == 1]
    squares = sum(p.square().sum().item() for p in tables if p.shape[0] in (ITEMS, LENGTH, 13))
    assert term.weight * term.numerator.item() / term.denominator == pytest.approx(weight * squares)


def test_dropout_falls_on_the_rows_of_the_interval_tables(monkeypatch):
    seen = []

    def spy(x, probability, training):
        seen.append((tuple(x.shape), probability, training))
        return x

    monkeypatch.setattr(tisasrec, "dropout", spy)
    phase = phase_of(build(TiSASRec, dropout=0.4).train(), random_histories())
    batch = phase.plan(0, 0, 0)
    phase.terms((), batch, batch.ids)
    assert seen.count(((13, 6), 0.4, True)) == 2
    assert len(seen) == 5


def test_items_and_times_of_unsorted_data_stay_together():
    generator = np.random.default_rng(4)
    events = {
        "user_id": np.repeat(np.arange(6), 8),
        "item_id": generator.integers(0, 20, 48),
        "timestamp": np.concatenate([generator.choice(500, 8, replace=False) for _ in range(6)]),
    }
    when = {(u, t): i for u, i, t in zip(*events.values(), strict=True)}
    dataset = load_dataset(InteractionOptions(), 0, events)
    history = dataset.histories(0, 1, 2)
    items = dataset.items.take(history.items).to_pylist()
    user = np.repeat(np.arange(6), history.lengths)
    assert [when[one] for one in zip(user, history.times, strict=True)] == items
    own = personal_times(history, LENGTH)
    for row in range(6):
        part = slice(history.offsets[row + 1] - LENGTH, history.offsets[row + 1])
        times = history.times[part]
        assert (np.diff(times) > 0).all()
        expected = np.rint((times - times[0]) / np.diff(times).min()) + 1
        assert own.times[part].tolist() == expected.tolist()


def test_a_run_recommends_by_the_times_of_a_history(tmp_path):
    events = make_sittings(users=40, items=36, events=400, seed=1).table
    result = api.train(
        "tisasrec", events, epochs=2, lr=1e-2, threads=1, out=tmp_path / "run", quiet=True
    )
    asked = {"histories": {"new": [1, 2, 3]}, "topk": 5}
    known = result.recommend(**asked, times={"new": [0, 60, 120]}).to_table()["score"]
    assert known == result.recommend(**asked).to_table()["score"]
    later = result.recommend(**asked, times={"new": [0, 60, 9999]}).to_table()["score"]
    assert known != later
    dataset = result.loaded.dataset
    moved = dataset.interactions.time.copy()
    moved[1::2] += 1
    changed = replace(dataset, interactions=replace(dataset.interactions, time=moved))
    before = recommend(result.loaded, [1, 2, 3]).score
    after = recommend(replace(result.loaded, dataset=changed), [1, 2, 3]).score
    assert not np.array_equal(before, after)


def test_data_without_times_are_refused():
    events = {"user_id": [1, 1, 1, 2, 2, 2], "item_id": [1, 2, 3, 1, 2, 3]}
    with pytest.raises(DataError, match=r"tisasrec needs the time of every event.*train sasrec"):
        api.train("tisasrec", events, quiet=True)
