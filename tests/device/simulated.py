"""Tensors on a simulated device: CPU tensors that say they are on CUDA or MPS, and are counted.

A :class:`DeviceTensor` wraps a CPU tensor. Every operation on it arrives in ``__torch_dispatch__``,
below autograd and autocast, and is counted, checked and computed on the CPU. C++ code sees a tensor
on the CPU, so autograd, autocast and the optimizers of torch work without a device; Python code
that reads ``tensor.device`` takes the branches of the device. What that leaves out: composite
operations split as they do on the CPU, and an operation counts as one kernel whatever its number of
launches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.device.mps_operators import missing_on_mps
from tests.device.recorder import current

#: the device that is simulated, for as long as one is
DEVICE: list[torch.device] = []

#: allocate, or change only what the host knows of a tensor
_NO_KERNEL = {
    "alias", "detach", "empty", "empty_like", "empty_strided", "lift_fresh", "new_empty",
    "new_empty_strided", "resize_", "set_", "_reshape_alias", "_unsafe_view", "_fused_sdp_choice",
    "_local_scalar_dense", "is_same_size",
}  # fmt: skip
#: the size of the result, or the result, is read on the host
_WAITS = {
    "_local_scalar_dense", "_linalg_check_errors", "_unique", "_unique2", "bincount", "equal",
    "is_nonzero", "masked_select", "nonzero", "unique_consecutive", "unique_dim",
}  # fmt: skip
#: operations without a kernel for the CPU
_ONLY_ON_CUDA = {
    "aten.mm.dtype": lambda a, b, out_dtype: a.to(out_dtype) @ b.to(out_dtype),
    "aten.mm.dtype_out": lambda a, b, out_dtype, out: out.copy_(a.to(out_dtype) @ b.to(out_dtype)),
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class DeviceTensor(Tensor):
    """A tensor of the simulated device."""

    cpu_tensor: Tensor

    @staticmethod
    def __new__(cls, cpu_tensor: Tensor, requires_grad: bool = False) -> DeviceTensor:
        with torch.inference_mode(False):  # torch refuses views that are inference tensors
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                cpu_tensor.size(),
                strides=cpu_tensor.stride(),
                storage_offset=cpu_tensor.storage_offset(),
                dtype=cpu_tensor.dtype,
                device=torch.device("cpu"),
                requires_grad=requires_grad,
            )
        made.cpu_tensor = cpu_tensor
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:
        return DEVICE[-1]

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def is_mps(self) -> bool:
        return self.device.type == "mps"

    is_cpu = False

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if self.shape != value.shape:  # what torch knows of it, and of its parameter
            torch.Tensor.data.__set__(self, wrap(unwrap(value)))
        self.cpu_tensor = unwrap(value)

    def __repr__(self) -> str:
        return f"DeviceTensor({self.cpu_tensor!r})"

    def tolist(self) -> Any:
        current().download(self.shape, blocking=True)
        return self.cpu_tensor.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            current().mistake("numpy of a device tensor")
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return self.cpu().numpy()

    def __array__(self, dtype: Any = None) -> Any:
        return self.numpy()

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None) -> DeviceTensor:
        made = torch.tensor(data, dtype=self.dtype if dtype is None else dtype)
        current().upload(made.shape, blocking=True)
        return DeviceTensor(made)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None):
        named = named or {}
        name = function._schema.name.removeprefix("aten::")
        tensors = [x for x in tree_leaves((arguments, named)) if isinstance(x, Tensor)]
        if name in {"copy_", "_to_copy"} and _copies(name, arguments, named):
            function(*tree_map(unwrap, arguments), **tree_map(unwrap, named))
            return arguments[0]
        _check(name, function, arguments, named, tensors)
        compute = _ONLY_ON_CUDA.get(str(function), function)
        out = compute(*tree_map(unwrap, arguments), **tree_map(unwrap, named))
        results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if not function.is_view and name not in _NO_KERNEL:
            current().kernels[name] += 1
        current().calls.append(_call(name, arguments, named, results))
        if DEVICE[-1].type == "mps" and any(x.dtype == torch.float64 for x in results):
            current().mistake(f"float64 of {name}")
        return _returned(function, arguments, named, out)


def unwrap(value: Any) -> Any:
    return value.cpu_tensor if isinstance(value, DeviceTensor) else value


def wrap(value: Any) -> Any:
    return DeviceTensor(value) if type(value) is Tensor else value


def _copies(name: str, arguments: Any, named: Any) -> bool:
    """Count a copy in place between host and device; False if this is none."""
    if name != "copy_":
        return False
    target, source = arguments[:2]
    blocking = not (arguments[2] if len(arguments) > 2 else named.get("non_blocking", False))
    if not isinstance(source, DeviceTensor):
        current().upload(source.shape, blocking=blocking or not source.is_pinned())
    elif not isinstance(target, DeviceTensor):
        current().download(source.shape, blocking=blocking)
    else:
        return False
    return True


def _check(name: str, function: Any, arguments: Any, named: Any, tensors: list[Tensor]) -> None:
    """Count what would wait, and what would fail, on the device."""
    recorder = current()
    strangers = [x for x in tensors if not isinstance(x, DeviceTensor) and x.dim() > 0]
    if name in _INDEXING:
        indices = [x for x in arguments[1] if isinstance(x, Tensor)]
        for index in indices:
            if not isinstance(index, DeviceTensor) and isinstance(arguments[0], DeviceTensor):
                recorder.upload(index.shape, blocking=True)
        strangers = [x for x in strangers if all(x is not index for index in indices)]
        if not isinstance(arguments[0], DeviceTensor):
            strangers.append(arguments[0])
        masks = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if masks and not _fills(name, arguments):
            recorder.wait(f"{name} with a mask")
    for stranger in strangers:
        recorder.mistake(f"{name} of a device tensor and a CPU tensor {tuple(stranger.shape)}")
    if name in _WAITS:
        recorder.wait(name)
    if name == "repeat_interleave" and named.get("output_size") is None:
        recorder.wait("repeat_interleave without output_size")
    if name == "segment_reduce" and named.get("lengths") is not None and not named.get("unsafe"):
        recorder.wait("segment_reduce of lengths without unsafe")
    if DEVICE[-1].type == "mps" and missing_on_mps(function):
        recorder.mistake(f"{function._schema.name} is missing on MPS")


def _fills(name: str, arguments: Any) -> bool:
    """Whether assigning through a mask writes one number, which needs no positions."""
    accumulate = len(arguments) > 3 and arguments[3]
    return name != "index" and arguments[2].numel() == 1 and not accumulate


def _call(name: str, arguments: Any, named: Any, results: list[Tensor]) -> Any:
    """The record of an operation, to compare with that of another step."""
    leaves = [*tree_leaves((arguments, named)), *results]
    tensors = tuple((x.dtype, tuple(x.shape), x.stride()) for x in leaves if isinstance(x, Tensor))
    return name, tensors, tuple(x for x in leaves if not isinstance(x, Tensor))


def _returned(function: Any, arguments: Any, named: Any, out: Any) -> Any:
    """The result on the device; arguments written in place are returned as they are."""
    schema = function._schema
    written = [
        arguments[n] if n < len(arguments) else named.get(each.name)
        for n, each in enumerate(schema.arguments)
        if each.alias_info is not None and each.alias_info.is_write
    ]
    if not written:
        return tree_map(wrap, out)
    if not any(each.alias_info is not None for each in schema.returns):
        return tree_map(wrap, out)
    return written[0] if len(schema.returns) == 1 else tuple(written)
