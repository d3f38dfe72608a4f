"""Chunked cross-entropy against all logits at once, value and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.ops.dense import product
from hasten.ops.losses import catalog_loss
from hasten.ops.losses.catalog_loss import (
    catalog_cross_entropy,
    catalog_cross_entropy_reference,
)


def _case(t, n, d, shards, bias, dtype=torch.float64):
    torch.manual_seed(t * 1000 + n)
    x = torch.randn(t, d, dtype=dtype, requires_grad=True)
    table = torch.randn(n, d, dtype=dtype)
    blocks = [b.clone().requires_grad_(True) for b in table.tensor_split(shards)]
    b = torch.randn(n, dtype=dtype, requires_grad=True) if bias else None
    return x, blocks, torch.randint(0, n, (t,)), b


def _compare(x, blocks, targets, bias, chunk_bytes, tolerance, of=None):
    leaves = [x, *blocks, *([bias] if bias is not None else [])]
    loss = catalog_cross_entropy(x, blocks, targets, bias, chunk_bytes, of)
    reference = catalog_cross_entropy_reference(x, blocks, targets, bias, of)
    torch.testing.assert_close(loss, reference, rtol=tolerance, atol=tolerance)
    ours = torch.autograd.grad(loss * 0.37, leaves)
    expected = torch.autograd.grad(reference * 0.37, leaves)
    for a, b in zip(ours, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("several", [False, True])
@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 200),
    st.integers(2, 60),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from([64, 4 * 60 * 64, 1 << 20]),
)
def test_equals_the_reference(several, t, n, shards, bias, chunk_bytes):
    """A target a row; several: rows with many, with one, and with none."""
    x, blocks, targets, b = _case(t, n, 5, min(shards, n), bias)
    of = None
    if several:
        of, targets = (torch.rand(t, n) < 0.2 * torch.rand(t, 1)).nonzero().unbind(1)
    _compare(x, blocks, targets, b, chunk_bytes, 1e-6, of)


@pytest.mark.parametrize("n", [1, 5, 8, 13, 59])
@pytest.mark.parametrize("chunk_bytes", [1 << 12, 1 << 20])
@pytest.mark.parametrize("several", [False, True])
def test_rows_of_logits_padded_as_on_a_gpu(monkeypatch, several, chunk_bytes, n):
    monkeypatch.setattr(catalog_loss, "_alignment", lambda *_: 8)
    x, blocks, targets, b = _case(70, n, 5, 1, True)
    of = None
    if several:
        of, targets = (torch.rand(70, n) < 0.3).nonzero().unbind(1)
    _compare(x, blocks, targets, b, chunk_bytes, 1e-6, of)


def test_padded_rows_in_bf16_change_nothing(monkeypatch):
    x, blocks, targets, b = _case(70, 59, 32, 1, True, torch.float32)
    found = []
    for columns in (1, 64):
        monkeypatch.setattr(catalog_loss, "_alignment", lambda *_, columns=columns: columns)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = catalog_cross_entropy(x, blocks, targets, b)
        found.append((loss, *torch.autograd.grad(loss, (x, *blocks, b))))
    for padded, plain in zip(*found, strict=True):
        torch.testing.assert_close(padded, plain, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("chunk_bytes", [1 << 12, 1 << 17, 1 << 24])
def test_float32_within_1e_5(chunk_bytes):
    x, blocks, targets, _ = _case(500, 301, 16, 1, False, torch.float32)
    _compare(x, blocks, targets, None, chunk_bytes, 1e-5)


def test_extreme_logits_stay_finite():
    x = torch.full((3, 1), 1e4, requires_grad=True)
    table = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    for chunk in (4, 1 << 20):
        loss = catalog_cross_entropy(x, [table], torch.tensor([0, 1, 1]), None, chunk)
        assert loss.item() == pytest.approx(4e4)
        assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss, (x, table)))


def test_bf16_autocast_stays_near_and_keeps_float32_gradients():
    x, blocks, targets, _ = _case(300, 200, 32, 1, False, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = catalog_cross_entropy(x, blocks, targets)
    reference = catalog_cross_entropy_reference(x, blocks, targets)
    assert loss.item() == pytest.approx(reference.item(), rel=5e-3)
    (grad,) = torch.autograd.grad(loss, blocks)
    (expected,) = torch.autograd.grad(reference, blocks)
    assert grad.dtype == torch.float32
    assert float((grad - expected).norm() / expected.norm()) < 2e-2


def test_memory_does_not_hold_all_logits():
    """The graph keeps gradients only: T×D, N×D and N numbers."""
    x, blocks, targets, _ = _case(512, 1000, 8, 1, False, torch.float32)
    loss = catalog_cross_entropy(x, blocks, targets)
    assert loss.grad_fn is not None
    assert not loss.grad_fn.saved_tensors  # type: ignore[attr-defined]
    kept = loss.grad_fn.grads  # type: ignore[attr-defined]
    assert sum(t.numel() for t in kept) == 512 * 8 + 1000 * 8


def test_the_gradient_of_the_table_is_scaled_where_it_lies():
    """A copy would take as much memory as the table."""
    x, (table,), targets, _ = _case(64, 1000, 8, 1, False, torch.float32)
    loss = catalog_cross_entropy(x, [table], targets)
    assert loss.grad_fn is not None
    address = loss.grad_fn.grads[1].data_ptr()  # type: ignore[attr-defined]
    (loss / 64).backward()
    assert table.grad is not None
    assert table.grad.data_ptr() == address
    reference = catalog_cross_entropy_reference(x, [table], targets) / 64
    (expected,) = torch.autograd.grad(reference, [table])
    torch.testing.assert_close(table.grad, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1 << 23, 1 << 20], ids=["rows", "columns"])
def test_fp16_keeps_the_gradients_of_far_items(chunk_bytes, several):
    """The softmax of an item is about 4e-6, which fp16 holds to 0.7 %."""
    torch.manual_seed(0)
    x = torch.randint(1, 3, (6, 2)) / 4
    table = torch.randint(-4, 5, (1 << 18, 2)) / 4  # with these the scores are exact
    of = torch.tensor([0, 0, 1, 2, 4, 4]) if several else None
    targets = torch.randint(0, 9, (6,))

    def gradients(x, scale):
        leaves = [x.requires_grad_(), table.clone().requires_grad_()]
        loss = catalog_cross_entropy(leaves[0], leaves[1:], targets, None, chunk_bytes, of)
        return [grad / scale for grad in torch.autograd.grad(loss * scale, leaves)]

    expected = gradients(x.clone(), 1.0)
    with torch.autocast("cpu", dtype=torch.float16):
        found = gradients(x.half(), 2.0**14)
    assert [grad.dtype for grad in found] == [torch.float16, torch.float32]
    torch.testing.assert_close(found[0].float(), expected[0], rtol=1e-3, atol=1e-3)
    for rows in (slice(9), slice(9, None)):
        off = (found[1][rows] - expected[1][rows]).norm() / expected[1][rows].norm()
        assert float(off) < 3e-4


def test_other_numbers_of_rows_reach_onednn_as_few_shapes(monkeypatch):
    """oneDNN keeps memory for every shape, so that a run would grow with every batch."""
    if not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    shapes, real = set(), product._onednn

    def noted(a, rows, bias=None):
        shapes.add((a.shape, rows.shape))
        return real(a, rows, bias)

    monkeypatch.setattr(product, "_onednn", noted)
    monkeypatch.setattr(product, "MIN_SPLIT_PRODUCT", 1)
    monkeypatch.setattr(product, "_FASTER", True)
    for t in range(100, 200):
        x, blocks, targets, _ = _case(t, 31, 8, 1, False, torch.float32)
        _compare(x, blocks, targets, None, 4 * 31 * 100, 1e-5)
    # 1 to 100 rows in the last chunk: 8, 16, ..., 96 and 100, each in two products
    assert len(shapes) == 2 * 13
