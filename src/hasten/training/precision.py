"""Mixed precision: autocast, the fp16 loss scaler, and the precision fallback.

Autocast lowers the precision of matrix products, and hasten's operations keep their inputs for the
backward pass in that precision. Losses, softmaxes, norms and sums are in float32. So are, on a CPU,
products whose shapes differ in every batch: oneDNN compiles code for every shape in bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.distributed.device import cpu_computes_bf16, cpu_computes_fp16
from hasten.errors import ConfigurationError

Method = TypeVar("Method", bound=Callable[..., Any])
PrecisionName = Literal["fp32", "bf16", "fp16"]
_LOWER: dict[str, PrecisionName] = {"fp16": "bf16", "bf16": "fp32"}
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """The precision in effect: an autocast context, and for fp16 a gradient scaler."""

    def __init__(self, name: PrecisionName, device: torch.device) -> None:
        self.name: PrecisionName = name
        self.device = device
        self.scaler = (
            torch.amp.GradScaler(device.type) if name == "fp16" and device.type != "mps" else None
        )

    def autocast(self) -> AbstractContextManager[Any]:
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=_DTYPES[self.name])

    def backward(self, sums: Sequence[Tensor], factors: Sequence[float | Tensor]) -> None:
        """Backward pass of the sum of ``factor * sum``, times the loss scale.

        On a GPU the factors are the gradients that it begins with, which saves launches. On a CPU
        that is not worth it: torch imports sympy when gradients are given (0.5 s and 35 MiB).
        """
        pairs = [(x, y) for x, y in zip(sums, factors, strict=True) if x.requires_grad]
        if not pairs:
            return
        if self.device.type == "cpu" and self.scaler is None:
            products = [x * y for x, y in pairs]
            torch.autograd.backward(sum(products[1:], products[0]))
            return
        roots = [x for x, _ in pairs]
        torch.autograd.backward(roots, [self.scaled(x, y) for x, y in pairs])

    def scaled(self, like: Tensor, factor: float | Tensor) -> Tensor:
        """The factor times the loss scale; multiplied in float32, before it is cast."""
        kind = like.dtype if self.scaler is None else torch.float32
        if isinstance(factor, Tensor):
            gradient = factor.to(kind)
        else:
            gradient = torch.full_like(like, factor, dtype=kind)
        if self.scaler is None:
            return gradient
        scaled: Tensor = self.scaler.scale(gradient)
        return scaled.to(like.dtype)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the loss scale, before they are read."""
        if self.scaler is not None:
            self.scaler.unscale_(optimizer)

    def lower(self) -> Precision | None:
        """The next safer precision, or None below fp32."""
        name = _LOWER.get(self.name)
        return None if name is None else Precision(name, self.device)

    def state(self) -> dict[str, Any]:
        scale = None if self.scaler is None else self.scaler.state_dict()
        return {"name": self.name, "scaler": scale}

    @classmethod
    def from_state(cls, state: dict[str, Any], device: torch.device) -> Precision:
        precision = cls(state["name"], device)
        if precision.scaler is not None and state["scaler"] is not None:
            precision.scaler.load_state_dict(state["scaler"])
        return precision


def resolve_precision(
    name: Literal["fp32", "bf16", "fp16", "auto"], device: torch.device
) -> PrecisionName:
    """``auto`` is bf16 where the device multiplies it fast, else fp32; other names stay."""
    if name == "auto":
        fast = (device.type == "cuda" and torch.cuda.is_bf16_supported()) or (
            device.type == "cpu" and cpu_computes_bf16()
        )
        return "bf16" if fast else "fp32"
    return name


def has_tf32(device: torch.device) -> bool:
    """Whether float32 matrix products can run on this device's tensor cores."""
    if device.type != "cuda" or torch.version.cuda is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def uses_tf32(matmul: Literal["auto", "tf32", "highest"], device: torch.device) -> bool:
    """Whether ``training.matmul`` means TF32 on this device."""
    return matmul != "highest" and has_tf32(device)


def in_matmul_precision(method: Method) -> Method:
    """A method of an object with ``tf32``: whether it computes float32 matrix products in TF32.

    Only in this call, but in all threads: those of the backward pass compute products too.
    """

    @wraps(method)
    def run(self: Any, *arguments: Any) -> Any:
        if not self.tf32:
            return method(self, *arguments)
        settings = torch.backends.cuda.matmul
        before, settings.fp32_precision = settings.fp32_precision, "tf32"
        try:
            return method(self, *arguments)
        finally:
            settings.fp32_precision = before

    return cast(Method, run)


def slow_precision(name: PrecisionName | Literal["auto"], device: torch.device) -> str | None:
    """A warning if the device only emulates this precision, else None."""
    if device.type != "cpu" or name in ("fp32", "auto"):
        return None
    if cpu_computes_bf16() if name == "bf16" else cpu_computes_fp16():
        return None
    missing = "this CPU has no bf16 instructions (avx512_bf16 or amx_bf16)"
    cost = "its products were measured 240 times slower than fp32 on a CPU with AVX2 alone"
    if name == "fp16":
        missing = "this CPU has no fp16 arithmetic (avx512_fp16 or amx_fp16)"
        cost = "its products were measured 4 to 15 times slower than fp32"
    return (
        f"training.precision={name} makes training slower here, not faster: {missing}, and {cost}; "
        "--precision auto takes what is fast"
    )


def refuse_emulated_fp16(options: TrainingOptions, device: torch.device) -> None:
    """Raise ConfigurationError for fp16 on a CPU that emulates it, unless it is forced."""
    if options.precision != "fp16" or options.emulate_fp16 or device.type != "cpu":
        return
    if cpu_computes_fp16():
        return
    other = "bf16, which this CPU multiplies faster" if cpu_computes_bf16() else "auto"
    raise ConfigurationError(
        "training.precision=fp16: this CPU has no fp16 arithmetic (avx512_fp16 or amx_fp16); "
        "emulated products were measured 4 to 15 times slower than fp32. Use --precision "
        f"{other}, or force fp16 with --set training.emulate_fp16=true"
    )


def gradient_norm(parameters: Sequence[Tensor], kind: float = 2.0) -> Tensor:
    """A norm of all gradients together, on their device, without a synchronization.

    As torch.nn.utils.get_total_norm, which takes twice as long to call: of one device and dtype.
    """
    grads = [p.grad for p in parameters if p.grad is not None]
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, kind)), kind)
    return norm
