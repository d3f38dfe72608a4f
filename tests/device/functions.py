"""Functions of torch that make tensors on a device, or choose an implementation by the device."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.amp.autocast_mode import autocast
from torch.utils._python_dispatch import TorchDispatchMode

from tests.device.recorder import current
from tests.device.simulated import DeviceTensor, unwrap

#: make a tensor out of nothing: one kernel on the device
FACTORIES = (
    "arange", "eye", "full", "linspace", "ones", "rand", "randint", "randn", "randperm", "zeros",
)  # fmt: skip
#: bring numbers of the host
CONVERSIONS = ("as_tensor", "tensor")


class _Here(threading.local):
    by_python = False


_here = _Here()


class Backward(TorchDispatchMode):
    """A backward pass: what C++ makes in it out of nothing, such as missing gradients, is on the
    device. Python's own calls go through the functions below, which say so by ``_here``.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and importing the compiler takes seconds

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None):
        out = function(*arguments, **(named or {}))
        name = function._schema.name.removeprefix("aten::")
        if name not in {*FACTORIES, "empty"} or _here.by_python:
            return out
        if name != "empty":
            current().kernels[name] += 1
        return DeviceTensor(out)


def in_backward(plain: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any, **named: Any) -> Any:
        with Backward():
            return plain(*arguments, **named)

    return run


def _on_host(plain: Callable[..., Tensor], *arguments: Any, **named: Any) -> Tensor:
    before, _here.by_python = _here.by_python, True
    try:
        return plain(*arguments, **named)
    finally:
        _here.by_python = before


def factory(plain: Callable[..., Tensor], here: Callable[[object], bool]) -> Callable[..., Tensor]:
    def make(*arguments: Any, device: Any = None, **named: Any) -> Tensor:
        if not here(device):
            where = {} if device is None else {"device": device}
            return _on_host(plain, *arguments, **where, **named)
        made = _on_host(plain, *arguments, **{**named, "requires_grad": False})
        current().kernels[plain.__name__] += 1
        current().calls.append((plain.__name__, (made.dtype, tuple(made.shape)), arguments))
        return DeviceTensor(made, requires_grad=named.get("requires_grad", False))

    return make


def conversion(
    plain: Callable[..., Tensor], here: Callable[[object], bool]
) -> Callable[..., Tensor]:
    def make(data: Any, *, dtype: Any = None, device: Any = None, **named: Any) -> Tensor:
        if not here(device):
            where = {} if device is None else {"device": device}
            return plain(data, dtype=dtype, **where, **named)
        return plain(data, dtype=dtype, **named).to(device)

    return make


def empty(here: Callable[[object], bool], pin: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    plain = torch.empty

    def make(*arguments: Any, device: Any = None, pin_memory: bool = False, **named: Any) -> Tensor:
        if here(device):
            return DeviceTensor(_on_host(plain, *arguments, **named))
        where = {} if device is None else {"device": device}
        made = _on_host(plain, *arguments, **where, **named)
        return pin(made) if pin_memory else made

    return make


_plain_sparse_rows = torch.sparse_csr_tensor


def _product(offsets: Tensor, columns: Tensor, values: Tensor, shape: list[int], x: Tensor):
    kind = torch.float64 if x.dtype == torch.float64 else torch.float32  # not in half precision
    parts = offsets, columns, values.to(kind), shape
    with warnings.catch_warnings(), autocast("cpu", enabled=False):
        warnings.simplefilter("ignore")  # the layout is called a beta
        return _on_host(_plain_sparse_rows, *parts, check_invariants=False) @ x.to(kind)


#: one operation, so that a recorded step can do it again (tests/device/replay.py)
_LIBRARY = torch.library.Library("simulated", "DEF")
_LIBRARY.define(
    "product(Tensor offsets, Tensor columns, Tensor values, int[] shape, Tensor x) -> Tensor"
)
_LIBRARY.impl("product", _product, "CPU")


class _SparseRows:
    """A compressed sparse row matrix of the device, for products alone."""

    def __init__(self, *parts: Tensor, shape: list[int]) -> None:
        self.parts, self.shape = parts, shape

    def __matmul__(self, x: DeviceTensor) -> DeviceTensor:
        current().kernels["sparse_csr_product"] += 1
        shapes = tuple(self.shape), len(self.parts[-1]), tuple(x.shape)
        current().calls.append(("sparse_csr_product", shapes, ()))
        product = torch.ops.simulated.product(*self.parts, self.shape, x.cpu_tensor)
        return DeviceTensor(product.to(x.dtype))


def sparse_rows() -> Callable[..., Any]:
    def make(offsets: Any, columns: Any, values: Any, *arguments: Any, **named: Any) -> Any:
        if not isinstance(values, DeviceTensor):
            return _plain_sparse_rows(offsets, columns, values, *arguments, **named)
        (shape,) = arguments
        return _SparseRows(unwrap(offsets), unwrap(columns), unwrap(values), shape=list(shape))

    return make


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention as one kernel forward and one backward."""

    @staticmethod
    def forward(ctx: Any, plain: Any, named: Any, *inputs: Any) -> Tensor:
        with torch.enable_grad():
            ctx.leaves = [
                x if x is None else unwrap(x).detach().requires_grad_(x.is_floating_point())
                for x in inputs
            ]
            ctx.out = _on_host(plain, *ctx.leaves, **named)
        return _Attention.counted("", ctx.out.detach(), inputs)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        wanted = [n for n in range(len(ctx.leaves)) if ctx.needs_input_grad[2 + n]]
        leaves = [ctx.leaves[n] for n in wanted]
        grads = _on_host(torch.autograd.grad, ctx.out, leaves, unwrap(grad))
        found: list[Any] = [None] * (2 + len(ctx.leaves))
        for n, each in zip(wanted, grads, strict=True):
            found[2 + n] = DeviceTensor(each)
        _Attention.counted("_backward", grads[0], [grad])
        return tuple(found)

    @staticmethod
    def counted(suffix: str, out: Tensor, inputs: Any) -> DeviceTensor:
        name = f"scaled_dot_product_attention{suffix}"
        current().kernels[name] += 1
        shapes = tuple((x.dtype, tuple(x.shape)) for x in (*inputs, out) if x is not None)
        current().calls.append((name, shapes, ()))
        if any(type(x) is Tensor and x.dim() > 0 for x in inputs):
            current().mistake(f"{name} of device tensors and a CPU tensor")
        return DeviceTensor(out)


def attention() -> Callable[..., Tensor]:
    plain = torch.nn.functional.scaled_dot_product_attention

    def attend(query: Any, key: Any, value: Any, attn_mask: Any = None, *a: Any, **named: Any):
        if not isinstance(query, DeviceTensor):
            return plain(query, key, value, attn_mask, *a, **named)
        names = ("dropout_p", "is_causal", "scale", "enable_gqa")
        named |= dict(zip(names, a, strict=False))
        return _Attention.apply(plain, named, query, key, value, attn_mask)

    return attend
