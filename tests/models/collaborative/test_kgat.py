"""KGAT against its equations in float64, its graph, its attention, what it must not do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.config import KnowledgeOptions, TrainingOptions
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.tables import TRAIN
from hasten.models.collaborative import kgat_layers
from hasten.models.collaborative.kgat import KGAT
from hasten.models.collaborative.kgat_options import KGATOptions
from hasten.models.interface import Sizes
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from hasten.scoring import RecommenderQueries
from tests.models.collaborative.kgat_data import (
    dense_attention,
    naive_pair_loss,
    naive_translation_loss,
    naive_vectors,
    small_dataset,
    write_layout,
)
from tests.ops.reference import relation_attention_reference


def build(tmp_path, double=True, batch_size=6, **options):
    """The model over the small data, its phases, its graph."""
    dataset = small_dataset(tmp_path / "data")
    torch.manual_seed(0)
    chosen = KGATOptions(**{"width": 6, "relation_width": 5, "layers": (6, 4, 3), **options})
    model = KGAT(chosen, Sizes.of(dataset))
    for layer in model.layers:  # biases away from zero, so that they are tested
        for _, bias in layer.matrices:
            torch.nn.init.normal_(bias, std=0.3)
    if double:
        model.double()
    training = TrainingOptions(batch_size=batch_size)
    return dataset, model, model.phases(dataset, training), CollaborativeGraph.of(dataset)


def loss_of(phase, batch, parts=1):
    """The whole loss of a batch as the engine adds it up."""
    encoded = phase.encode(batch)
    terms = []
    for part in range(parts):
        terms += phase.terms(encoded, batch, batch.micro_batch_ids(part, parts))
    return sum(t.numerator * t.weight / t.denominator for t in terms)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("aggregator", ["bi-interaction", "gcn", "graphsage"])
@pytest.mark.parametrize(("layers", "chosen"), [((5,), 0.8), ((6, 4, 3), 0.0), ((6, 4, 3), 1.1)])
def test_pair_loss_and_gradients_are_those_of_the_equations(
    tmp_path, aggregator, layers, chosen, monkeypatch
):
    # of the last layer but one: all, or some nodes
    monkeypatch.setattr(kgat_layers, "_MAX_NODE_SHARE", chosen)
    options = {"aggregator": aggregator, "layers": layers, "dropout": 0.0, "l2": 0.01}
    _, model, (pairs, _), graph = build(tmp_path, **options)
    model.refresh()
    batch = pairs.plan(3, 1, 0)
    found = pairs.pairs(batch, batch.ids)
    ours = loss_of(pairs, batch, parts=2)
    mine = gradients(model, ours)
    columns = (found.user + graph.entities, found.positive, found.negative)
    triples = list(zip(*(column.tolist() for column in columns), strict=True))
    vectors = naive_vectors(model, dense_attention(graph, model.attention))
    naive = naive_pair_loss(vectors, triples, 0.01)
    torch.testing.assert_close(ours, naive, rtol=1e-10, atol=0)
    assert_same(mine, gradients(model, naive))


def test_translation_loss_and_gradients_are_those_of_the_equations(tmp_path):
    _, model, (_, translation), _ = build(tmp_path, kg_l2=0.02, kg_batch_size=17)
    batch = translation.plan(5, 0, 1)
    drawn = translation.sample(batch, batch.ids)
    ours = loss_of(translation, batch, parts=3)
    mine = gradients(model, ours)
    nodes = drawn.nodes.view(-1, 3).tolist()
    edges = [(h, r, t, o) for (h, t, o), r in zip(nodes, drawn.relation.tolist(), strict=True)]
    naive = naive_translation_loss(model, edges, 0.02)
    torch.testing.assert_close(ours, naive, rtol=1e-10, atol=0)
    assert_same(mine, gradients(model, naive))


def test_attention_is_that_of_the_equations_and_sums_to_one(tmp_path):
    _, model, _, graph = build(tmp_path)
    columns = (torch.from_numpy(c) for c in (graph.head, graph.relation, graph.tail))
    with torch.no_grad():
        logits = relation_attention_reference(
            *columns, model.nodes.weight, model.relations.weight, model.projections
        )
    model.refresh()
    head = torch.from_numpy(graph.head)
    for node in head.unique().tolist():
        mine = head == node
        torch.testing.assert_close(model.attention[mine], torch.softmax(logits[mine], 0))
        assert float(model.attention[mine].sum()) == pytest.approx(1.0)


def test_before_the_first_refresh_edges_weigh_one_over_those_of_their_relation(tmp_path):
    _, model, _, graph = build(tmp_path)
    for node, relation in set(zip(graph.head.tolist(), graph.relation.tolist(), strict=True)):
        mine = (graph.head == node) & (graph.relation == relation)
        weights = model.attention.numpy()[mine]
        assert weights == pytest.approx(np.full(mine.sum(), 1 / mine.sum()))


def test_graph_holds_training_pairs_and_facts_in_both_directions(tmp_path):
    dataset, _, _, graph = build(tmp_path)
    edges = set(zip(graph.head.tolist(), graph.relation.tolist(), graph.tail.tolist(), strict=True))
    assert len(edges) == len(graph)
    kinds = len(dataset.facts.relations)
    assert graph.relations == 2 * kinds + 2
    for h, r, t in edges:
        back = {0: 1, 1: 0}.get(r, r + kinds if r < 2 + kinds else r - kinds)
        assert (t, back, h) in edges
    events = dataset.interactions
    for user, item, part in zip(events.user, events.item, dataset.part, strict=True):
        pair = (int(user) + graph.entities, 0, int(item))
        assert (pair in edges) == (part == TRAIN)


def test_negatives_are_neither_known_items_nor_known_tails(tmp_path):
    dataset, _, (pairs, translation), graph = build(tmp_path, batch_size=50)
    edges = set(zip(graph.head.tolist(), graph.relation.tolist(), graph.tail.tolist(), strict=True))
    train = dataset.part == TRAIN
    events = dataset.interactions
    known = set(zip(events.user[train].tolist(), events.item[train].tolist(), strict=True))
    for epoch in range(20):
        batch = pairs.plan(0, epoch, 0)
        found = pairs.pairs(batch, batch.ids)
        columns = (found.user, found.positive, found.negative)
        for u, i, j in zip(*(c.tolist() for c in columns), strict=True):
            assert (u, i) in known
            assert (u, j) not in known
        batch = translation.plan(0, epoch, 0)
        drawn = translation.sample(batch, batch.ids)
        for (h, t, o), r in zip(
            drawn.nodes.view(-1, 3).tolist(), drawn.relation.tolist(), strict=True
        ):
            assert (h, r, t) in edges
            assert (h, r, o) not in edges


def test_heads_and_users_are_drawn_alike(tmp_path):
    _, _, (pairs, translation), graph = build(tmp_path, batch_size=10**6)
    heads = set(graph.head.tolist())
    counts = dict.fromkeys(heads, 0)
    batch = translation.plan(0, 0, 0)
    for head in translation.sample(batch, batch.ids).nodes.view(-1, 3)[:, 0].tolist():
        counts[head] += 1
    assert max(counts.values()) - min(counts.values()) <= 1
    batch = pairs.plan(0, 0, 0)
    users = np.bincount(pairs.pairs(batch, batch.ids).user.numpy())
    assert users.max() - users.min() <= 1


def test_every_interaction_once_where_so_asked(tmp_path):
    dataset, _, (pairs, _), _ = build(tmp_path, batch_size=10**6, sampling="interactions")
    batch = pairs.plan(0, 0, 0)
    found = pairs.pairs(batch, batch.ids)
    train = dataset.part == TRAIN
    events = dataset.interactions
    wanted = sorted(zip(events.user[train].tolist(), events.item[train].tolist(), strict=True))
    assert sorted(zip(found.user.tolist(), found.positive.tolist(), strict=True)) == wanted


def test_dropout_of_a_step_follows_from_its_batch_alone(tmp_path):
    _, model, (pairs, _), _ = build(tmp_path, dropout=0.5)
    model.train()
    batch = pairs.plan(0, 0, 1)
    first = pairs.encode(batch)[0]
    torch.randn(7)
    assert torch.equal(first, pairs.encode(batch)[0])
    plain = build(tmp_path, dropout=0.0)[1]
    plain.load_state_dict(model.state_dict())
    assert not torch.allclose(first, plain.propagate(pairs.encode(batch)[1]))


def test_recompute_changes_nothing_where_nodes_are_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(kgat_layers, "_MAX_NODE_SHARE", 1.1)
    _, model, (pairs, _), _ = build(tmp_path, dropout=0.5)
    model.train()
    batch = pairs.plan(0, 0, 0)
    assert model._batch_nodes(pairs.encode(batch)[1]).last_inputs is not None
    found = []
    for model.recompute in (False, True):
        loss = loss_of(pairs, batch)
        found.append((loss, gradients(model, loss)))
    assert torch.equal(found[0][0], found[1][0])
    assert all(torch.equal(found[1][1][name], value) for name, value in found[0][1].items())


def test_judging_uses_all_layers_for_all_users_and_items(tmp_path):
    dataset, model, _, graph = build(tmp_path)
    model.refresh()
    model.eval()
    queries = RecommenderQueries(np.arange(4), dataset.histories(TRAIN))
    with torch.no_grad():
        scores = model.scorer(queries).block(0, 10)
        vectors = naive_vectors(model, dense_attention(graph, model.attention))
        expected = vectors[graph.entities :] @ vectors[:10].T
        torch.testing.assert_close(scores, expected)
        with model.encoded_once():
            torch.testing.assert_close(model.scorer(queries).block(0, 10), expected)


def test_items_without_facts_and_without_events_have_vectors(tmp_path):
    """An isolated node aggregates nothing: it is its own row through the layers."""
    dataset, model, _, graph = build(tmp_path)
    assert 9 in graph.head  # no facts, but events
    vectors = model.propagate(torch.arange(graph.nodes))
    assert torch.isfinite(vectors).all()
    assert len(dataset.items) == 10


def test_an_isolated_node_aggregates_nothing_and_is_trained_like_the_others(tmp_path):
    """An item of the list without events and facts: no edge leads to it or from it."""
    folder = write_layout(tmp_path / "data")
    names = "".join(f"item{number} {number}\n" for number in (*range(10), 30))
    (folder / "item_list.txt").write_text(f"org_id remap_id\n{names}")
    dataset = load_knowledge(KnowledgeOptions(path=str(folder)), 0)
    options = KGATOptions(width=6, relation_width=5, layers=(6, 4), dropout=0.0)
    model = KGAT(options, Sizes.of(dataset)).double()
    training = TrainingOptions(batch_size=6)
    pairs, translation = model.phases(dataset, training)
    graph = CollaborativeGraph.of(dataset)
    lonely = len(dataset.items) - 1
    assert lonely not in graph.head
    assert lonely not in graph.tail
    model.refresh()
    assert torch.isfinite(model.attention).all()
    e = model.nodes.weight[lonely]
    first = torch.nn.functional.leaky_relu(model.layers[0].first(e), 0.2)
    second = torch.nn.functional.leaky_relu(model.layers[0].second(e * 0), 0.2)
    vector = model.propagate(torch.tensor([0, lonely]))[1]
    torch.testing.assert_close(vector[:6], e)
    torch.testing.assert_close(vector[6:12], (first + second) / (first + second).norm())
    for phase in (pairs, translation):
        loss = loss_of(phase, phase.plan(0, 0, 0))
        assert all(torch.isfinite(g).all() for g in gradients(model, loss).values())
