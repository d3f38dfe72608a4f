"""The seam between a model and everything written once: scoring, evaluation, export.

A model scores queries against a catalogue, block by block, so that no Q×N matrix is ever needed.
Where the score factorises as ``q · table[j] + bias[j]`` the scorer is a :class:`FactorScorer`;
where it does not, the model brings a scorer of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from hasten.data.tables import Dataset, Histories, Int64
from hasten.ops.table import Table

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hasten.config import RunConfig
    from hasten.training.phase import Phase


@dataclass(frozen=True)
class Catalogue:
    """What queries are scored against: a table [N, D] and an optional bias [N]."""

    table: Table
    bias: Tensor | None = None


class Scorer(Protocol):
    """Scores of a fixed set of queries against blocks of the catalogue."""

    def block(self, start: int, stop: int) -> Tensor:
        """[Q, stop-start] float32 scores of catalogue rows start..stop.

        A tensor of the caller's own, which may overwrite it.
        """
        ...


@dataclass(frozen=True)
class FactorScorer:
    """``vectors @ table.T + bias``: the scorer of every model that factorises."""

    vectors: Tensor
    catalogue: Catalogue

    def block(self, start: int, stop: int) -> Tensor:
        table = self.catalogue.table.block(start, stop)
        if self.catalogue.bias is None:
            return self.vectors @ table.T
        return torch.addmm(self.catalogue.bias[start:stop], self.vectors, table.T)


@dataclass(frozen=True)
class RecommenderQueries:
    """Users with the history that is known when they ask. user: int64 [Q], -1 for a new user."""

    user: Int64
    history: Histories

    def __len__(self) -> int:
        return len(self.user)

    def take(self, rows: Int64) -> RecommenderQueries:
        return RecommenderQueries(self.user[rows], self.history.take(rows))


@dataclass(frozen=True)
class Sizes:
    """What a model must know of the data to be built, and to be rebuilt from a run folder."""

    users: int
    items: int

    @classmethod
    def of(cls, dataset: Dataset) -> Sizes:
        return cls(users=len(dataset.users), items=len(dataset.items))


class Model(Protocol):
    """A scorer plus its training phases. Implementations are ``nn.Module`` classes."""

    name: ClassVar[str]
    summary: ClassVar[str]
    Options: ClassVar[type[BaseModel]]
    #: training defaults that differ from the general ones, e.g. {"lr": 1e-3}
    defaults: ClassVar[Mapping[str, Any]]
    #: the built-in sample that is used when no data are named
    sample: ClassVar[str]
    #: whether a user who was not trained on can be scored from a history
    scores_new_users: ClassVar[bool]

    def phases(self, dataset: Dataset, config: RunConfig) -> Sequence[Phase]:
        """Its training phases over this dataset, in the order of an epoch.

        A model without gradient steps has none, and a method ``fit(dataset)`` instead.
        """
        ...

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Scores of these queries against the catalogue, block by block."""
        ...
