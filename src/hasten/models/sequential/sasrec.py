"""SASRec: self-attentive sequential recommendation (Kang & McAuley 2018).

Tokens ``x = √D · item + position``, dropout, then blocks of causal self-attention and a point-wise
feed-forward network with residuals, a final layer norm, and the score ``x · item``. Equations 2-6
of the paper, with these differences: those of the block (:mod:`.self_attention`);
positions are counted from the end of the sequence, so that a short and a long history share them;
padding is never computed. Losses: full-catalogue cross-entropy, BCE (the paper's) and gBCE.

Shapes: B sequences, L length, D width, H heads, T tokens of all sequences together, N items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.data.tables import Dataset
from hasten.models.interface import Model, Sizes
from hasten.models.sequential.attention import AttentionOptions, residuals_of, through_blocks
from hasten.models.sequential.base import (
    QueryTokens,
    next_item_loss,
    next_item_phase,
    query_vectors,
)
from hasten.models.sequential.self_attention import Block
from hasten.models.supports import Supports
from hasten.objectives.base import Phase
from hasten.objectives.next_item import NextItemBatch
from hasten.ops.attention.causal_attention import causal_attention
from hasten.ops.buckets import Bucket
from hasten.ops.dense.dropout import dropout
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable, Table
from hasten.scoring import Catalogue, FactorScorer, RecommenderQueries


class SASRecOptions(AttentionOptions):
    """Options of SASRec; the paper's values in brackets."""

    name: Literal["sasrec"] = "sasrec"


class SASRec(Model):
    """The model: an item table, a position table and blocks."""

    name = "sasrec"
    summary = "self-attention over a user's sequence (Kang & McAuley 2018)"
    Options = SASRecOptions
    defaults = {"betas": (0.9, 0.98), "clip_norm": 5.0}
    sample = "sequences"
    supports = Supports(recompute=True, compile=True)
    scores_new_users = True

    options: SASRecOptions

    def __init__(self, options: SASRecOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.items: Table = EmbeddingTable(sizes.items, options.width)
        self.positions = EmbeddingTable(options.max_length, options.width)
        self.residuals = residuals_of(options)
        self.blocks = nn.ModuleList(
            Block(options, self.residuals, number) for number in range(options.blocks)
        )
        self.final_norm = nn.LayerNorm(options.width)
        self.hidden: Callable[[Tensor, Tensor, Sequence[Bucket]], Tensor] = self._hidden

    def _hidden(self, rows_TD: Tensor, places_T: Tensor, buckets: Sequence[Bucket]) -> Tensor:
        """[T, D] states of flat tokens, from their item rows and distances to the end."""
        options = self.options
        x_TD = rows_TD * math.sqrt(options.width) + self.positions.rows(places_T)
        x_TD = dropout(x_TD, options.dropout, self.training)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return causal_attention(
                query, key, value, buckets, options.heads, options.dropout, self.training
            )

        x_TD = through_blocks(
            self.blocks, self.residuals, x_TD, attention, recompute=self.recompute
        )
        out: Tensor = self.final_norm(x_TD)
        return out

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: predict the next item at every position of the training sequences."""
        self.recompute = training.recompute
        return [next_item_phase(self, self.options, dataset, training)]

    def next_item_loss(self, batch: NextItemBatch) -> Tensor:
        """Summed loss of the batch's targets."""

        def encode(rows_TD: Tensor) -> Tensor:
            return self.hidden(rows_TD, batch.places, batch.buckets)

        return next_item_loss(batch, self.options, self.items, encode)

    def states(self, batch: NextItemBatch) -> Tensor:
        """[T, D] what each of the batch's targets is predicted from."""
        rows_TD = self.items.rows(batch.tokens)
        return batch.at_targets(self._hidden(rows_TD, batch.places, batch.buckets))

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile what a step calls: the encoder of the flat tokens."""
        self.hidden = wrap(self._hidden)
        return True

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Scores from the state at the last item of each history (zeros for an empty one)."""
        return FactorScorer(self.query_vectors(queries), Catalogue(self.items))

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32, in the order of the queries."""

        def encode(rows_TD: Tensor, tokens: QueryTokens) -> Tensor:
            return self._hidden(rows_TD, tokens.places, tokens.buckets)

        device = next(self.parameters()).device
        return query_vectors(queries, self.options, self.items, device, encode)
