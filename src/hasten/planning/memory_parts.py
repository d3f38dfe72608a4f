"""Attribute memory to its owners: tensors and arrays of an object, saved activations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

_CONTAINERS = (list, tuple, set, frozenset)


class MemoryParts:
    """Counts the bytes of tensors and arrays, each memory block once."""

    def __init__(self) -> None:
        self._blocks: set[int] = set()
        self._objects: dict[int, object] = {}

    def count(self, root: object) -> int:
        """The bytes reachable from an object that were not counted before."""
        total, waiting = 0, [root]
        while waiting:
            value = waiting.pop()
            if value is None or isinstance(value, str | bytes | int | float | type):
                continue
            if isinstance(value, Tensor | np.ndarray | pa.Array | pa.ChunkedArray | pa.Table):
                total += sum(self._new(*block) for block in _blocks(value))
            elif id(value) not in self._objects:
                self._objects[id(value)] = value  # keeps the id in use
                waiting += _children(value)
        return total

    def has(self, address: int) -> bool:
        """Whether the block at this address was counted."""
        return address in self._blocks

    def _new(self, address: int, size: int) -> int:
        if not size or address in self._blocks:
            return 0
        self._blocks.add(address)
        return size


def _blocks(value: Any) -> list[tuple[int, int]]:
    """The memory blocks (address, bytes) of a tensor or an array."""
    if isinstance(value, Tensor):
        if value.layout != torch.strided:  # it has several storages, none of them accessible
            return []
        storage = value.untyped_storage()
        return [(storage.data_ptr(), storage.nbytes())]
    if isinstance(value, np.ndarray):
        while isinstance(value.base, np.ndarray):
            value = value.base
        return [(value.__array_interface__["data"][0], value.nbytes)]
    if isinstance(value, pa.Table):
        return [block for column in value.columns for block in _blocks(column)]
    chunks = value.chunks if isinstance(value, pa.ChunkedArray) else [value]
    buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]
    return [(buffer.address, buffer.size) for buffer in buffers]


def _children(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return [*value.keys(), *value.values()]
    if isinstance(value, _CONTAINERS):
        return list(value)
    walked = isinstance(value, nn.Module | torch.optim.Optimizer)
    if walked or type(value).__module__.startswith("hasten."):
        return list(getattr(value, "__dict__", {}).values())
    return []


class SavedActivations:
    """A context that counts the tensors saved for the backward pass; ``peak`` is in bytes.

    leave_out: a count of what is no activation, such as parameters and graphs.
    """

    def __init__(self, leave_out: MemoryParts) -> None:
        self._hooks = saved_tensors_hooks(self._pack, lambda saved: saved.tensor)
        self._leave_out = leave_out
        self._uses: dict[int, int] = {}
        self.now = self.peak = 0

    def __enter__(self) -> SavedActivations:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    def _pack(self, tensor: Tensor) -> _Saved:
        return _Saved(tensor, self)

    def change(self, tensor: Tensor, uses: int) -> None:
        """Count a further use of a tensor's memory, or one less."""
        for address, size in _blocks(tensor):
            if not self._leave_out.has(address):
                before = self._uses.get(address, 0)
                self._uses[address] = before + uses
                if not before or not self._uses[address]:
                    self.now += uses * size
                    self.peak = max(self.peak, self.now)


class _Saved:
    """A saved tensor, counted until the graph drops it."""

    def __init__(self, tensor: Tensor, owner: SavedActivations) -> None:
        self.tensor, self._owner = tensor, owner
        owner.change(tensor, 1)

    def __del__(self) -> None:
        self._owner.change(self.tensor, -1)
