"""Read a PyTorch checkpoint without running code from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from hasten.errors import CheckpointError, UsageError, first_line

#: keys under which training scripts save the weights beside other things
_NESTED = ("state_dict", "model_state_dict", "model_state", "model", "net")
#: what DistributedDataParallel and torch.compile put before every name
_PREFIXES = ("module.", "_orig_mod.")


def read_weights(file: Path) -> dict[str, Tensor]:
    """The tensors of a ``.pt`` or ``.pth`` file by name, on the CPU.

    The file is read with ``weights_only=True``, which cannot run code. Raises CheckpointError if it
    holds anything but tensors and plain values.
    """
    if not file.is_file():
        raise UsageError(f"{file}: no such file of weights")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise CheckpointError(
            f"{file}: holds Python objects besides tensors, and loading them could run any code "
            f"({first_line(error)[:120]}). Save the weights alone where the file was written: "
            'torch.save(model.state_dict(), "weights.pt")  or, of a saved dictionary, '
            'torch.save(torch.load(FILE, weights_only=False)["state_dict"], "weights.pt")'
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        raise CheckpointError(f"{file}: no PyTorch checkpoint: {first_line(error)}") from error
    tensors = _tensors(content)
    if not tensors:
        raise CheckpointError(f"{file}: holds no named tensors, so it is no state_dict")
    return tensors


def _tensors(value: Any) -> dict[str, Tensor]:
    """The named tensors of a state_dict, also of one that is nested in a dictionary."""
    if not isinstance(value, Mapping):
        return {}
    for key in _NESTED:
        if isinstance(value.get(key), Mapping):
            return _tensors(value[key])
    return {_plain(str(k)): v.detach() for k, v in value.items() if isinstance(v, Tensor)}


def _plain(name: str) -> str:
    """The name without the prefixes of wrappers."""
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
