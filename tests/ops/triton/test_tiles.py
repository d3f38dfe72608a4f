"""Sizes of tiles."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

pytest.importorskip("triton", reason="Triton has no package for this system")
from hasten.ops.triton import choice
from hasten.ops.triton.choice import LARGEST_WIDTH, operations_in_triton, uses_triton
from hasten.ops.triton.tiles import Tiling


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float16])
def test_tiles_fit_into_shared_memory_and_registers(kind):
    for width in range(1, LARGEST_WIDTH + 1):
        tiling = Tiling.of(torch.empty(1, width), kind)
        assert tiling.padded >= width
        assert 3 * tiling.block * tiling.padded * kind.itemsize <= 96 << 10
        threads = 32 * tiling.warps
        # scores and sums in float32, of the 255 registers of a thread
        assert tiling.block * (tiling.block + tiling.padded) / threads <= 160
        assert tiling.block >= 32


@pytest.mark.parametrize("own", [1, 3, 7, 100])
@pytest.mark.parametrize("other", [1, 5, 1000])
def test_parts_cover_all_tiles_and_none_is_empty(own, other):
    tiling = Tiling(24, 32, 16, warps=4, programs=8)
    parts, each = tiling.split(own, other)
    assert (parts - 1) * each < other <= parts * each
    assert parts == 1 or own * parts <= 8


def test_on_a_cpu_the_kernels_are_not_used():
    assert not uses_triton("cross-entropy", torch.empty(5, 24), 24, torch.float32)
    assert operations_in_triton() == []


class OnDevice:
    """Eight rows on a GPU, as far as the choice looks."""

    device = torch.device("cuda", 0)

    def __len__(self) -> int:
        return 8


@pytest.fixture
def with_gpu(monkeypatch):
    monkeypatch.setattr(choice, "_used", set())
    monkeypatch.setattr(choice, "_is_supported", lambda _: True)
    choice._installed.cache_clear()
    yield monkeypatch
    choice._installed.cache_clear()


def test_on_a_gpu_they_are_used_where_they_fit(with_gpu):
    x: Any = OnDevice()
    assert not uses_triton("too wide", x, LARGEST_WIDTH + 1, torch.bfloat16)
    assert not uses_triton("double", x, 24, torch.float64)
    assert not uses_triton("float32 without TF32", x, 24, torch.float32)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert uses_triton("float32", x, 24, torch.float32)
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert uses_triton("bf16", x, LARGEST_WIDTH, torch.bfloat16)
    assert operations_in_triton() == ["bf16", "float32"]


def test_the_environment_switches_them_off(with_gpu):
    with_gpu.setenv("HASTEN_TRITON", "off")
    assert not uses_triton("bf16", cast(Any, OnDevice()), 24, torch.bfloat16)
