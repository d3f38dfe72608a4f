"""Products of the rows that entries join, against one entry after the other."""

from __future__ import annotations

import pytest
import torch

from hasten.ops.graph import row_products as module
from hasten.ops.graph.row_products import row_products, rows_of


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("count", [0, 1, 40])
def test_products_are_those_of_the_rows(dtype, count, monkeypatch):
    monkeypatch.setattr(module, "_GATHERED", 20)  # several pieces
    generator = torch.Generator().manual_seed(count)
    row = torch.sort(torch.randint(0, 6, (count,), generator=generator)).values
    columns = torch.randint(0, 9, (count,), generator=generator).int()  # pairs occur several times
    offsets = torch.searchsorted(row, torch.arange(7)).int()
    a = torch.randn(6, 5, generator=generator).to(dtype)
    b = torch.randn(9, 5, generator=generator).to(dtype)
    assert torch.equal(rows_of(offsets, count), row)
    found = row_products(offsets, columns, a, b)
    expected = [float(a[i].double() @ b[j].double()) for i, j in zip(row, columns, strict=True)]
    close = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 0.05}[dtype]
    assert found.dtype == dtype
    assert found.double().tolist() == pytest.approx(expected, rel=close, abs=close)
