"""The interface of embedding tables: ``rows`` and ``block``.

Models, losses and ranking read tables only through it, so a table that is sharded over processes
can replace :class:`EmbeddingTable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Table(Protocol):
    """[N, D] embeddings, whole or in shards."""

    def rows(self, ids: Tensor) -> Tensor:
        """[..., D] the given rows (int64 ids)."""
        ...

    def block(self, start: int, stop: int) -> Tensor:
        """[stop-start, D] consecutive rows."""
        ...

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class FixedTable:
    """Computed rows, such as the node embeddings of a whole graph. weight: [N, D]."""

    weight: Tensor

    def rows(self, ids: Tensor) -> Tensor:
        return self.weight.index_select(0, ids.reshape(-1)).view(*ids.shape, -1)

    def block(self, start: int, stop: int) -> Tensor:
        return self.weight[start:stop]

    def __len__(self) -> int:
        return len(self.weight)


class EmbeddingTable(nn.Module):
    """A table as one parameter ``weight`` [N, D], with Xavier-normal initialization."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, width))
        nn.init.xavier_normal_(self.weight)

    def rows(self, ids: Tensor) -> Tensor:
        if self.weight.device.type == "cpu":
            # its backward pass is one index_add, here 3-5 times faster than that of embedding
            return self.weight.index_select(0, ids.reshape(-1)).view(*ids.shape, -1)
        return F.embedding(ids, self.weight)

    def block(self, start: int, stop: int) -> Tensor:
        # no slice of the whole table: its backward pass first fills a gradient with zeros
        return self.weight if (start, stop) == (0, len(self)) else self.weight[start:stop]

    def __len__(self) -> int:
        return len(self.weight)
