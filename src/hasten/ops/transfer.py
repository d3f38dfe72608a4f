"""Copy all tensors of a batch to a device at once.

The tensors of a tree (dataclasses, dictionaries, tuples and lists) are packed into one buffer. For
CUDA it is page-locked, so that the copy does not make the host wait; PyTorch's allocator of such
memory gives a buffer out again only after the copies from it have finished. The tensors on the
device are views of one buffer too. NumPy arrays, numbers and everything else stay on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

Tree = TypeVar("Tree")

#: bytes; the first element of every tensor is at a multiple of it
_ALIGNMENT = 64


@dataclass(frozen=True)
class Sent(Generic[Tree]):
    """A tree whose copy to the device may still be under way.

    buffer: of all tensors, on the device; copied: recorded on the stream of the copy; None: the
    stream that uses the tensors.
    """

    tree: Tree
    buffer: Tensor | None = None
    copied: torch.cuda.Event | None = None

    def received(self) -> Tree:
        """The tree; what the current stream does from now on comes after the copy."""
        if self.copied is not None and self.buffer is not None:
            stream = torch.cuda.current_stream(self.buffer.device)
            stream.wait_event(self.copied)
            # the allocator must not give the memory out again before this stream has used it
            self.buffer.record_stream(stream)
        return self.tree


def to_device(tree: Tree, device: torch.device) -> Tree:
    """The tree with its tensors on the device, by one copy; on the CPU the tree itself."""
    return tree if device.type == "cpu" else send(tree, device).received()


def send(tree: Tree, device: torch.device, stream: torch.cuda.Stream | None = None) -> Sent[Tree]:
    """Begin to copy the tensors of a tree to the device.

    stream: of the copy, for CUDA; None: the current one. A tensor that occurs twice is sent once.
    """
    places: dict[int, tuple[Tensor, int]] = {}
    size = 0

    def place(tensor: Tensor) -> Tensor:
        nonlocal size
        if tensor.device.type == "cpu" and id(tensor) not in places:
            places[id(tensor)] = tensor, size
            size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        return tensor

    _mapped(tree, place)
    if not places:
        return Sent(tree)
    cuda = device.type == "cuda"
    host = torch.empty(size, dtype=torch.uint8, pin_memory=cuda)
    on_host = _Parts(host)
    for tensor, start in places.values():
        on_host.part(start, tensor).copy_(tensor)
    if stream is None:
        buffer, copied = host.to(device, non_blocking=cuda), None
    else:
        with torch.cuda.stream(stream):
            buffer = host.to(device, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(stream)

    on_device = _Parts(buffer)

    def moved(tensor: Tensor) -> Tensor:
        at = places.get(id(tensor))
        return tensor if at is None else on_device.part(at[1], tensor)

    return Sent(cast(Tree, _mapped(tree, moved)), buffer, copied)


def layout(tree: Any) -> Any:
    """The structure of a tree and the places of its tensors in their buffer, to be compared.

    Values of the host stand in it as they are: a CUDA graph replays those of its recording.
    """
    if isinstance(tree, Tensor):
        return tree.dtype, tuple(tree.shape), tree.storage_offset()
    if isinstance(tree, (tuple, list)):
        return type(tree), *map(layout, tree)
    if isinstance(tree, dict):
        return tuple((name, layout(each)) for name, each in tree.items())
    if is_dataclass(tree) and not isinstance(tree, type):
        return type(tree), *(layout(getattr(tree, each.name)) for each in fields(tree))
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape, tree.tobytes()
    return tree


class _Parts:
    """Views of a buffer of bytes, whose size is a multiple of ``_ALIGNMENT``."""

    def __init__(self, buffer: Tensor) -> None:
        self.buffer = buffer
        #: the whole buffer as each type: one more operation for a type, not for a tensor
        self.typed: dict[torch.dtype, Tensor] = {}

    def part(self, start: int, like: Tensor) -> Tensor:
        """The view from a byte on that has the type and shape of a tensor, contiguous."""
        kind = like.dtype
        whole = self.typed.get(kind)
        if whole is None:
            whole = self.typed[kind] = self.buffer.view(kind)
        first, shape = start // like.element_size(), like.shape
        if len(shape) == 1:
            return whole[first : first + shape[0]]
        return whole[first : first + like.numel()].view(shape)


def _mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """The tree with ``function`` of every tensor; parts without tensors are the same objects."""
    if isinstance(tree, Tensor):
        return function(tree)
    if type(tree) in (tuple, list):
        return type(tree)(_mapped(each, function) for each in tree)
    if type(tree) is dict:
        return {name: _mapped(each, function) for name, each in tree.items()}
    if is_dataclass(tree) and not isinstance(tree, type):
        field_values = {field.name: getattr(tree, field.name) for field in fields(tree)}
        mapped_fields = {name: _mapped(each, function) for name, each in field_values.items()}
        if any(mapped_fields[name] is not each for name, each in field_values.items()):
            return replace(tree, **mapped_fields)
    return tree
