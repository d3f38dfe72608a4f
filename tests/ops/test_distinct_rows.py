"""Distinct rows by a table of marks, beside torch.unique."""

from __future__ import annotations

import pytest
import torch

from hasten.ops.distinct_rows import distinct_rows


@pytest.mark.parametrize(("count", "size"), [(1, 1), (7, 5), (1000, 300), (100_000, 40), (50, 0)])
def test_the_same_as_unique(count, size):
    torch.manual_seed(count)
    rows = torch.randint(count, (size,))
    for ours, theirs in zip(
        distinct_rows(rows, count), torch.unique(rows, return_inverse=True), strict=True
    ):
        assert ours.dtype == torch.int64
        assert torch.equal(ours, theirs)
