"""Write tensors in the safetensors format.

Unlike the library's writer, this one hashes while it writes, copies one tensor at a time from the
device, accepts views and shared storage, and raises ``OSError`` with its errno on a full disk.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hasten.errors import CheckpointError

_CHUNK = 1 << 22
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_NAMES = {name: dtype for dtype, name in _DTYPES.items()}


class ShardedTensor(Protocol):
    """A tensor of which each process holds some rows."""

    shape: Sequence[int]
    dtype: torch.dtype

    def pieces(self) -> Iterable[Tensor]:
        """The rows of all processes, in order; a collective."""
        ...


class TensorFile:
    """Named tensors to be written to one file; ``bytes`` is its size.

    With sharded tensors, one process calls :meth:`write` and the others :meth:`send`, of the same
    files in the same order.

    Tensors are ordered by element size (largest first, so that all are aligned), then by name:
    equal tensors give equal files. Raises TypeError for dtypes and layouts without a safetensors
    equivalent.
    """

    def __init__(self, named: Mapping[str, Tensor | ShardedTensor]) -> None:
        order = sorted(named, key=lambda name: (-named[name].dtype.itemsize, name))
        self._tensors = [named[name] for name in order]
        header: dict[str, Any] = {}
        end = 0
        for name, tensor in zip(order, self._tensors, strict=True):
            assert name != "__metadata__", "the name __metadata__ is reserved by safetensors"
            layout = getattr(tensor, "layout", torch.strided)
            if tensor.dtype not in _DTYPES or layout != torch.strided:
                raise TypeError(f"tensor {name!r}: {tensor.dtype} {layout} cannot be saved")
            begin, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
            header[name] = {
                "dtype": _DTYPES[tensor.dtype],
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = len(text).to_bytes(8, "little") + text
        self.bytes = len(self._header) + end

    def write(self, path: Path) -> str:
        """Write a new file and return its SHA-256."""
        digest = hashlib.sha256(self._header)
        with path.open("xb") as file:
            file.write(self._header)
            for tensor in self._tensors:
                for piece in (tensor,) if isinstance(tensor, Tensor) else tensor.pieces():
                    flat = piece.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8)
                    data = flat.numpy().data
                    for start in range(0, len(data), _CHUNK):
                        chunk = data[start : start + _CHUNK]
                        file.write(chunk)
                        digest.update(chunk)
        return digest.hexdigest()

    def send(self) -> None:
        """Send this process's rows of sharded tensors to the process that writes the file."""
        for tensor in self._tensors:
            if not isinstance(tensor, Tensor):
                for _ in tensor.pieces():
                    pass


@dataclass(frozen=True)
class StoredRows:
    """A tensor in a file, of which rows are read when they are taken. Raises CheckpointError."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, path: Path, name: str) -> StoredRows:
        """The tensor of that name; raises as :func:`safetensors.safe_open`."""
        with safe_open(path, framework="pt") as file:
            tensor = file.get_slice(name)
            shape, dtype = tuple(tensor.get_shape()), _NAMES[tensor.get_dtype()]
        return cls(path, name, shape, dtype)

    def __getitem__(self, rows: slice) -> Tensor:
        try:
            with safe_open(self.path, framework="pt") as file:
                found: Tensor = file.get_slice(self.name)[rows]
                return found.clone()
        except (SafetensorError, OSError, RuntimeError) as error:
            raise CheckpointError(f"{self.path}: damaged: {error}") from error


def tensor_names(path: Path) -> set[str]:
    """The names of the tensors in a file."""
    with safe_open(path, framework="pt") as file:
        return set(file.keys())
