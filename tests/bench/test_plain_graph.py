"""The plain sides of the graph recommenders compute what ours do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bench.book_graph import BookGraph
from bench.kgat_side import dataset_of, torch_steps
from bench.lightgcn_side import L2, PlainLightGCN
from bench.plain_batches import EdgeBatches, PairBatches, negatives
from bench.plain_graph import SparseMatrix, sum_of_powers
from bench.plain_kgat import PlainKGAT
from hasten.config import TrainingOptions
from hasten.models.collaborative.kgat import KGAT
from hasten.models.collaborative.kgat_options import KGATOptions
from hasten.models.collaborative.lightgcn import LightGCN, LightGCNOptions
from hasten.models.interface import Sizes

NONE = np.zeros(0, np.int64)
PAIRS = np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 2, 0])
CLOSE = {"rtol": 1e-4, "atol": 1e-6}


@pytest.fixture
def graph():
    """A matrix [4, 3] and its entries, one of them twice."""
    row, column = torch.tensor([3, 0, 0, 2, 0]), torch.tensor([1, 2, 0, 1, 2])
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 0.5])
    dense = torch.zeros(4, 3).index_put_((row, column), values, accumulate=True)
    return SparseMatrix(row, column, values, (4, 3)), dense


def gradient(out, x):
    weights = torch.arange(1.0, out.numel() + 1).view_as(out)
    return torch.autograd.grad((out * weights).sum(), x)[0]


def test_products_with_a_sparse_matrix(graph):
    matrix, dense = graph
    x = torch.randn(3, 2, requires_grad=True)
    torch.testing.assert_close(matrix @ x, dense @ x)
    torch.testing.assert_close(gradient(matrix @ x, x), gradient(dense @ x, x))
    wanted = torch.tensor([0, 1, 3])
    rows, expected = matrix.rows(wanted, x), dense[wanted] @ x
    torch.testing.assert_close(rows, expected)
    torch.testing.assert_close(gradient(rows, x), gradient(expected, x))
    matrix.set_values(torch.ones(5))
    torch.testing.assert_close(
        matrix @ x, (dense > 0).float() @ x + x[2] * (torch.arange(4) == 0)[:, None]
    )


def test_sum_of_powers_of_a_symmetric_matrix():
    row, column = torch.tensor([0, 1, 2, 2]), torch.tensor([1, 0, 2, 2])
    dense = torch.zeros(3, 3).index_put_((row, column), torch.full((4,), 0.5), accumulate=True)
    matrix = SparseMatrix(row, column, torch.full((4,), 0.5), (3, 3))
    x = torch.randn(3, 2, requires_grad=True)
    expected = x + dense @ x + dense @ dense @ x
    found = sum_of_powers(matrix, x, 2)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient(found, x), gradient(expected, x))


def test_drawn_examples_are_pairs_and_edges_with_others():
    known = torch.tensor([0, 1, 2, 5, 6])  # rows of 4: 0, 1, 2 of row 0 and 1, 2 of row 1
    found = negatives(known, torch.tensor([0] * 20 + [1] * 20), 4)
    assert set(found[:20].tolist()) == {3}
    assert set(found[20:].tolist()) == {0, 3}
    user, item = map(torch.from_numpy, PAIRS)
    for by_user in (False, True):
        batches = PairBatches(user, item, 4, 3, by_user=by_user)
        assert batches.steps == 2
        drawn = [torch.stack(batches.draw(index)[:2], 1) for index in range(4)]
        assert [len(pairs) for pairs in drawn] == [3, 2, 3, 2]
        pairs = set(map(tuple, torch.cat(drawn).tolist()))
        assert pairs <= set(zip(*map(np.ndarray.tolist, PAIRS), strict=True))
        assert by_user or len(set(map(tuple, torch.cat(drawn[:2]).tolist()))) == 5
    head, relation = torch.tensor([0, 0, 2]), torch.tensor([1, 1, 0])
    edges = EdgeBatches(head, relation, torch.tensor([1, 2, 0]), 3, 2, 40)
    heads, relations, tails, others = edges.draw()
    assert set(zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)) == {
        (2, 0, 0), (0, 1, 1), (0, 1, 2),
    }  # fmt: skip
    assert relations.tolist() == sorted(relations.tolist())
    assert set(others[relations == 1].tolist()) == {0}
    assert set(others[relations == 0].tolist()) == {1, 2}


def our_loss(phase, batch):
    terms = phase.terms(phase.encode(batch), batch, batch.ids)
    return sum(term.numerator * term.weight / term.denominator for term in terms)


def test_plain_lightgcn_has_our_loss_and_gradient():
    data = BookGraph(*PAIRS, NONE, NONE, NONE, 3, 4, 4, 0)
    torch.manual_seed(0)
    plain, dataset = PlainLightGCN(data), dataset_of(data)
    model = LightGCN(LightGCNOptions(l2=L2), Sizes.of(dataset))
    (phase,) = model.phases(dataset, TrainingOptions(batch_size=4))
    with torch.no_grad():  # items first here, users first there
        model.nodes.weight.copy_(torch.cat([plain.table[3:], plain.table[:3]]))
    batch = phase.plan(0, 0, 0)
    pairs = phase.pairs(batch, batch.ids)
    ours, found = our_loss(phase, batch), plain.loss(pairs.user, pairs.positive, pairs.negative)
    torch.testing.assert_close(ours, found)
    ours.backward()
    found.backward()
    grad = torch.cat([plain.table.grad[3:], plain.table.grad[:3]])
    torch.testing.assert_close(model.nodes.weight.grad, grad, **CLOSE)


@pytest.fixture
def facts():
    """Four items, two more entities and seven facts of two relations."""
    head, relation = np.array([0, 0, 1, 2, 3, 3, 4]), np.array([0, 1, 0, 1, 0, 1, 0])
    tail = np.array([4, 5, 4, 5, 5, 4, 5])
    return dataset_of(BookGraph(*PAIRS, head, relation, tail, 3, 4, 6, 2))


@pytest.mark.parametrize("layers", [(5,), (5, 4, 3)])
def test_plain_kgat_has_our_losses_gradients_and_attention(facts, layers):
    torch.manual_seed(0)
    options = KGATOptions(width=6, relation_width=6, layers=layers, dropout=0.0)
    ours = KGAT(options, Sizes.of(facts))
    phases = ours.phases(facts, TrainingOptions(batch_size=4))
    plain = PlainKGAT(facts, layers, width=6, dropout=0.0)
    with torch.no_grad():
        plain.nodes.weight.copy_(ours.nodes.weight)
        plain.relations.weight.copy_(ours.relations.weight)
        plain.projections.copy_(ours.projections)
        for layer, first, second in zip(ours.layers, plain.first, plain.second, strict=True):
            first.load_state_dict(layer.first.state_dict())
            second.load_state_dict(layer.second.state_dict())
    for refreshed in (False, True):
        if refreshed:
            ours.refresh()
            plain.attend()
        torch.testing.assert_close(plain.values, ours.attention, **CLOSE)
        batch = phases[0].plan(0, 0, 0)
        pairs = phases[0].pairs(batch, batch.ids)
        found = plain.pair_loss(pairs.user, pairs.positive, pairs.negative)
        assert_same_gradients(plain, ours, found, our_loss(phases[0], batch))
    batch = phases[1].plan(0, 0, 0)
    edges = phases[1].sample(batch, batch.ids)
    head, tail, other = edges.nodes.view(-1, 3).unbind(1)
    found = plain.translation_loss(head, edges.relation, tail, other)
    terms = phases[1].terms((), batch, batch.ids)
    expected = sum(term.numerator * term.weight / term.denominator for term in terms)
    assert_same_gradients(plain, ours, found, expected)
    torch.testing.assert_close(plain.projections.grad, ours.projections.grad, **CLOSE)


def assert_same_gradients(plain, ours, found, expected):
    torch.testing.assert_close(found, expected, **CLOSE)
    plain.zero_grad()
    ours.zero_grad()
    found.backward()
    expected.backward()
    torch.testing.assert_close(plain.nodes.weight.grad, ours.nodes.weight.grad, **CLOSE)


def test_steps_of_the_plain_kgat(facts):
    torch.manual_seed(0)
    model = PlainKGAT(facts, (4,), width=6)
    steps = torch_steps(model, facts, 3, fused=True)
    before = model.nodes.weight.detach().clone()
    assert all(step(index) >= 0 for step in steps.values() for index in range(3))
    assert not torch.equal(before, model.nodes.weight)
