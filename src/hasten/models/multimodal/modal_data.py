"""Item features: the modalities of a model, and constant tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.data.tables import TRAIN, Dataset, Modality
from hasten.errors import ConfigurationError
from hasten.models.interface import Sizes
from hasten.ops.dense.product import onednn_is_faster
from hasten.ops.dtypes import autocast_dtype
from hasten.ops.graph.csr import CSR


def chosen_modalities(wanted: Sequence[str] | None, sizes: Sizes) -> tuple[tuple[str, int], ...]:
    """(name, width) of the modalities of a model, in its order. wanted: None for all.

    Raises:
        ConfigurationError: the data have no such features, or a name is given twice.
    """
    there = dict(sizes.modalities)
    names = tuple(there) if wanted is None else tuple(wanted)
    missing = [name for name in names if name not in there]
    if missing or len(set(names)) < len(names):
        listed = ", ".join(there) or "none"
        raise ConfigurationError(
            f"model.modalities: no {missing[0]} features in the data (there are {listed})"
            if missing
            else f"model.modalities names one twice: {', '.join(names)}"
        )
    return tuple((name, there[name]) for name in names)


#: bytes of a memory page and of a cache line
_PAGE, _LINE = 4096, 64


class Constants:
    """Tensors that no step changes, computed at the first use and cached in each precision."""

    def __init__(self) -> None:
        self._cache: dict[tuple[Any, ...], Tensor] = {}

    def __call__(self, name: str, like: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """The constant of this name, in the dtype of a matrix product with ``like``."""
        whole = (name, like.device, like.dtype)
        low = (*whole, autocast_dtype(like))
        # an evaluation may compute it first; training must be able to use it
        with torch.inference_mode(False), torch.no_grad():
            if whole not in self._cache:
                with torch.autocast(like.device.type, enabled=False):
                    self._cache[whole] = off_pages(make().to(like))
            if low not in self._cache:
                self._cache[low] = off_pages(self._cache[whole].to(low[-1]))
        return self._cache[low]


def off_pages(x: Tensor) -> Tensor:
    """The same table; on a CPU, padded so that the row stride is not a multiple of a page.

    Rows of 4,096 floats map to the same cache sets, so a product that reads a column of panels
    misses the cache: 70 GFLOP/s instead of 78 with MKL, measured. oneDNN needs contiguous rows.
    """
    size = x.element_size()
    if x.device.type != "cpu" or x.dim() != 2 or x.stride(0) * size % _PAGE or x.stride(1) != 1:
        return x
    if onednn_is_faster() and x.dtype != torch.float64:
        return x
    wider = x.new_empty(len(x), x.shape[1] + _LINE // size)
    return wider[:, : x.shape[1]].copy_(x)


def features_of(modality: Modality) -> Tensor:
    """float32 [N, d] of a modality, on the host."""
    return torch.from_numpy(np.asarray(modality.values, np.float32))


def training_pairs(dataset: Dataset) -> CSR:
    """The distinct items of each user in the training part."""
    return CSR.of(dataset.histories(TRAIN)).distinct()


def xavier(*shape: int) -> nn.Parameter:
    """A matrix with Xavier-normal initialization."""
    return nn.Parameter(nn.init.xavier_normal_(torch.empty(*shape)))
