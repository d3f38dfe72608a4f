"""SASRec and TiSASRec against their equations."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from hasten.data.tables import Histories
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.objectives import sequence_batch
from hasten.scoring import RecommenderQueries
from tests.models.sequential.equations import (
    LENGTH,
    build,
    phase_of,
    random_histories,
    reference_loss,
    reference_states,
)


@pytest.mark.parametrize("block", ["pre", "post", "ligr"])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("kind", "loss", "slack"),
    [
        *product([SASRec], ["ce", "bce", "gbce"], [0, 20, 10**6]),
        *product([TiSASRec], ["ce"], [0, 10**6]),
        *product([TiSASRec], ["bce", "gbce"], [20]),
    ],
)
def test_loss_and_gradients_are_those_of_the_equations(
    kind, block, heads, loss, slack, monkeypatch
):
    """Whatever the padding within buckets: packed = padded = one at a time."""
    monkeypatch.setattr(sequence_batch, "SLACK_CPU", slack)
    histories = random_histories()
    form = {"block": "ligr"} if block == "ligr" else {"norm": block}
    model = build(kind, **form, heads=heads, loss=loss, negatives=3, feedforward=2)
    phase = phase_of(model, histories, 0 if loss == "ce" else 3)
    # longest first, users in order within a length: the order of the reference
    rows = np.argsort(-phase.target_counts, kind="stable")
    micro_batch = phase.build_micro_batch(phase.plan(0, 0, 0), rows)
    ours = model.next_item_loss(micro_batch)
    expected = reference_loss(model, histories, micro_batch.negatives)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(ours, parameters)
    references = torch.autograd.grad(expected, parameters)
    for name, a, b in zip(names, gradients, references, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=name)


@pytest.mark.parametrize("kind", [SASRec, TiSASRec])
def test_query_vectors_are_the_states_at_the_last_item(kind):
    histories, model = random_histories(seed=3), build(kind).eval()
    vectors = model.query_vectors(RecommenderQueries(np.arange(9), histories))
    for user in range(9):
        row = slice(histories.offsets[user], histories.offsets[user + 1])
        items, times = histories.items[row][-LENGTH:], histories.times[row][-LENGTH:]
        expected = reference_states(model, items, times.tolist())[-1]
        torch.testing.assert_close(vectors[user], expected, rtol=1e-5, atol=1e-6)
    empty = Histories(np.array([0, 0]), np.zeros(0, np.int64), np.zeros(0, np.int64))
    nobody = model.query_vectors(RecommenderQueries(np.array([-1]), empty))
    assert torch.equal(nobody, torch.zeros(1, 6, dtype=torch.float64))
