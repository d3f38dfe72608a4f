"""The interface of scorers: scores of queries against ranges of the catalogue."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Scorer(Protocol):
    """Scores of a fixed set of queries against blocks of the catalogue."""

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] float32 scores of catalogue rows start..stop.

        The caller may overwrite the returned tensor.
        """
        ...
