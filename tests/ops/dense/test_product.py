"""Products through oneDNN: the same as torch's, whatever the layout, and where they are taken."""

import pytest
import torch

from hasten.ops.dense import product as module
from hasten.ops.dense.linear import LinearMap, linear
from hasten.ops.dense.product import (
    block_rows,
    outer_by_blocks,
    product,
    product_by_blocks,
    product_into,
    product_plus,
)

LARGE = (4096, 160, 128)


@pytest.fixture(params=[False, True], ids=["mkl", "onednn"])
def which(request, monkeypatch):
    if request.param and not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(module, "onednn_is_faster", lambda: request.param)
    return request.param


def spy(monkeypatch):
    """The calls that reach oneDNN: shapes and strides of what it is given."""
    calls, real = [], module._onednn

    def noted(a, rows, bias=None):
        calls.append((a.shape, a.stride(), rows.stride()))
        return real(a, rows, bias)

    monkeypatch.setattr(module, "_onednn", noted)
    return calls


def laid_out(rows, columns, how):
    generator = torch.Generator().manual_seed(rows + columns)
    if how == "rows":
        return torch.randn(rows, columns, generator=generator)
    if how == "columns":
        return torch.randn(columns, rows, generator=generator).T
    return torch.randn(rows, 2 * columns, generator=generator)[:, 3 : 3 + columns]


@pytest.mark.usefixtures("which")
@pytest.mark.parametrize("left", ["rows", "columns", "part"])
@pytest.mark.parametrize("right", ["rows", "columns", "part"])
@pytest.mark.parametrize("shape", [LARGE, (96, 700, 1100), (3, 5, 7), (0, 4, 4)])
def test_a_product_is_that_of_float64(left, right, shape):
    rows, inner, columns = shape
    a, b = laid_out(rows, inner, left), laid_out(inner, columns, right)
    bias = torch.randn(columns)
    expected = a.double() @ b.double()
    torch.testing.assert_close(product(a, b), expected.float(), rtol=1e-5, atol=1e-4)
    added = (expected + bias).float()
    torch.testing.assert_close(product_plus(a, b, bias), added, rtol=1e-5, atol=1e-4)
    for dtype in (torch.float32, torch.float64):
        wider = torch.full((rows, columns + 2), torch.nan, dtype=dtype)
        product_into(wider[:, 1:-1], a, b)
        torch.testing.assert_close(wider[:, 1:-1], expected.to(dtype), rtol=1e-5, atol=1e-4)
        assert wider[:, [0, -1]].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_torch_s_own(which, dtype, monkeypatch):
    calls = spy(monkeypatch)
    rows, inner, columns = LARGE
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    assert torch.equal(product(a, b), a @ b)
    assert product(a.float(), b.float()).dtype == torch.float32
    assert len(calls) == int(which)


def test_small_products_and_transposed_rows_with_few_columns_stay(monkeypatch):
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(module, "_COLUMNS", 1024)
    calls = spy(monkeypatch)
    rows, inner, columns = LARGE
    product(torch.randn(64, 64), torch.randn(64, 64))
    product(laid_out(rows, inner, "columns"), torch.randn(inner, columns))
    product_plus(laid_out(rows, inner, "columns"), torch.randn(inner, columns), torch.zeros(1))
    assert not calls
    product(laid_out(96, 700, "columns"), torch.randn(700, 1100))
    assert [stride for _, stride, _ in calls] == [(700, 1)]


def test_a_part_of_a_wider_matrix_is_copied_first(monkeypatch):
    """oneDNN takes seconds over rows with gaps."""
    monkeypatch.setattr(module, "onednn_is_faster", lambda: True)
    calls = spy(monkeypatch)
    rows, inner, columns = LARGE
    product(torch.randn(rows, inner), laid_out(inner, columns, "part"))
    assert calls[0][2] == (1, columns)


@pytest.mark.parametrize("rows", [0, 5, 512, 1300])
def test_blocks_of_one_size_are_the_product(which, rows, monkeypatch):
    monkeypatch.setattr(module, "MIN_SPLIT_PRODUCT", 512 * 96 * 64)
    monkeypatch.setattr(module, "_COLUMNS", 64)
    calls = spy(monkeypatch)
    assert block_rows(96, 64) == 512
    a, b, x = torch.randn(rows, 96), torch.randn(96, 64), torch.randn(rows, 64)
    expected = (a.double() @ b.double()).float()
    torch.testing.assert_close(product_by_blocks(a, b), expected, rtol=1e-5, atol=1e-4)
    expected = (a.double().T @ x.double()).float()
    torch.testing.assert_close(outer_by_blocks(a, x), expected, rtol=1e-5, atol=1e-4)
    out = torch.full_like(expected, torch.nan)
    assert outer_by_blocks(a, x, out=out) is out
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
    whole = rows // 512 * which
    assert [shape for shape, *_ in calls] == [(512, 96)] * whole + [(96, 512)] * 2 * whole


def test_a_block_has_enough_multiplications():
    for inner, columns in ((1, 1), (50, 264), (64, 64), (512, 768)):
        assert block_rows(inner, columns) * inner * columns >= module.MIN_SPLIT_PRODUCT


@pytest.mark.usefixtures("which")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("varying", [True, False])
@pytest.mark.parametrize("rows", [6, 8200])
def test_a_linear_map_and_its_gradients(bias, varying, rows):
    torch.manual_seed(rows)
    layer = LinearMap(96, 128, bias=bias)
    x = torch.randn(rows, 96, requires_grad=True)
    slopes = torch.randn(rows, 128)
    given = [x, *layer.parameters()]
    found = linear(x, layer.weight, layer.bias, varying=True) if varying else layer(x)
    grads = torch.autograd.grad((found * slopes).sum(), given)
    exact = [each.detach().double().requires_grad_() for each in given]
    expected = torch.nn.functional.linear(*exact)
    wanted = torch.autograd.grad((expected * slopes).sum(), exact)
    torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want.float(), rtol=1e-5, atol=1e-3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch has no oneDNN"
)
def test_a_linear_map_is_compiled_with_its_products(monkeypatch):
    """By the real compiler, at a size that takes the fast path forward and backward."""
    monkeypatch.setattr(module, "_FASTER", True)
    torch._dynamo.reset()
    layer = LinearMap(96, 128)
    x = torch.randn(8192, 96, requires_grad=True)
    given = [x, *layer.parameters()]
    expected = layer(x).relu()
    found = torch.compile(layer, fullgraph=True, dynamic=True)(x).relu()
    torch.testing.assert_close(found, expected)
    for ours, theirs in zip(
        *(torch.autograd.grad(y.sum(), given) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_constant_rows_get_no_gradient():
    weight = torch.randn(4, 3, requires_grad=True)
    linear(torch.randn(5, 3), weight).sum().backward()
    assert weight.grad is not None


def test_autocast_chooses_the_precision():
    x, weight = torch.randn(5, 3), torch.randn(4, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_the_choice_is_by_the_cpu(monkeypatch, tmp_path):
    detect = module._detect
    there = torch.backends.mkl.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    for vendor, family, flags, expected in (
        ("AuthenticAMD", 26, "avx2 avx512f", (there, there)),
        ("AuthenticAMD", 25, "avx2 avx512f", (there, False)),
        ("AuthenticAMD", 25, "avx2", (False, False)),
        ("GenuineIntel", 26, "avx2 avx512f", (False, False)),
    ):
        cpu_info = tmp_path / "cpuinfo"
        cpu_info.write_text(
            f"vendor_id\t: {vendor}\ncpu family\t: {family}\nflags\t\t: sse {flags}\n"
        )
        monkeypatch.setattr(module, "Path", lambda _, cpu_info=cpu_info: cpu_info)
        assert detect() == expected
    monkeypatch.setattr(module, "Path", lambda _: tmp_path / "none")
    assert detect() == (False, False)
