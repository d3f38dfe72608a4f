"""LightGCN against its equations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hasten.config import PairOptions, TrainingOptions
from hasten.config_loading.build import build_config
from hasten.data.interactions.load_features import load_pairs
from hasten.data.tables import TRAIN
from hasten.errors import ConfigurationError
from hasten.models.collaborative.lightgcn import LightGCN, LightGCNOptions
from hasten.models.interface import Sizes
from hasten.scoring import RecommenderQueries
from tests.models.collaborative.kgat_data import write_layout


def build(tmp_path, **options):
    data = PairOptions(path=str(write_layout(tmp_path / "data")))
    dataset = load_pairs(data, 0)
    torch.manual_seed(0)
    chosen = LightGCNOptions(**{"width": 5, "l2": 0.03, **options})
    model = LightGCN(chosen, Sizes.of(dataset)).double()
    (phase,) = model.phases(dataset, TrainingOptions(batch_size=9))
    return dataset, model, phase


def loss_of_a_batch(model, phase, micro_batches):
    """A batch, its loss by the phase, summed over micro-batches, and the gradient of layer 0."""
    batch = phase.plan(1, 0, 0)
    encoded = phase.encode(batch)
    parts = [batch.micro_batch_ids(number, micro_batches) for number in range(micro_batches)]
    terms = [term for part in parts for term in phase.terms(encoded, batch, part)]
    loss = sum(term.numerator * term.weight / term.denominator for term in terms)
    (gradient,) = torch.autograd.grad(loss, list(model.parameters()))
    return batch, loss, gradient


def naive_vectors(dataset, model):
    """[N + U, D] by the paper's sums over neighbours, pair by pair."""
    items = len(dataset.items)
    train = dataset.part == TRAIN
    pairs = set(
        zip(
            dataset.interactions.user[train].tolist(),
            dataset.interactions.item[train].tolist(),
            strict=True,
        )
    )
    degree = {}
    for user, item in pairs:
        degree[items + user] = degree.get(items + user, 0) + 1
        degree[item] = degree.get(item, 0) + 1
    layers = [list(model.nodes.weight.unbind(0))]
    for _ in range(model.options.layers):
        last = layers[-1]
        new = [torch.zeros_like(row) for row in last]
        for user, item in pairs:
            u = items + user
            norm = (degree[u] * degree[item]) ** 0.5
            new[u] = new[u] + last[item] / norm
            new[item] = new[item] + last[u] / norm
        layers.append(new)
    return torch.stack([torch.stack(layer) for layer in layers]).mean(0)


@pytest.mark.parametrize("layers", [1, 3])
def test_loss_and_gradients_are_those_of_the_equations(tmp_path, layers):
    dataset, model, phase = build(tmp_path, layers=layers)
    batch, ours, mine = loss_of_a_batch(model, phase, micro_batches=2)
    vectors, own = naive_vectors(dataset, model), model.nodes.weight
    found = phase.pairs(batch, batch.ids)
    theirs = torch.zeros((), dtype=torch.float64)
    users = (found.user + len(dataset.items)).tolist()
    for u, i, j in zip(users, found.positive.tolist(), found.negative.tolist(), strict=True):
        theirs = theirs + F.softplus(vectors[u] @ vectors[j] - vectors[u] @ vectors[i])
        theirs = theirs + 0.03 / 2 * sum((own[k] ** 2).sum() for k in (u, i, j))
    theirs = theirs / len(found.user)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=0)
    (other,) = torch.autograd.grad(theirs, list(model.parameters()))
    torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sampling", ["users", "interactions"])
def test_the_softmax_loss_and_its_gradients_are_those_of_the_equation(tmp_path, sampling):
    settings = {"loss": "softmax", "temperature": 0.4, "sampling": sampling}
    dataset, model, phase = build(tmp_path, layers=2, **settings)
    batch, ours, mine = loss_of_a_batch(model, phase, micro_batches=3)
    vectors, own, items = naive_vectors(dataset, model), model.nodes.weight, len(dataset.items)
    found = phase.pairs(batch, batch.ids)
    users, positives = (found.user + items).tolist(), found.positive.tolist()
    negatives = found.negative.tolist()
    # the sample has repetitions, and items of other pairs
    assert len(set(negatives)) < len(negatives)
    assert set(negatives) & set(positives)
    theirs = torch.zeros((), dtype=torch.float64)
    for u, i, own_negative in zip(users, positives, negatives, strict=True):
        score = F.cosine_similarity(vectors[u], vectors[i], dim=0) / 0.4
        total = score.exp()
        for j in negatives:  # an item that was drawn twice is two summands
            if j != i:
                other = F.cosine_similarity(vectors[u], vectors[j], dim=0) / 0.4
                total = total + other.exp() * items / len(negatives)
        theirs = theirs + total.log() - score
        theirs = theirs + 0.03 / 2 * sum((own[k] ** 2).sum() for k in (u, i, own_negative))
    theirs = theirs / len(users)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)  # weights are float32
    (other,) = torch.autograd.grad(theirs, list(model.parameters()))
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


def test_a_temperature_needs_the_softmax():
    with pytest.raises(ConfigurationError, match=r"model\.loss=softmax"):
        build_config("lightgcn", None, None, (), {"model.temperature": 0.2})


def test_judging_uses_all_layers_for_all_users_and_items(tmp_path):
    dataset, model, _ = build(tmp_path)
    queries = RecommenderQueries(np.arange(4), dataset.histories(TRAIN))
    with torch.no_grad():
        vectors = naive_vectors(dataset, model)
        expected = vectors[10:] @ vectors[:10].T
        torch.testing.assert_close(model.scorer(queries).block(0, 10), expected)
        with model.encoded_once():
            torch.testing.assert_close(model.scorer(queries).block(0, 10), expected)


@pytest.mark.parametrize("model", ["lightgcn", "bprmf"])
def test_recompute_would_have_no_effect(model):
    with pytest.raises(ConfigurationError, match="no effect"):
        build_config(model, None, None, (), {"training.recompute": True})
