"""BPR-MF: matrix factorization with pairwise ranking (Rendle et al. 2009).

The score is ``u · i``. KGAT can start from its embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hasten.config import ModelOptions, TrainingOptions
from hasten.models.collaborative.base import CollaborativeModel
from hasten.models.interface import Sizes
from hasten.models.rows import Rows
from hasten.models.supports import Supports
from hasten.objectives.base import Encoded
from hasten.objectives.pair_rows import PairRowsPhase
from hasten.objectives.pairwise import PairwiseExamples, PairwisePhase, Sampling
from hasten.objectives.step_rows import reads_few_rows
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.sharded_table import shardable_table
from hasten.ops.table import Table
from hasten.ops.table_rows import is_large_on_device
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer, RecommenderQueries


class BPRMFOptions(ModelOptions):
    """Options of BPR-MF."""

    name: Literal["bprmf"] = "bprmf"
    width: int = Field(64, ge=1, description="embedding dimension D")
    l2: float = Field(1e-5, ge=0, description="L2 penalty of the pairs' vectors")
    sampling: Sampling = Field(
        "users", description="training pairs: users uniformly, or every interaction once per epoch"
    )


class BPRMF(CollaborativeModel):
    """Users [U, D] and items [N, D]."""

    name = "bprmf"
    summary = "matrix factorization by pairwise ranking (Rendle et al. 2009)"
    Options = BPRMFOptions
    supports = Supports(precision=False, shard_tables=True)

    options: BPRMFOptions

    def __init__(self, options: BPRMFOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.users: Table = shardable_table(sizes.users, options.width)
        self.items: Table = shardable_table(sizes.items, options.width)

    def rows_of(self) -> Mapping[str, Rows]:
        return {"users.weight": Rows.of("users"), "items.weight": Rows.of("items")}

    def phase_class(self, training: TrainingOptions) -> type[PairwisePhase]:
        """Tables are trained by the rows that a step reads if large, or to be sharded."""
        few = reads_few_rows(3 * training.batch_size, self.sizes.users + self.sizes.items)
        if self.device.type != "cpu":
            few = few and is_large_on_device(list(self.parameters()))
        return PairRowsPhase if few or training.shard_tables == "always" else PairwisePhase

    def pair_vectors(
        self, encoded: Encoded, pairs: PairwiseExamples
    ) -> tuple[Tensor, Tensor, Tensor]:
        if encoded:  # the rows of the step, by PairRowsPhase
            assert pairs.nodes is not None
            user, positive, negative = encoded[0].index_select(0, pairs.nodes).chunk(3)
            return user, positive, negative
        items = self.pair_nodes(pairs)[len(pairs.user) :]
        positive, negative = self.items.rows(items).chunk(2)
        return self.users.rows(pairs.user), positive, negative

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """``u · i`` for all items."""
        users = self.users.rows(to_device(torch.from_numpy(queries.user), self.device))
        return FactorScorer(users, Catalog(self.items))
