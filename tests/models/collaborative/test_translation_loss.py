"""The loss of translations and its gradients against a matrix for every edge."""

from __future__ import annotations

import pytest
import torch

from hasten.models.collaborative.translation_loss import translation_loss
from hasten.objectives.translation import TranslationBatch
from tests.ops.reference import translation_loss_reference


def made(sizes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    edges = sum(sizes)
    rows = torch.randn(9, 6, generator=generator, dtype=dtype)
    place = torch.randint(0, 7, (3 * edges,), generator=generator)  # the last rows do not occur
    relation = torch.randn(edges, 4, generator=generator, dtype=dtype)
    weights = torch.randn(len(sizes), 6, 4, generator=generator, dtype=dtype)
    return [rows, place, relation, weights, sizes]


def both(function, arguments, factors):
    rows, place, relation, weights, sizes = arguments
    leaves = [t.clone().requires_grad_() for t in (rows, relation, weights)]
    found = function(leaves[0], place, leaves[1], leaves[2], sizes)
    sum(f * value for f, value in zip(factors, found, strict=True)).backward()
    return [*found, *(leaf.grad for leaf in leaves)]


@pytest.mark.parametrize("sizes", [[5, 0, 3, 1], [0, 4], [1], [0, 0]])
@pytest.mark.parametrize("factors", [(1.0, 1.0), (0.3, 0.0), (0.0, 2.0)])
def test_equals_a_matrix_for_every_edge(sizes, factors):
    arguments = made(sizes)
    ours = both(translation_loss, arguments, factors)
    theirs = both(translation_loss_reference, arguments, factors)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sizes", [[5, 0, 3, 1], [33, 0, 96], [1]])
def test_tiles_are_the_same(sizes):
    """Edges in tiles of 32, with slots that are not used: one batched product."""
    rows, place, relation, weights, _ = made(sizes)
    kinds = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    batch = TranslationBatch(kinds, place, sizes, torch.arange(len(kinds))).tiled()
    assert len(batch.tiles.relation) == (sum(sizes) + 31 * len(sizes)) // 32
    ours = both(translation_loss, [rows, batch.nodes, relation, weights, batch.tiles], (0.3, 2.0))
    theirs = both(translation_loss, [rows, place, relation, weights, sizes], (0.3, 2.0))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-12, atol=1e-13)


def test_gradients_are_those_of_differences():
    rows, place, relation, weights, sizes = made([2, 0, 2])
    leaves = [t.requires_grad_() for t in (rows, relation, weights)]
    assert torch.autograd.gradcheck(
        lambda x, r, w: translation_loss(x, place, r, w, sizes), leaves, atol=1e-6
    )


def test_low_precision_follows():
    arguments = made([5, 0, 3, 1], torch.float32)
    theirs = both(translation_loss_reference, arguments, (1.0, 0.1))
    with torch.autocast("cpu", torch.bfloat16):
        ours = both(translation_loss, arguments, (1.0, 0.1))
    assert ours[0].dtype == torch.float32
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=0.1, atol=0.4)
    torch.testing.assert_close(ours[0], theirs[0])  # products are in float32
    assert not torch.equal(ours[2], theirs[2])  # but backward reads rows kept in bf16
