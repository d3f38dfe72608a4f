"""SASRec against its equations, written out a sequence at a time in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential import base as sequential
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.objectives import next_item
from hasten.objectives.next_item import NextItemPhase
from hasten.ops.losses.sampled_loss import gbce_beta
from hasten.scoring import RecommenderQueries

ITEMS = 23


def _histories(users=9, seed=0, longest=11):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, users)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return Histories(offsets, generator.integers(0, ITEMS, lengths.sum()))


def _model(**options):
    torch.manual_seed(1)
    settings = {"width": 6, "max_length": 7, "dropout": 0.0, **options}
    model = SASRec(SASRecOptions(**settings), Sizes(users=9, items=ITEMS)).double()
    for parameter in model.parameters():  # biases too, so that every one of them matters
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def _phase(model, histories, negatives=0):
    return NextItemPhase(
        model, histories, items=ITEMS, batch_size=9, max_length=7, negatives=negatives
    )


def reference_states(model, items):
    """[n, D] states of one sequence, from the equations."""
    options, n = model.options, len(items)
    width, head = options.width, options.width // options.heads
    x = math.sqrt(width) * model.items.weight[items] + model.positions.weight[:n].flip(0)

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
            for t in range(n):
                weights = torch.softmax(k[: t + 1, part] @ q[t, part] / math.sqrt(head), 0)
                rows.append(weights @ v[: t + 1, part])
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
    users.sort(key=lambda u: -min(histories.lengths[u] - 1, 7))
    for user in users:
        items = histories.items[histories.offsets[user] : histories.offsets[user + 1]][-8:]
        states = reference_states(model, items[:-1])
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
@pytest.mark.parametrize("loss", ["ce", "bce", "gbce"])
@pytest.mark.parametrize("slack", [0, 20, 10**6])
def test_loss_and_gradients_are_those_of_the_equations(norm, heads, loss, slack, monkeypatch):
    """Whatever the padding within buckets: packed = padded = one at a time."""
    monkeypatch.setattr(next_item, "SLACK_CPU", slack)
    histories = _histories()
    model = _model(norm=norm, heads=heads, loss=loss, negatives=3, feedforward=2)
    phase = _phase(model, histories, 0 if loss == "ce" else 3)
    # longest first, users in order within a length: the order of the reference
    rows = np.argsort(-phase.target_counts, kind="stable")
    batch = phase.plan(0, 0, 0)
    laid_out = phase.lay_out(batch, rows)
    ours = model.next_item_loss(laid_out)
    expected = reference_loss(model, histories, laid_out.negatives)
    assert ours.item() == pytest.approx(expected.item(), rel=1e-6)
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad(ours, parameters)
    references = torch.autograd.grad(expected, parameters)
    for name, a, b in zip(names, gradients, references, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=name)


def test_many_negatives_take_another_way_to_the_same_loss(monkeypatch):
    histories, model = _histories(), _model(loss="bce", negatives=5)
    phase = _phase(model, histories, 5)
    batch = phase.plan(0, 0, 0)
    together = phase.terms((), batch, batch.ids)[0].numerator
    monkeypatch.setattr(sequential, "FEW_ROWS", 0)
    apart = phase.terms((), batch, batch.ids)[0].numerator
    assert apart.item() == pytest.approx(together.item(), rel=1e-9)


def test_query_vectors_are_the_states_at_the_last_item():
    histories, model = _histories(seed=3), _model().eval()
    empty = Histories(np.array([0, 0]), np.zeros(0, np.int64))
    queries = RecommenderQueries(np.arange(9), histories)
    vectors = model.query_vectors(queries)
    for user in range(9):
        items = histories.items[histories.offsets[user] : histories.offsets[user + 1]][-7:]
        expected = reference_states(model, items)[-1]
        torch.testing.assert_close(vectors[user], expected, rtol=1e-5, atol=1e-6)
    nobody = model.query_vectors(RecommenderQueries(np.array([-1]), empty))
    assert torch.equal(nobody, torch.zeros(1, 6, dtype=torch.float64))


def test_targets_never_see_themselves():
    """Changing the last event changes only the loss of the target it is."""
    histories, model = _histories(), _model()
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
    histories, model = _histories(longest=30), _model().eval()
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
    histories = _histories(users=60, longest=40)

    def held(recompute, blocks):
        options = SASRecOptions(width=16, max_length=40, dropout=0.3, blocks=blocks, feedforward=4)
        model = SASRec(options, Sizes(users=60, items=ITEMS)).train()
        model.recompute = recompute
        phase = NextItemPhase(
            model, histories, items=ITEMS, batch_size=60, max_length=40, negatives=0
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
