"""Triton's interpreter, with the two operations that it lacks for bf16."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch


@pytest.fixture(scope="package", autouse=True)
def _interpreter() -> Iterator[None]:
    """The interpreter holds bf16 as its bits: it multiplies them as integers and rounds wrongly."""
    pytest.importorskip("triton", reason="Triton has no package for this system")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    tl = pytest.importorskip("triton.language")
    builder, convert = interpreter.InterpreterBuilder, interpreter._convert_float
    dot = builder.create_dot

    def wide(bits: Any) -> Any:
        return torch.from_numpy(bits.view(np.int16).copy()).view(torch.bfloat16).float().numpy()

    def converted(values: Any, of: Any, to: Any, rounding: Any) -> Any:
        if to == tl.bfloat16 and of == tl.float32:
            rounded = torch.from_numpy(np.ascontiguousarray(values)).bfloat16()
            return rounded.view(torch.int16).numpy().view(np.uint16)
        return wide(values) if of == tl.bfloat16 else convert(values, of, to, rounding)

    def product(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        operands = [
            interpreter.TensorHandle(wide(each.data), tl.float32)
            if each.dtype.scalar == tl.bfloat16
            else each
            for each in (a, b)
        ]
        return dot(self, *operands, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_convert_float", converted)
        patch.setattr(builder, "create_dot", product)
        yield
