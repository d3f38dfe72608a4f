"""edge_attention against a dense reference and PyG's HGTConv, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten.ops.attention import pair_attention
from hasten.ops.attention.edge_attention import edge_attention
from hasten.ops.graph.edge_pairs import BLOCK
from hasten.ops.graph.typed_edges import TypedEdges
from tests.ops.reference import edge_attention_reference


def random_edges(seed, targets=9, sources=11, relations=4, count=60):
    generator = np.random.default_rng(seed)
    # one relation with few sources, one with few targets, so that both sides are mapped
    relation = generator.integers(relations, size=count)
    source = np.where(
        relation == 0, generator.integers(2, size=count), generator.integers(sources, size=count)
    )
    target = np.where(
        relation == 1,
        generator.integers(2, size=count),
        generator.integers(targets - 1, size=count),
    )
    return TypedEdges.build(source, relation, target, (targets, sources))


def operands(seed, edges, relations=4, heads=2, width=3, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    targets, sources = edges.shape
    shapes = [(targets, heads * width), (sources, heads * width), (sources, heads * width)]
    shapes += [(relations, heads, width, width)] * 2
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


def attend(edges, query, key, value, attention, message, keep=None):
    return edge_attention(edges, query, torch.cat([key, value], 1), attention, message, keep)


def all_at_once(edges):
    """The form of a GPU."""
    return edges.pairs()


FORMS = pytest.mark.parametrize("form", [lambda edges: edges, all_at_once], ids=["cpu", "gpu"])


@FORMS
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads_width", [(2, 3), (3, 1), (1, 2)], ids=str)
def test_forward_and_backward_are_those_of_the_reference(
    form, seed, masked, heads_width, monkeypatch
):
    monkeypatch.setattr(pair_attention, "_GATHERED", 100)  # several chunks, the last one smaller
    edges = random_edges(seed)
    assert {each.by_source for each in edges.relations} == {True, False}
    keep = torch.rand(len(edges), generator=torch.Generator().manual_seed(seed)) < 0.6
    keep = keep if masked else None
    heads, width = heads_width
    tensors = operands(seed, edges, heads=heads, width=width)
    ours = attend(form(edges), *tensors, keep=keep)
    theirs = edge_attention_reference(edges, *tensors, keep=keep)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    weights = torch.randn_like(ours)
    mine = torch.autograd.grad((ours * weights).sum(), tensors)
    expected = torch.autograd.grad((theirs * weights).sum(), tensors)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


@FORMS
def test_softmax_is_stable_for_huge_logits_and_empty_nodes_are_zero(form):
    edges = random_edges(1)
    tensors = operands(1, edges, dtype=torch.float32)
    with torch.no_grad():
        tensors[0] *= 1e4
        tensors[1] *= 1e4
    out = attend(form(edges), *tensors)
    assert torch.isfinite(out).all()
    out.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in tensors)
    assert not out[-1].any()  # the last node has no edge


@FORMS
def test_no_edges_at_all(form):
    empty = np.empty(0, np.int64)
    edges = TypedEdges.build(empty, empty, empty, (3, 4))
    tensors = operands(0, edges)
    out = attend(form(edges), *tensors)
    assert not out.any()
    out.sum().backward()
    assert not tensors[0].grad.any()


def test_order_says_where_the_edges_came_from():
    generator = np.random.default_rng(0)
    source, relation, target = (generator.integers(5, size=30) for _ in range(3))
    edges = TypedEdges.build(source, relation, target, (5, 5))
    np.testing.assert_array_equal(edges.target.numpy(), target[edges.order.numpy()])
    for each in edges.relations:
        mine = edges.order.numpy()[each.first : each.last]
        assert (relation[mine] == each.number).all()
        np.testing.assert_array_equal(each.sources[each.column].numpy(), source[mine])


def test_more_pairs_than_a_block_holds():
    """In float32, to 1e-5 of the CPU's form: relations of one, of a full and of several blocks."""
    generator = np.random.default_rng(3)
    relation = np.repeat([0, 2, 3], [5, BLOCK, 3 * BLOCK])
    source = np.concatenate([[1, 1, 2, 3, 3], np.arange(BLOCK), np.arange(3 * BLOCK) % 160])
    target = generator.integers(9, size=len(source))
    edges = TypedEdges.build(source, relation, target, (9, 200))
    assert len(all_at_once(edges).relation) == 5
    found = []
    for form in (edges, all_at_once(edges)):
        tensors = operands(3, edges, dtype=torch.float32)
        out = attend(form, *tensors)
        out.square().sum().backward()
        found.append([out, *(each.grad for each in tensors)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@FORMS
def test_bfloat16_is_close(form):
    edges = form(random_edges(2))
    tensors = operands(2, edges, dtype=torch.float32)
    exact = attend(edges, *tensors)
    with torch.autocast("cpu", torch.bfloat16):
        low = attend(edges, *tensors)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), exact, rtol=0.1, atol=0.15)
    weights = torch.randn_like(exact)
    grads = torch.autograd.grad((low * weights).sum(), tensors)
    expected = torch.autograd.grad((exact * weights).sum(), tensors)
    for one, other in zip(grads, expected, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() < 0.05 * other.norm()
