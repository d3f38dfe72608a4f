"""The interface of scorers: scores of queries against ranges of the catalog."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


class Scorer(Protocol):
    """Scores of a fixed set of queries against blocks of the catalog."""

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] float32 scores of catalog rows start..stop.

        The caller may overwrite the returned tensor.
        """
        ...


@runtime_checkable
class ListScorer(Scorer, Protocol):
    """A scorer that also scores listed candidates, without the rest of the catalog."""

    @property
    def device(self) -> torch.device:
        """Where scores are computed."""
        ...

    def listed(self, ids: Tensor) -> Tensor:
        """[Q, n] scores of the candidates ids [n], as :meth:`block` would compute them there.

        They may differ from those of another block in the last bits.
        """
        ...

    def pairs(self, ids: Tensor) -> Tensor:
        """[Q, C] scores of each query's own candidates ids [Q, C]; equal rows score the same."""
        ...
