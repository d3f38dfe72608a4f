"""A layer of HGT against PyTorch Geometric's HGTConv on the same weights, and its linear maps."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from hasten.errors import ConfigurationError
from hasten.models.typed_graph.hgt_layer import HGTLayer
from hasten.ops.graph.typed_edges import TypedEdges

SIZES = (5, 7, 4)
#: relation -> types of its sources and destinations
ENDS = ((0, 1), (1, 0), (2, 1), (1, 1), (0, 2))


def typed_edges(seed):
    generator = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    columns = []
    for relation, (s, t) in enumerate(ENDS):
        count = 12
        source = generator.integers(offsets[s], offsets[s + 1], count)
        target = generator.integers(offsets[t], offsets[t + 1], count)
        columns.append(np.stack([source, np.full(count, relation), target]))
    source, relation, target = np.concatenate(columns, axis=1)
    total = int(offsets[-1])
    return TypedEdges.build(source, relation, target, (total, total)), (source, relation, target)


def conv_of(layer, width, out):
    """HGTConv with the weights of the layer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nn = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    names = [f"t{i}" for i in range(len(SIZES))]
    kinds = [(names[s], f"r{i}", names[t]) for i, (s, t) in enumerate(ENDS)]
    conv = nn.HGTConv(width, out, (names, kinds), heads=layer.heads).double()
    size = out // layer.heads
    with torch.no_grad():
        for i, name in enumerate(names):
            linear = conv.kqv_lin.lins[name]
            parts = (layer.key, layer.query, layer.value)
            linear.weight.copy_(torch.cat([p.weight[i].T for p in parts]))
            linear.bias.copy_(torch.cat([p.bias[i] for p in parts]))
            conv.out_lin.lins[name].weight.copy_(layer.result.weight[i].T)
            conv.out_lin.lins[name].bias.copy_(layer.result.bias[i])
            if layer.skip is not None:
                conv.skip[name].copy_(layer.skip[i : i + 1])
        for r, kind in enumerate(kinds):
            place = conv.edge_types_map[kind]
            for head in range(layer.heads):
                # maps stand relation by relation within a head
                at = head * len(kinds) + place
                conv.k_rel.weight[at].copy_(layer.attention[r, head].view(size, size))
                conv.v_rel.weight[at].copy_(layer.message[r, head].view(size, size))
            conv.p_rel["__".join(kind)].copy_(layer.prior[r][None])
    return conv, names, kinds


@pytest.mark.parametrize(("width", "out"), [(6, 8), (8, 8)])
def test_a_layer_is_pygs_hgtconv_forward_and_backward(width, out):
    torch.manual_seed(0)
    layer = HGTLayer(len(SIZES), len(ENDS), width, out, 2).double()
    torch.nn.init.uniform_(layer.prior, 0.5, 1.5)
    if layer.skip is not None:
        torch.nn.init.uniform_(layer.skip, -1, 1)
    conv, names, kinds = conv_of(layer, width, out)
    edges, (source, relation, target) = typed_edges(3)
    x = torch.randn(sum(SIZES), width, dtype=torch.float64, requires_grad=True)
    ours = layer(edges, x, SIZES)
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    index = {}
    for r, kind in enumerate(kinds):
        s, t = ENDS[r]
        mine = relation == r
        index[kind] = torch.from_numpy(
            np.stack([source[mine] - offsets[s], target[mine] - offsets[t]])
        )
    parts = dict(zip(names, torch.split(x, SIZES), strict=True))
    found = conv(parts, index)
    theirs = torch.cat([found[name] for name in names])
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)
    weights = torch.randn_like(ours)
    (mine,) = torch.autograd.grad((ours * weights).sum(), x, retain_graph=True)
    (other,) = torch.autograd.grad((theirs * weights).sum(), x, retain_graph=True)
    torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-8)
    (ours * weights).sum().backward()
    (theirs * weights).sum().backward()
    torch.testing.assert_close(
        layer.query.weight.grad[1].T, conv.kqv_lin.lins["t1"].weight.grad[out : 2 * out]
    )
    for r, kind in enumerate(kinds):
        place = conv.edge_types_map[kind]
        for head in range(2):
            at = head * len(kinds) + place
            torch.testing.assert_close(layer.attention.grad[r, head], conv.k_rel.weight.grad[at])
            torch.testing.assert_close(layer.message.grad[r, head], conv.v_rel.weight.grad[at])
        torch.testing.assert_close(layer.prior.grad[r][None], conv.p_rel["__".join(kind)].grad)


def test_some_destinations_get_what_all_would_give_them():
    torch.manual_seed(1)
    layer = HGTLayer(len(SIZES), len(ENDS), 6, 8, 2).double()
    edges, (source, relation, target) = typed_edges(4)
    x = torch.randn(sum(SIZES), 6, dtype=torch.float64)
    whole = layer(edges, x, SIZES)
    wanted = np.array([1, 3, 6, 10, 13])
    mine = np.isin(target, wanted)
    place = np.searchsorted(wanted, target[mine])
    some = TypedEdges.build(source[mine], relation[mine], place, (5, sum(SIZES)))
    own = layer(some, x, SIZES, x[wanted], (2, 2, 1))
    torch.testing.assert_close(own, whole[wanted])


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ConfigurationError, match=r"heads=7 does not divide .* 256.*4, 8"):
        HGTLayer(1, 1, 256, 256, 7)
    with pytest.raises(ConfigurationError, match=r"heads=3 does not divide .* 1\d{18};"):
        HGTLayer(1, 1, 8, 10**18, 3)  # at once
