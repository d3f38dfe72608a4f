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
from torch import Tensor

from hasten.errors import CheckpointError, os_errors_as

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
    """A tensor in a file, of which rows are read when they are taken: their bytes alone.

    Not through a memory map, whose pages would count as memory of the process.
    """

    path: Path
    begin: int  #: of its bytes in the file
    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def in_file(cls, path: Path) -> dict[str, StoredRows]:
        """All tensors of a file by name."""
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size))
        header.pop("__metadata__", None)
        return {
            name: cls(
                path,
                8 + size + told["data_offsets"][0],
                tuple(told["shape"]),
                _NAMES[told["dtype"]],
            )
            for name, told in header.items()
        }

    def read(self, start: int, rows: Tensor) -> None:
        """Fill a contiguous tensor with the rows from ``start`` on.

        Raises CheckpointError if the file lacks them.
        """
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        content = rows.view(-1).view(torch.uint8).numpy()
        with os_errors_as(CheckpointError, "cannot be read", self.path), self.path.open("rb") as f:
            f.seek(self.begin + start * width)
            if f.readinto(content.data) != content.nbytes:
                raise CheckpointError(f"{self.path}: damaged: it ends before its tensors do")
