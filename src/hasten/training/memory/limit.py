"""Refuse a model that needs more memory than there is, before it is allocated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.errors import HastenError
from hasten.memory import memory_bytes

#: weights and Adam's two moments
COPIES_WITH_ADAM = 3


class MemoryLimit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that refuses tensors before they are allocated, if all do not fit in memory.

    copies: how often the memory of each is needed, such as :data:`COPIES_WITH_ADAM`. Raises
    HastenError with the memory that is needed at least.
    """

    def __init__(self, copies: int = 1) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies, self.limit, self.bytes = copies, memory_bytes(), 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not needed here, and skipping it would import the whole of torch.compile."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        shape = args[0] if args else None
        if isinstance(shape, list | tuple) and all(isinstance(length, int) for length in shape):
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
            self.bytes += math.prod(shape) * dtype.itemsize
            if self.bytes * self.copies > self.limit:
                moments = ", and as much for each of two moments of Adam" * (self.copies > 1)
                raise self._error(
                    self.bytes * self.copies,
                    f"{_gigabytes(self.bytes)} of weights up to one of the shape {list(shape)}"
                    f"{moments}",
                )
        return func(*args, **kwargs)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if "Overflow when unpacking long" in str(error):  # before it could be dispatched
            raise self._error(2**63, "weights of which a dimension exceeds 2^63") from error

    def _error(self, needed: int, reason: str) -> HastenError:
        error = HastenError(
            f"the model needs at least {_gigabytes(needed)} of memory ({reason}), and this machine "
            f"has {_gigabytes(self.limit)}; make it smaller, for example by model.width"
        )
        error.code = "memory"
        return error


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
