"""Softmax over rows of a graph against torch's, row by row."""

from __future__ import annotations

import torch

from hasten.models.collaborative.segment_softmax import segment_softmax
from tests.ops.reference import segment_softmax_reference

OFFSETS = torch.tensor([0, 3, 3, 4, 9], dtype=torch.int32)


def test_equals_the_softmax_of_each_row():
    torch.manual_seed(0)
    logits = torch.randn(9) * 30
    ours = segment_softmax(logits, OFFSETS)
    torch.testing.assert_close(ours, segment_softmax_reference(logits, OFFSETS))
    assert ours[3] == 1.0


def test_large_logits_do_not_overflow_and_minus_infinity_is_nothing():
    logits = torch.tensor([1000.0, 999.0, -torch.inf, -torch.inf, 5.0, 5.0, 5.0, 5.0, 5.0])
    found = segment_softmax(logits, OFFSETS)
    expected = torch.softmax(torch.tensor([1.0, 0.0]), 0)
    torch.testing.assert_close(found[:2], expected)
    assert found[2] == 0
    assert found[3] == 0  # a row of nothing else
    torch.testing.assert_close(found[4:], torch.full((5,), 0.2))


def test_half_precision_is_summed_in_float32():
    logits = torch.zeros(5000, dtype=torch.bfloat16)
    found = segment_softmax(logits, torch.tensor([0, 5000]))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.sum(), torch.tensor(1.0))
