"""HGT: its losses against the equations, what messages pass, and that no layout changes a step."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn import functional as F

from bench.jaccard_side import jaccard_pairs_reference
from hasten.config import TrainingOptions, TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import TRAIN
from hasten.errors import ConfigurationError
from hasten.models.interface import Sizes
from hasten.models.typed_graph import hgt
from hasten.models.typed_graph.hgt import HGT
from hasten.models.typed_graph.hgt_options import HGTOptions
from hasten.models.typed_graph.jaccard import jaccard_pairs
from hasten.objectives.link_blocks import LinkBlocks, link_loss, losses_by_type, negative_loss
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.message_graph import MessageGraph
from hasten.scoring import TripleQueries
from tests.ops.reference import edge_attention_reference

SMALL = {"width": 6, "hidden": 8, "heads": 2, "negatives": 5, "contrastive_batch": 4}


def table(seed=0, drugs=12, genes=9, diseases=8, loops=False):
    """Typed edges in PrimeKG's columns; genes interact without direction, some with themselves."""
    generator = np.random.default_rng(seed)
    rows = set()
    for i in range(drugs):
        for j in generator.integers(genes, size=3):
            rows.add(("targets", "drug", f"d{i}", "gene", f"g{j}"))
        rows.add(("treats", "drug", f"d{i}", "disease", f"s{generator.integers(diseases)}"))
    for i in range(diseases):
        for j in generator.integers(genes, size=3):
            rows.add(("associates", "disease", f"s{i}", "gene", f"g{j}"))
    for i in range(genes):
        for j in generator.integers(genes, size=2):
            if i != j:
                rows |= {("meets", "gene", f"g{a}", "gene", f"g{b}") for a, b in ((i, j), (j, i))}
    if loops:
        rows |= {("meets", "gene", f"g{i}", "gene", f"g{i}") for i in range(0, genes, 2)}
    names = ("relation", "x_type", "x_id", "y_type", "y_id")
    ordered = sorted(rows)
    return pa.table({name: [row[i] for row in ordered] for i, name in enumerate(names)})


def build(batch_size=7, seed=0, recompute=False, loops=False, **options):
    dataset = load_graph(TripleOptions(ratios=(0.7, 0.15, 0.15)), 0, table(loops=loops))
    torch.manual_seed(seed)
    chosen = HGTOptions(**{**SMALL, **options})
    model = HGT(chosen, Sizes.of(dataset)).double()
    with torch.no_grad():
        model.inputs.normal_()
        model.bias.normal_()
        if model.selves is not None:
            model.selves.normal_(std=0.1)
        if model.shallow is not None:
            model.shallow.normal_(std=0.2)
        for layer in model.layers:
            layer.prior.uniform_(0.5, 1.5)
            layer.skip.normal_()
        if model.relations is not None:
            model.relations.normal_(1.0, 0.3)
    model.attach(dataset)
    training = TrainingOptions(batch_size=batch_size, recompute=recompute)
    (phase,) = model.phases(dataset, training)
    return dataset, model, phase


def loss_of(phase, batch, parts=1):
    encoded = phase.encode(batch)
    leaves = tuple(t.detach().requires_grad_() for t in encoded)
    total = 0.0
    for part in range(parts):
        terms = phase.terms(leaves, batch, batch.micro_batch_ids(part, parts))
        value = sum(t.numerator * t.weight / t.denominator for t in terms)
        value.backward()
        total += float(value.detach())
    if encoded:
        torch.autograd.backward(encoded, [leaf.grad for leaf in leaves])
    return total


def gradients(model, run):
    model.zero_grad()
    value = run()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return value, grads


def assert_same(ours, theirs, rtol=1e-9):
    for name in ours.keys() | theirs.keys():
        zero = torch.zeros(())
        one, other = ours.get(name, zero), theirs.get(name, zero)
        torch.testing.assert_close(
            one.expand_as(other) if one.dim() == 0 and other.dim() else one,
            other.expand_as(one) if other.dim() == 0 and one.dim() else other,
            rtol=rtol, atol=1e-11, check_dtype=False, msg=lambda text, name=name: f"{name}: {text}",
        )  # fmt: skip


def naive_vectors(model, graph, scored):
    """All vectors by the equations, from the messages of the links that are not scored."""
    edges = model._edges
    keep = torch.from_numpy(~scored[graph.link])
    kind = torch.from_numpy(graph.types.code)
    x = model.inputs if len(model.inputs) == graph.nodes else model.inputs[kind]
    for number, layer in enumerate(model.layers):

        def linear(part, rows):
            return torch.einsum("nd,ndk->nk", rows, part.weight[kind]) + part.bias[kind]

        scale = layer.prior / (layer.out // layer.heads) ** 0.5
        found = edge_attention_reference(
            edges, linear(layer.query, x), linear(layer.key, x), linear(layer.value, x),
            layer.attention * scale[:, :, None, None], layer.message, keep,
        )  # fmt: skip
        found = linear(layer.result, F.gelu(found))
        share = torch.sigmoid(layer.skip)[kind][:, None]
        x = share * found + (1 - share) * x
        if model.gains is not None:
            x = F.layer_norm(x, x.shape[1:]) * model.gains[number][kind]
            x = x + model.shifts[number][kind]
        if model.options.activation == "relu":
            x = torch.relu(x)
    z = model.result(x)
    return z if model.shallow is None else torch.cat([z, model.shallow * 5], dim=1)


def naive_loss(model, phase, batch):
    """Link loss and contrast one link and one anchor at a time."""
    graph, contrast = phase.graph, phase.contrast
    ids = batch.ids.tolist()
    links = [i for i in ids if i < phase.links]
    scored = np.zeros(phase.links, bool)
    scored[links] = True
    z = naive_vectors(model, graph, scored)
    triples = set(
        zip(
            graph.links.head.tolist(),
            graph.links.kind.tolist(),
            graph.links.tail.tolist(),
            strict=True,
        )
    )
    triples |= {(t, r, h) for h, r, t in triples if graph.types.symmetric[r]}

    def score(given, r, other):
        w = 1.0 if model.relations is None else model.relations[r]
        itself = model.selves[r] * 10 if model.selves is not None and given == other else 0.0
        query = hgt.dropout(z[given] * w, model.options.query_dropout, model.training)
        return (query * z[other]).sum() / z.shape[1] ** 0.5 + model.bias[r] + itself

    total = 0.0
    for link in links:
        h, r, t = (
            int(graph.links.head[link]),
            int(graph.links.kind[link]),
            int(graph.links.tail[link]),
        )
        same = graph.types.source[r] == graph.types.target[r]
        excluded = model.options.exclude_self and all(a != b for a, k, b in triples if k == r)
        same &= model.selves is not None
        kinds = graph.types.target[r], graph.types.source[r]
        others = [phase.sampler.negatives(batch, int(kind)).tolist() for kind in kinds]
        known = triples if model.options.filter_negatives else {(h, r, t)}
        tails = [o for o in {*others[0], *([h] if same else [])} if (h, r, o) not in known]
        heads = [o for o in {*others[1], *([t] if same else [])} if (o, r, t) not in known]
        tails = [o for o in tails if not (excluded and o == h)]
        heads = [o for o in heads if not (excluded and o == t)]
        drawn = [(h, t, tails), (t, h, heads)]
        logistic = phase.sampling.loss == "logistic"
        value = F.softplus(-score(h, r, t)) if logistic else 0.0
        for given, answer, negatives in drawn:
            own, others = score(given, r, answer), [score(given, r, o) for o in negatives]
            if logistic and others:
                value = value + sum(F.softplus(each) for each in others) / len(others) / 2
            if not logistic:
                smoothing, target = model.options.label_smoothing, torch.tensor(0)
                scores = torch.stack([own, *others])
                value = value + F.cross_entropy(scores, target, label_smoothing=smoothing) / 2
        value = value + model.options.n3 * (z[h].abs() ** 3 + z[t].abs() ** 3).sum()
        total = total + value / len(links)
    anchors = np.array([i - phase.links for i in ids if i >= phase.links])
    if contrast is not None:
        similar = contrast.similar
        chosen, positives, drawn = contrast.nodes(batch, anchors)
        for a, p in zip(chosen, positives, strict=True):
            alike = similar.rows.row(int(a) - similar.first) + similar.first
            assert p in alike
            others = [n for n in drawn.tolist() if n != a and n not in alike]

            def c(n, a=a):
                return F.cosine_similarity(z[a], z[n], dim=0) / similar.temperature

            logits = torch.stack([c(int(p)), *(c(n) for n in others)])
            value = torch.logsumexp(logits, 0) - logits[0]
            total = total + contrast.similar.weight * value / len(anchors)
    return total


@pytest.mark.parametrize("mode", ["full", "edges", "neighbors"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"decoder": "dot", "norm": False, "activation": "relu", "layers": 1},
        {"inputs": "constant", "contrastive_weight": 0, "layers": 3},
        {"loss": "logistic", "negatives": 3, "loops": True, "self_score": True},
        {"decoder": "dot", "negatives": 3, "self_score": True},
        {"loss": "softmax", "negatives": 3, "loops": True, "self_score": True},
        {"loss": "softmax", "negatives": 50, "loops": True, "self_score": True},
        {"exclude_self": True, "negatives": 50},
        {"exclude_self": True, "filter_negatives": False, "query_dropout": 0.5},
        {"self_score": True, "loops": True, "filter_negatives": False, "loss": "logistic"},
        {"exclude_self": True, "loops": True, "shallow_width": 5, "n3": 0.3},
        {"shallow_width": 2, "n3": 0.1, "loss": "logistic", "exclude_self": True, "negatives": 8},
        {"label_smoothing": 0.2, "self_score": True, "loops": True, "filter_negatives": False},
    ],
)
def test_loss_and_gradients_are_those_of_the_equations(mode, options, monkeypatch):
    fan_out = {"fan_out": 1000} if mode == "neighbors" else {}
    if "query_dropout" in options:  # what a query loses depends on which end it is of
        monkeypatch.setattr(hgt, "dropout", lambda x, rate, training: x * (x > 0))
    _, model, phase = build(mode=mode, **options, **fan_out)
    batch = phase.plan(3, 1, 0)
    ours, mine = gradients(model, lambda: loss_of(phase, batch, parts=3))

    def naive():
        value = naive_loss(model, phase, batch)
        value.backward()
        return float(value.detach())

    theirs, expected = gradients(model, naive)
    assert ours == pytest.approx(theirs, rel=1e-9)
    assert_same(mine, expected)


@pytest.mark.parametrize("mode", ["full", "edges", "neighbors"])
def test_micro_batches_and_recomputation_change_nothing(mode):
    fan_out = {} if mode == "full" else {"fan_out": 1}
    found = []
    for parts, recompute in ((1, False), (4, False), (2, True)):
        _, model, phase = build(
            mode=mode, recompute=recompute, exclude_self=True, shallow_width=3, n3=0.1, **fan_out
        )
        batch = phase.plan(1, 0, 1 % phase.steps())
        found.append(gradients(model, lambda p=phase, b=batch, n=parts: loss_of(p, b, n)))
    for value, grads in found[1:]:
        assert value == pytest.approx(found[0][0], rel=1e-10)
        assert_same(grads, found[0][1])


def test_scored_links_pass_no_message_in_either_direction():
    """The vectors of a step do not depend on whether its scored links exist."""
    _, model, phase = build(layers=2)
    graph = phase.graph
    batch = phase.plan(0, 0, 0)
    scored = phase._scored(batch)
    assert scored.any()
    wanted = np.arange(graph.nodes)
    with torch.no_grad():
        some = model.encode_some(model.some_inputs(wanted, scored, None, 0))
        whole = model.encode_all(model.whole_inputs(wanted, scored))
        torch.testing.assert_close(some, whole)
        torch.testing.assert_close(some, naive_vectors(model, graph, scored))
        other = model.whole_inputs(wanted, np.zeros_like(scored))
        assert not torch.allclose(some, model.encode_all(other))
    for hop in graph.hops(wanted, 2, scored, None, 0):
        assert len(hop.edges) == int((~scored[graph.link]).sum())


def test_messages_are_the_training_edges_both_ways():
    dataset, _, phase = build()
    graph, types = phase.graph, NodeTypes.of(dataset)
    relations = len(dataset.relations)
    messages = list(
        zip(
            graph.source.tolist(),
            graph.relation_of(np.arange(len(graph.source))).tolist(),
            graph.target.tolist(),
            strict=True,
        )
    )
    expected = []
    train = dataset.of(TRAIN)
    for h, r, t in zip(
        train.head.tolist(), train.relation.tolist(), train.tail.tolist(), strict=True
    ):
        expected.append((h, r, t))
        if not types.symmetric[r]:
            expected.append((t, r + relations, h))
    assert sorted(messages) == sorted(expected)
    assert types.symmetric.any()
    by_link = {}
    for (s, _, t), link in zip(messages, graph.link.tolist(), strict=True):
        by_link.setdefault(link, set()).add(frozenset((s, t)))
    assert all(len(pairs) == 1 for pairs in by_link.values())


def test_every_link_has_its_turn_once_an_epoch():
    _, _, phase = build(batch_size=3)
    seen = []
    for index in range(phase.steps()):
        ids = phase.plan(0, 0, index).ids.numpy()
        links = ids[ids < phase.links]
        assert np.all(np.bincount(phase.graph.links.kind[links]) <= 3)
        seen += links.tolist()
    assert sorted(seen) == list(range(phase.links))


def test_steps_per_epoch_takes_as_many_links_of_each_relation_as_fit():
    _, _, phase = build(batch_size=4, steps_per_epoch=2)
    assert phase.steps() == 2
    ids = phase.plan(0, 0, 1).ids.numpy()
    counts = np.bincount(phase.graph.links.kind[ids[ids < phase.links]])
    sizes = np.diff(phase.sampler.bounds)
    assert counts.tolist() == np.minimum(4, np.maximum(1, sizes // 5)).tolist()


def test_fan_out_holds_for_every_node_and_relation():
    _, _, phase = build()
    graph = phase.graph
    hop = graph.hop(np.arange(graph.nodes), None, 2, 5)
    for each in hop.edges.relations:
        assert int(each.offsets.diff().max()) <= 2
    again = graph.hop(np.arange(3), None, 2, 5)
    mine = hop.edges.target < 3
    assert len(again.edges) == int(mine.sum())


def test_drawn_ends_are_of_the_right_type_and_never_known():
    _, _, phase = build(negatives=50)
    graph, types = phase.graph, phase.graph.types
    batch = phase.plan(0, 0, 0)
    for relation in range(len(types.source)):
        for side, kind in ((0, types.target[relation]), (1, types.source[relation])):
            others = phase.sampler.negatives(batch, int(kind))
            assert np.array_equal(
                others, np.arange(types.offsets[kind], types.offsets[kind + 1])
            )  # small types are taken whole
            mine = np.flatnonzero(graph.links.kind == relation)
            given = (graph.links.head, graph.links.tail)[side][mine]
            answer = (graph.links.tail, graph.links.head)[side][mine]
            free = phase.sampler.unknown(relation, side, given, answer, others).numpy()
            for row, node in enumerate(given.tolist()):
                ends = (graph.links.head[mine], graph.links.tail[mine])
                known = set(ends[1 - side][ends[side] == node].tolist())
                if types.symmetric[relation]:
                    known |= set(ends[side][ends[1 - side] == node].tolist())
                assert set(others[~free[row]].tolist()) == known


def test_the_query_is_a_negative_once_unless_it_is_linked_to_itself():
    _, _, phase = build(negatives=6, loops=True, self_score=True)
    graph, types, batch = phase.graph, phase.graph.types, phase.plan(0, 0, 0)
    (meets,) = np.flatnonzero(types.source == types.target).tolist()
    assert [phase.sampler.adds_query(r) for r in range(len(types.source))].count(True) == 1
    of_meets = graph.links.kind == meets
    heads, tails = graph.links.head[of_meets], graph.links.tail[of_meets]
    linked = set(heads[heads == tails].tolist())
    assert linked
    genes = np.arange(*types.offsets[types.source[meets] :][:2])
    for side in (0, 1):
        sampled = phase.sampler.negatives(batch, int(types.source[meets]))
        unknown = phase.sampler.unknown(meets, side, genes, genes[::-1], sampled).numpy()
        assert unknown.shape == (len(genes), len(sampled) + 1)
        assert unknown[:, -1].tolist() == [node not in linked for node in genes.tolist()]
        assert not unknown[:, :-1][genes[:, None] == sampled].any()
        assert np.isin(genes, sampled).any()


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_known_drawn_ends_count_for_nothing_and_their_gradient_is_zero(loss):
    own = torch.tensor([0.5, -0.2], dtype=torch.float64)
    scores = torch.tensor([[3.0, 1.0], [2.0, 4.0]], dtype=torch.float64, requires_grad=True)
    free = torch.tensor([[False, False], [True, False]])
    found = negative_loss(loss, own, scores, free)
    found.backward()
    alone = {"logistic": F.softplus(scores[1, 0]), "softmax": F.softplus(scores[1, 0] - own[1])}
    torch.testing.assert_close(found.detach(), alone[loss].detach())
    assert scores.grad[0].tolist() == [0.0, 0.0]
    assert scores.grad[1, 0] > 0
    assert scores.grad[1, 1] == 0.0


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("decoder", ["distmult", "dot"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("self_score", "filtered"), [(False, True), (True, True), (True, False)])
def test_all_types_at_once_are_the_types_one_by_one(
    loss, decoder, dtype, self_score, filtered, monkeypatch
):
    """Loss and gradients of the form of a GPU, with relations of one and of several blocks."""
    monkeypatch.setattr(hgt, "dropout", lambda x, rate, training: x * (x > 0))
    monkeypatch.setattr("hasten.objectives.link_blocks.BLOCK", 4)
    some = {"contrastive_weight": 0.0, "self_score": self_score, "loops": True}
    smoothing = 0.1 if loss == "softmax" and filtered else 0.0
    some = {**some, "label_smoothing": smoothing, "filter_negatives": filtered}
    _, model, phase = build(loss=loss, decoder=decoder, **some)
    model.to(dtype)
    batch, links = phase.plan(0, 0, 0), np.arange(phase.links)[::2]
    assert np.bincount(phase.graph.links.kind[links]).max() > 8
    wanted = phase._wanted(batch, links)
    blocks = LinkBlocks.build(phase.sampler, batch, wanted, links)
    drawn = torch.randn(len(wanted), 6, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = []
    for together in (False, True):
        vectors = drawn.clone().requires_grad_()
        if together:
            total, _ = link_loss(loss, model.queries, blocks, vectors, smoothing)
        else:
            given = phase.sampler, batch, model.queries, vectors, wanted, links
            total, _ = losses_by_type(*given)
        weights = (model.bias, model.relations, model.selves)
        trained = [vectors, *(p for p in weights if p is not None)]
        grads = torch.autograd.grad(total, trained, allow_unused=True)
        found.append([total.detach(), *(each for each in grads if each is not None)])
    exact = 1e-12 if dtype == torch.float64 else 1e-5
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=exact, atol=exact)


@pytest.mark.parametrize("shallow_width", [0, 5])
def test_inference_in_blocks_is_the_whole_pass(shallow_width):
    _, model, phase = build(layers=2, shallow_width=shallow_width, output_dropout=0.5)
    model.eval()
    none = np.zeros(phase.links, bool)
    with torch.no_grad():
        expected = naive_vectors(model, phase.graph, none)
        for block in (4, 1000):
            torch.testing.assert_close(model.embed(block), expected)


@pytest.mark.parametrize("decoder", ["distmult", "dot"])
def test_a_scorer_adds_the_self_scores_to_the_nodes_of_the_queries_alone(decoder):
    _, model, phase = build(self_score=True, decoder=decoder)
    model.eval()
    node, relation = np.array([2, 7, 2, 20]), np.array([0, 1, 2, 1])
    with torch.no_grad(), model.encoded_once():
        scorer = model.scorer(TripleQueries(node, relation))
        z, _ = model.diagnosed_embeddings()
        w = torch.ones(4, 6) if decoder == "dot" else model.relations[relation]
        expected = (z[node] * w / 6**0.5) @ z.T + model.bias[relation][:, None]
        expected[torch.arange(4), node] += model.selves[relation] * 10
        count = phase.graph.nodes
        blocks = [scorer.block(start, min(start + 5, count)) for start in range(0, count, 5)]
        torch.testing.assert_close(torch.cat(blocks, 1), expected)
        ids = torch.tensor([20, 3, 2])
        torch.testing.assert_close(scorer.listed(ids), expected[:, ids])
        each = torch.tensor([[2, 2], [0, 7], [5, 2], [20, 1]])
        torch.testing.assert_close(scorer.pairs(each), expected.gather(1, each))


@pytest.mark.parametrize("loops", [False, True])
def test_exclude_self_ranks_nodes_last_unless_training_links_some_to_themselves(loops):
    _, model, phase = build(exclude_self=True, loops=loops)
    (meets,) = np.flatnonzero(phase.graph.types.source == phase.graph.types.target).tolist()
    genes = np.arange(*phase.graph.types.offsets[phase.graph.types.source[meets] :][:2])
    with torch.no_grad():
        scorer = model.eval().scorer(TripleQueries(genes, np.full_like(genes, meets)))
        own = scorer.block(0, phase.graph.nodes)[torch.arange(len(genes)), genes]
    assert bool((own < -1e8).all()) is not loops
    with pytest.raises(ValueError, match="turn one of them off"):
        HGTOptions(exclude_self=True, self_score=True)


def test_the_dropout_of_the_output_is_that_of_a_step_alone():
    _, model, phase = build(output_dropout=0.5, shallow_width=4, contrastive_weight=0)
    batch = phase.plan(0, 0, 0)
    (vectors,) = phase.encode(batch)
    zeros = (vectors == 0).double().mean()
    assert 0.3 < zeros < 0.7
    assert (phase.encode(batch)[0] == vectors).all()
    assert (model.eval().embed() != 0).all()


def test_query_dropout_is_that_of_training_alone():
    _, model, _ = build(query_dropout=0.5)
    ones, relation = torch.ones(50, 6, dtype=torch.float64), torch.zeros(50, dtype=torch.int64)
    assert 0.3 < (model.queries(ones, relation)[0] == 0).double().mean() < 0.7
    assert (model.eval().queries(ones, relation)[0] != 0).all()


def test_a_trained_self_score_ranks_the_query_below_its_links():
    dataset, model, phase = build(self_score=True)
    before = model.selves.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(60):
        optimizer.zero_grad()
        loss_of(phase, phase.plan(0, step, 0))
        optimizer.step()
    (meets,) = np.flatnonzero(phase.graph.types.source == phase.graph.types.target).tolist()
    assert float(model.selves[meets].detach()) * 10 < -2
    others = [r for r in range(len(dataset.relations)) if r != meets]
    assert torch.equal(model.selves[others], before[others])


def test_scores_are_the_same_from_both_ends():
    dataset, model, phase = build()
    model.eval()
    relations = len(dataset.relations)
    z = model.embed()
    with torch.no_grad(), model.encoded_once():
        for relation in range(relations):
            tails = model.scorer(TripleQueries(np.arange(3), np.full(3, relation))).block(
                0, phase.graph.nodes
            )
            heads = model.scorer(
                TripleQueries(np.arange(3), np.full(3, relation + relations))
            ).block(0, phase.graph.nodes)
            expected = (z[:3] * model.relations[relation] / 6**0.5) @ z.T + model.bias[relation]
            torch.testing.assert_close(tails, expected)
            torch.testing.assert_close(heads, expected)
        vectors, types = model.diagnosed_embeddings()
    torch.testing.assert_close(vectors, z)
    assert types is phase.graph.types


def test_constant_inputs_collapse_and_the_health_says_so():
    """Nodes with the same mix of neighbours get one vector, whatever the width."""
    _, model, phase = build(inputs="constant", width=64, layers=1)
    graph = phase.graph
    z = model.embed()
    mixes = {}
    for node in range(graph.nodes):
        mine = graph.target == node
        counts = np.bincount(
            graph.relation_of(np.flatnonzero(mine)), minlength=2 * len(graph.types.source)
        )
        mixes.setdefault((graph.types.code[node], tuple(counts)), []).append(node)
    groups = [nodes for nodes in mixes.values() if len(nodes) > 1]
    assert groups
    for nodes in groups:
        torch.testing.assert_close(z[nodes], z[nodes[:1]].expand(len(nodes), -1))


def test_a_graph_without_types_has_one():
    columns = {
        "head": [0, 1, 2, 3] * 3,
        "relation": [0] * 12,
        "tail": [1, 2, 3, 0, 2, 3, 0, 1, 3, 0, 1, 2],
    }
    dataset = load_graph(TripleOptions(ratios=(1, 0, 0)), 0, columns)
    graph = MessageGraph.of(dataset)
    assert graph.types.names == ("entity",)
    model = HGT(HGTOptions(**SMALL, contrastive_weight=0), Sizes.of(dataset))
    model.attach(dataset)
    assert model.embed().shape == (4, 6)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"contrastive_type": "drg"}, "no such type; did you mean 'drug'"),
        ({"contrastive_relations": ("binds",)}, "no relation 'binds'"),
        ({"similarity_threshold": 0.99}, "lower model.similarity_threshold"),
        ({"heads": 3}, "heads=3 does not divide the width 8"),
    ],
)
def test_what_cannot_be_is_refused(options, words):
    with pytest.raises(ConfigurationError, match=words):
        build(**options)


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.34, 0.8])
def test_similar_pairs_are_those_of_the_sets(threshold):
    generator = np.random.default_rng(1)
    lists = [np.unique(generator.integers(20, size=generator.integers(0, 9))) for _ in range(40)]
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in lists])])
    sets = CSR(offsets.astype(np.int64), np.concatenate(lists).astype(np.int64))
    found = jaccard_pairs(sets, 20, threshold)
    pairs = set(zip(found.rows.tolist(), found.items.tolist(), strict=True))
    assert pairs == jaccard_pairs_reference(sets, threshold)
