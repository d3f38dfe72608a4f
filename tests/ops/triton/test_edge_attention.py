"""Edge attention kernels in Triton's interpreter, against the equations in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from hasten.ops import edge_segments
from hasten.ops.attention import pair_attention
from hasten.ops.graph import edge_pairs
from hasten.ops.graph.typed_edges import TypedEdges
from tests.ops.reference import edge_attention_reference

pytest.importorskip("triton", reason="Triton has no package for this system")

TARGETS, SOURCES, RELATIONS, EDGES = 9, 11, 3, 70


def hub_edges() -> TypedEdges:
    """Destination 0 and a source have a third of the edges each; the last destinations none."""
    generator = np.random.default_rng(0)
    source, relation, target = (
        generator.integers(high, size=EDGES) for high in (SOURCES, RELATIONS, TARGETS - 2)
    )
    target[:25], source[20:45], relation[20:45] = 0, 3, 1
    return TypedEdges.build(source, relation, target, (TARGETS, SOURCES))


def operands(heads: int, size: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(heads)
    width = heads * size
    shapes = [(TARGETS, width), (SOURCES, 2 * width)] + [(RELATIONS, heads, size, size)] * 2
    return [
        (torch.randn(each, generator=generator) / each[-1] ** 0.25).to(dtype) for each in shapes
    ]


@pytest.fixture
def _kernels(monkeypatch):
    """As on a GPU; parts short enough for a hub to have many, and few empty slots."""
    monkeypatch.setattr(pair_attention, "uses_triton", lambda *_, **__: True)
    monkeypatch.setattr(edge_segments, "LONGEST", 5)
    monkeypatch.setattr(edge_pairs, "BLOCK", 4)
    monkeypatch.setattr(pair_attention, "BLOCK", 4)


def found_and_expected(
    heads: int, size: int, dtype: torch.dtype, keep: Tensor | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of the kernels, and of the equations in float64."""
    edges, leaves = hub_edges(), operands(heads, size, dtype)
    pairs = edges.pairs(segments=True)
    assert pairs.segments is not None
    assert all(each.long_parts.diff().max() > 4 for each in pairs.segments)
    ours = [leaf.clone().requires_grad_() for leaf in leaves]
    exact = [leaf.double().requires_grad_() for leaf in leaves]
    # queries as the layer has them: some columns of a wider table
    query = torch.cat([ours[0], ours[0]], 1)[:, : heads * size]
    out = pair_attention.pair_attention(pairs, query, *ours[1:], keep)
    assert out.grad_fn.segments is not None
    expected = edge_attention_reference(edges, exact[0], *exact[1].chunk(2, 1), *exact[2:], keep)
    upper = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = [out, *torch.autograd.grad(out, ours, upper)]
    return found, [expected, *torch.autograd.grad(expected, exact, upper.double())]


@pytest.mark.usefixtures("_kernels")
@pytest.mark.parametrize(
    ("heads", "size", "masked"), [(1, 16, False), (3, 5, True), (2, 300, True)]
)
def test_equals_the_equations(heads, size, masked):
    keep = torch.arange(EDGES) % 3 > 0
    keep[hub_edges().target == 4] = False  # a destination whose edges are all left out
    found, expected = found_and_expected(heads, size, torch.float32, keep if masked else None)
    for ours, exact in zip(found, expected, strict=True):
        scale = float(exact.detach().abs().max())
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5 * scale)
    assert not found[0][-2:].any()


@pytest.mark.usefixtures("_kernels")
def test_in_bf16_as_near_as_its_rounding():
    found, expected = found_and_expected(3, 20, torch.bfloat16)
    eps = torch.finfo(torch.bfloat16).eps
    for ours, exact in zip(found, expected, strict=True):
        assert ours.dtype == torch.bfloat16
        off, size = (ours - exact).detach().abs(), exact.detach().abs()
        assert float(off.norm() / size.norm()) < eps
        assert float(off.max() / size.max()) < 2 * eps


@pytest.mark.usefixtures("_kernels")
def test_a_logit_that_is_not_finite_shows_and_huge_ones_do_not_overflow():
    edges = hub_edges()
    query, key_value, attention, message = operands(2, 4, torch.float32)
    huge = [1e4 * query, 1e4 * key_value, attention, message]
    args = [edges.pairs(segments=True), *huge]
    assert pair_attention.pair_attention(*args).isfinite().all()
    args[1][0, 2] = torch.nan
    out = pair_attention.pair_attention(*args)
    assert out[0, :4].isnan().all()
    assert out[0, 4:].isfinite().all()
    assert out[1:].isfinite().all()


@pytest.mark.usefixtures("_kernels")
def test_no_edges_at_all():
    empty = np.empty(0, np.int64)
    edges = TypedEdges.build(empty, empty, empty, (TARGETS, SOURCES)).pairs(segments=True)
    leaves = [leaf.requires_grad_() for leaf in operands(2, 4, torch.float32)]
    out = pair_attention.pair_attention(edges, *leaves)
    out.sum().backward()
    assert not out.any()
    assert not any(leaf.grad.any() for leaf in leaves)
