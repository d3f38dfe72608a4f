"""TiSASRec against its equations, written out a sequence at a time in float64."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from hasten import api
from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_table
from hasten.data.samples.sequences import make_sittings
from hasten.data.tables import Histories
from hasten.errors import DataError
from hasten.inference.recommend import recommend
from hasten.models.interface import Sizes
from hasten.models.sequential import tisasrec
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.tisasrec import TiSASRec, TiSASRecOptions, TiSASRecPhase
from hasten.objectives import next_item
from hasten.objectives.base import Batch
from hasten.ops.losses.sampled_loss import gbce_beta
from hasten.scoring import RecommenderQueries

ITEMS, LENGTH = 23, 7


def _histories(users=9, seed=0, longest=11):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, users)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    times = np.concatenate([np.sort(generator.integers(0, 500, n)) for n in lengths])
    return Histories(offsets, generator.integers(0, ITEMS, lengths.sum()), times)


def _model(**options):
    torch.manual_seed(1)
    settings = {"width": 6, "max_length": LENGTH, "dropout": 0.0, "span": 12, **options}
    model = TiSASRec(TiSASRecOptions(**settings), Sizes(users=9, items=ITEMS)).double()
    for parameter in model.parameters():  # biases too, so that every one of them matters
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def _phase(model, histories, negatives=0):
    own = personal_times(histories, LENGTH, unseen=1)
    return TiSASRecPhase(
        model, own, items=ITEMS, batch_size=9, max_length=LENGTH, negatives=negatives
    )


def reference_states(model, items, times):
    """[n, D] states of one sequence with unix times, from the equations."""
    options, n = model.options, len(items)
    width, head = options.width, options.width // options.heads
    gaps = [b - a for a, b in pairwise(times) if b > a]
    own = [round((time - min(times)) / (min(gaps) if gaps else 1)) + 1 for time in times]
    x = math.sqrt(width) * model.items.weight[items]

    def norm(y, layer):
        mean, variance = y.mean(-1, keepdim=True), y.var(-1, keepdim=True, unbiased=False)
        return (y - mean) / (variance + 1e-5).sqrt() * layer.weight + layer.bias

    def attend(y, block):
        q = y @ block.query_key_value[:width].T + block.query_bias
        k = y @ block.query_key_value[width : 2 * width].T
        v = y @ block.query_key_value[2 * width :].T
        outs = []
        for h in range(options.heads):
            part = slice(h * head, (h + 1) * head)
            rows = []
            for i in range(n):
                logits, values = [], []
                for j in range(i + 1):
                    apart, place = min(abs(own[i] - own[j]), options.span), n - 1 - j
                    key = k[j] + model.key_positions.weight[place]
                    value = v[j] + model.value_positions.weight[place]
                    key = key + model.key_intervals.weight[apart]
                    logits.append(q[i, part] @ key[part] / math.sqrt(head))
                    values.append((value + model.value_intervals.weight[apart])[part])
                weights = torch.softmax(torch.stack(logits), 0)
                rows.append(weights @ torch.stack(values))
            outs.append(torch.stack(rows))
        return torch.cat(outs, 1) @ block.output.weight.T + block.output.bias

    def feed(y, block):
        hidden = torch.clamp(y @ block.inner.weight.T + block.inner.bias, min=0)
        return hidden @ block.outer.weight.T + block.outer.bias

    for block in model.blocks:
        if options.norm == "pre":
            x = x + attend(norm(x, block.attention_norm), block)
            x = x + feed(norm(x, block.feedforward_norm), block)
        else:
            x = norm(x + attend(x, block), block.attention_norm)
            x = norm(x + feed(x, block), block.feedforward_norm)
    return norm(x, model.final_norm)


def reference_loss(model, histories, drawn):
    """Summed loss of all sequences; ``drawn`` [T, k] in the order of the phase's targets."""
    total, at = torch.zeros((), dtype=torch.float64), 0
    users = [u for u in range(len(histories)) if histories.lengths[u] >= 2]
    users.sort(key=lambda u: -min(histories.lengths[u] - 1, LENGTH))
    for user in users:
        row = slice(histories.offsets[user], histories.offsets[user + 1])
        items, times = histories.items[row][-LENGTH - 1 :], histories.times[row][-LENGTH - 1 :]
        states = reference_states(model, items[:-1], times[:-1].tolist())
        for t, target in enumerate(items[1:]):
            scores = model.items.weight @ states[t]
            if model.options.loss == "ce":
                total = total - torch.log(torch.exp(scores[target]) / torch.exp(scores).sum())
            else:
                beta = 1.0
                if model.options.loss == "gbce":
                    beta = gbce_beta(drawn.shape[1], ITEMS, model.options.calibration)
                total = total - beta * torch.log(torch.sigmoid(scores[target]))
                total = total - torch.log(1 - torch.sigmoid(scores[drawn[at]])).sum()
            at += 1
    return total


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(("loss", "slack"), [("ce", 0), ("ce", 10**6), ("bce", 20), ("gbce", 20)])
def test_loss_and_gradients_are_those_of_the_equations(norm, heads, loss, slack, monkeypatch):
    """Whatever the padding within buckets: packed = padded = one at a time."""
    monkeypatch.setattr(next_item, "SLACK_CPU", slack)
    histories = _histories()
    model = _model(norm=norm, heads=heads, loss=loss, negatives=3, feedforward=2)
    phase = _phase(model, histories, 0 if loss == "ce" else 3)
    rows = np.argsort(-phase.target_counts, kind="stable")  # the order of the reference
    laid_out = phase.lay_out(phase.plan(0, 0, 0), rows)
    ours = model.next_item_loss(laid_out)
    expected = reference_loss(model, histories, laid_out.negatives)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(ours, parameters)
    references = torch.autograd.grad(expected, parameters)
    for name, a, b in zip(names, gradients, references, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=name)


def test_query_vectors_are_the_states_at_the_last_item():
    histories, model = _histories(seed=3), _model().eval()
    vectors = model.query_vectors(RecommenderQueries(np.arange(9), histories))
    for user in range(9):
        row = slice(histories.offsets[user], histories.offsets[user + 1])
        items, times = histories.items[row][-LENGTH:], histories.times[row][-LENGTH:]
        expected = reference_states(model, items, times.tolist())[-1]
        torch.testing.assert_close(vectors[user], expected, rtol=1e-5, atol=1e-6)
    empty = Histories(np.array([0, 0]), np.zeros(0, np.int64), np.zeros(0, np.int64))
    nobody = model.query_vectors(RecommenderQueries(np.array([-1]), empty))
    assert torch.equal(nobody, torch.zeros(1, 6, dtype=torch.float64))


def _vector(model, times):
    items = np.array([3, 1, 4, 1, 5])
    stamps = None if times is None else np.array(times)
    history = Histories(np.array([0, 5]), items, stamps)
    return model.query_vectors(RecommenderQueries(np.array([0]), history))


def test_times_matter_and_their_unit_does_not():
    model = _model().eval()
    before = _vector(model, [0, 60, 120, 600, 660])
    assert not torch.equal(before, _vector(model, [0, 60, 120, 300, 660]))
    assert torch.equal(before, _vector(model, [7, 60_007, 120_007, 600_007, 660_007]))
    # evenly spaced where there are none; all at once is no division by zero
    assert torch.equal(_vector(model, None), _vector(model, [10, 20, 30, 40, 50]))
    assert torch.isfinite(_vector(model, [5, 5, 5, 5, 5])).all()


def test_later_items_and_times_change_nothing_earlier():
    """As long as the smallest gap stays, which is the unit of the sequence that is seen."""
    model = _model().train()
    items = np.array([3, 1, 4, 1, 5, 9])
    times = np.array([0, 1, 5, 7, 20, 40])
    changed = (np.array([3, 1, 4, 8, 2, 9]), np.array([0, 1, 5, 30, 33, 90]))
    states = []
    for one, when in ((items, times), changed):
        phase = _phase(model, Histories(np.array([0, 6]), one, when))
        batch = phase.lay_out(phase.plan(0, 0, 0), np.zeros(1, np.int64))
        rows = model.items.rows(batch.tokens)
        states.append(model.hidden(rows, batch.positions, batch.times, batch.buckets))
    assert torch.equal(states[0][:3], states[1][:3])
    assert not torch.isclose(states[0][3:], states[1][3:]).all(1).any()


def test_the_last_event_of_training_is_no_input():
    """Neither its item nor its time, which may hold the smallest gap."""
    histories, model = _histories(), _model()
    phase = _phase(model, histories)
    moved = histories.times.copy()
    moved[histories.offsets[1:] - 1] += 1
    other = _phase(model, replace(histories, times=moved))
    rows = np.arange(len(phase.users))[np.argsort(-phase.target_counts, kind="stable")]
    one, two = (p.lay_out(p.plan(0, 0, 0), rows) for p in (phase, other))
    assert torch.equal(one.times, two.times)


@pytest.mark.parametrize(
    ("options", "weight"),
    [
        ({"loss": "ce"}, 0.0),
        ({"loss": "bce"}, 5e-5),
        ({"loss": "gbce"}, 5e-5),
        ({"loss": "ce", "embedding_l2": 0.1}, 0.1),
        ({"loss": "bce", "embedding_l2": 0.0}, 0.0),
    ],
)
def test_squared_embeddings_beside_the_loss(options, weight):
    model = _model(**options)
    batch = Batch(torch.arange(2), 0, 0, 0, {"targets": 1.0})
    terms = _phase(model, _histories()).regularizers((), batch)
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
    phase = _phase(_model(dropout=0.4).train(), _histories())
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
    dataset = load_table(events, InteractionOptions(), 0)
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
