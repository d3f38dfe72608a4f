"""The softmax of queries with several answers, against its equation, forward and backward."""

import pytest
import torch

from hasten.ops.losses.query_softmax import query_softmax


def written_out(logits, scores, query):
    losses = []
    for row in range(len(logits)):
        answers = scores[query == row]
        total = torch.logsumexp(torch.cat([answers, logits[row]]), 0)
        losses.append(sum(total - score for score in answers))
    return torch.stack(losses)


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_it_is_what_the_equation_says(scale):
    draw = torch.Generator().manual_seed(0)
    logits = scale * torch.randn(4, 7, generator=draw, dtype=torch.float64)
    scores = scale * torch.randn(6, generator=draw, dtype=torch.float64)
    logits[1, 2] = logits[1, 5] = -torch.inf
    logits[3] = -torch.inf  # all sampled candidates are answers
    query = torch.tensor([2, 0, 1, 2, 3, 3])
    inputs = [each.requires_grad_() for each in (logits, scores)]
    found, expected = (of(*inputs, query) for of in (query_softmax, written_out))
    torch.testing.assert_close(found, expected)
    weights = torch.rand(4, generator=draw, dtype=torch.float64)
    ours, theirs = (
        torch.autograd.grad((each * weights).sum(), inputs) for each in (found, expected)
    )
    torch.testing.assert_close(ours[1], theirs[1])
    torch.testing.assert_close(ours[0][:3], theirs[0][:3])
    assert torch.equal(ours[0][3], torch.zeros(7, dtype=torch.float64))


def test_answers_of_weight_0_add_nothing():
    """Not even if their scores are far above all others."""
    draw = torch.Generator().manual_seed(1)
    logits = torch.randn(3, 5, generator=draw, dtype=torch.float64, requires_grad=True)
    scores = torch.randn(4, generator=draw, dtype=torch.float64)
    padded = torch.cat([scores, torch.tensor([9e3, -9e3], dtype=torch.float64)]).requires_grad_()
    scores, query = scores.requires_grad_(), torch.tensor([0, 1, 2, 2])
    expected = query_softmax(logits, scores, query)
    weight = torch.tensor([1.0, 1, 1, 1, 0, 0])
    found = query_softmax(logits, padded, torch.tensor([0, 1, 2, 2, 0, 0]), weight)
    torch.testing.assert_close(found, expected)
    wanted = torch.autograd.grad(expected.sum(), [logits, scores])
    ours = torch.autograd.grad(found.sum(), [logits, padded])
    torch.testing.assert_close(ours[0], wanted[0])
    torch.testing.assert_close(ours[1], torch.cat([wanted[1], torch.zeros(2).double()]))
