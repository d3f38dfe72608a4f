"""Switch a simulated device on: the functions of torch that name a device go through here."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from hasten.ops.triton import choice
from tests.device import functions
from tests.device.collectives import patch_collectives
from tests.device.recorder import current
from tests.device.simulated import DEVICE, DeviceTensor


@contextmanager
def simulated(kind: str, index: int = 0) -> Iterator[torch.device]:
    """A device of this kind (cuda or mps) while the block lasts; hasten's branches see it."""
    device = torch.device(kind, index)
    DEVICE.append(device)
    with pytest.MonkeyPatch.context() as patch:
        _patch_tensors(patch, device)
        _patch_libraries(patch)
        (_patch_cuda if kind == "cuda" else _patch_mps)(patch)
        if kind == "cuda":
            patch_collectives(patch)
        # parameters are replaced by those of the device: a wrapper has no storage to swap
        patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        try:
            yield device
        finally:
            DEVICE.pop()


class Pinned:
    """The storages in page-locked memory, from which a copy need not block."""

    def __init__(self) -> None:
        self.storages: dict[int, Any] = {}  # held: their addresses are not used again

    def add(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage
        return tensor

    def __contains__(self, tensor: Tensor) -> bool:
        held = not isinstance(tensor, DeviceTensor)
        return held and tensor.untyped_storage()._cdata in self.storages


def _patch_tensors(patch: pytest.MonkeyPatch, device: torch.device) -> None:
    pinned = Pinned()
    here = functools.partial(_is_simulated, device)
    plain_to = Tensor.to

    def to(self: Tensor, *arguments: Any, **named: Any) -> Tensor:
        if arguments and isinstance(arguments[0], Tensor):
            arguments = (arguments[0].device, arguments[0].dtype, *arguments[1:])
        copy = named.pop("copy", False)
        target, dtype, non_blocking, layout = torch._C._nn._parse_to(*arguments, **named)
        ours = isinstance(self, DeviceTensor)
        wanted = ours if target is None else here(target)
        kind = {"copy": copy} | ({} if layout is None else {"memory_format": layout})
        if ours == wanted:
            where = {} if ours or target is None else {"device": target}
            return plain_to(self, dtype=dtype or self.dtype, **where, **kind)
        if self.requires_grad and torch.is_grad_enabled():
            raise NotImplementedError("the simulated device copies without gradient")
        with torch.no_grad():
            if ours:
                current().download(self.shape, blocking=not non_blocking)
                return plain_to(self.cpu_tensor, dtype=dtype or self.dtype, copy=True)
            if device.type == "mps" and (dtype or self.dtype) == torch.float64:
                current().mistake("float64 to MPS")
            current().upload(self.shape, blocking=not (non_blocking and self in pinned))
            moved = plain_to(self.detach(), dtype=dtype or self.dtype, copy=True)
        return DeviceTensor(moved, requires_grad=self.requires_grad)

    def pin_memory(self: Tensor, *_: Any) -> Tensor:
        return pinned.add(self.clone())

    patch.setattr(Tensor, "to", to)
    patch.setattr(Tensor, "cpu", lambda self: to(self, torch.device("cpu")))
    patch.setattr(Tensor, "cuda", lambda self, *_, **named: to(self, device, **named))
    patch.setattr(Tensor, "pin_memory", pin_memory)
    patch.setattr(Tensor, "is_pinned", lambda self, *_: self in pinned)
    patch.setattr(Tensor, "record_stream", lambda self, stream: None)
    for name in functions.FACTORIES:
        patch.setattr(torch, name, functions.factory(getattr(torch, name), here))
    for name in functions.CONVERSIONS:
        patch.setattr(torch, name, functions.conversion(getattr(torch, name), here))
    patch.setattr(torch, "empty", functions.empty(here, pinned.add))
    patch.setattr(torch, "sparse_csr_tensor", functions.sparse_rows())
    attention = functions.attention()
    patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
    for name in ("backward", "grad"):
        patch.setattr(torch.autograd, name, functions.in_backward(getattr(torch.autograd, name)))


def _is_simulated(device: torch.device, named: object) -> bool:
    if named is None:
        return False
    given = named if isinstance(named, torch.device) else torch.device(named)
    if given.type not in (device.type, "cpu", "meta"):
        raise RuntimeError(f"no {given} beside a simulated {device}")
    return given.type == device.type


def _patch_libraries(patch: pytest.MonkeyPatch) -> None:
    """Autocast and the optimizers ask C++ for the device, which calls it the CPU."""
    plain = torch.autocast
    patch.setattr(torch, "autocast", lambda device_type, *a, **k: plain("cpu", *a, **k))
    enabled, dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    patch.setattr(torch, "is_autocast_enabled", lambda device_type="cpu": enabled("cpu"))
    patch.setattr(torch, "get_autocast_dtype", lambda device_type: dtype("cpu"))
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(tensors: Any, indices: bool = False) -> Any:
        def place(of: torch.device) -> torch.device:
            first = next(x for each in tensors for x in each if x is not None)
            return first.device if isinstance(first, DeviceTensor) else of

        return {(place(of), kind): found for (of, kind), found in group(tensors, indices).items()}

    patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", grouped)
    supported = torch.utils._foreach_utils._foreach_supported_types
    patch.setattr(
        torch.utils._foreach_utils, "_foreach_supported_types", [*supported, DeviceTensor]
    )


class _Stream:
    """A stream or an event: nothing runs beside the host here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def wait_stream(self, stream: Any) -> None:
        pass

    wait_event = record = wait = wait_stream

    def record_event(self, event: Any = None) -> Any:
        return event or _Stream()

    def synchronize(self) -> None:
        current().wait("synchronize")

    def query(self) -> bool:
        return True


def _patch_cuda(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(choice, "_installed", lambda: False)  # Triton's kernels need a real device
    nothing = {"empty_cache", "reset_peak_memory_stats", "set_device"}
    nothing |= {"set_per_process_memory_fraction"}
    properties = SimpleNamespace(name="simulated", total_memory=16 << 30, major=7, minor=5)
    stream = _Stream()
    values = {
        "is_available": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "current_stream": stream,
        "get_device_capability": (7, 5),
        "get_device_name": "simulated",
        "get_device_properties": properties,
        "max_memory_allocated": 0,
        "max_memory_reserved": 0,
    } | dict.fromkeys(nothing)
    for name, value in values.items():
        patch.setattr(torch.cuda, name, lambda *_, _value=value, **__: _value)
    patch.setattr(torch.cuda, "synchronize", lambda *_: current().wait("synchronize"))
    patch.setattr(torch.cuda, "default_generators", (torch.default_generator,) * 8)
    patch.setattr(torch.cuda, "Stream", _Stream)
    patch.setattr(torch.cuda, "Event", _Stream)
    patch.setattr(torch.cuda, "stream", lambda _: nullcontext())


def _patch_mps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.backends.mps, "is_available", lambda: True)
    patch.setattr(torch.mps, "manual_seed", lambda _: None)
    patch.setattr(torch.mps, "driver_allocated_memory", lambda: 0)
    patch.setattr(torch.mps, "empty_cache", lambda: None)
    patch.setattr(torch.mps, "synchronize", lambda: current().wait("synchronize"))
