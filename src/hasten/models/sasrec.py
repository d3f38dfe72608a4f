"""SASRec: self-attentive sequential recommendation (Kang & McAuley 2018).

Tokens ``x = √D · item + position``, dropout, then blocks of causal self-attention and a point-wise
feed-forward network with residuals, a final layer norm, and the score ``x · item``. Equations 2-6
of the paper, with these differences: queries, keys and values all come from the normalised input
under pre-LN (the paper normalises queries alone); keys have no bias (its gradient is zero);
positions are counted from the end of the sequence, so that a short and a long history share them;
padding is never computed. Losses: full-catalogue cross-entropy, BCE (the paper's) and gBCE.

Shapes: B sequences, L length, D width, H heads, T tokens of all sequences together, N items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from hasten.config import RunConfig
from hasten.data.tables import Dataset
from hasten.models.residual import Residuals, connect
from hasten.models.seam import Catalogue, FactorScorer, RecommenderQueries, Scorer, Sizes
from hasten.models.sequential import (
    QueryTokens,
    SequentialOptions,
    initialise,
    next_item_loss,
    next_item_phase,
    query_vectors,
    residuals_of,
    through_blocks,
)
from hasten.ops.buckets import Bucket
from hasten.ops.causal_attention import causal_attention
from hasten.ops.dropout import dropout
from hasten.ops.feedforward import feedforward
from hasten.ops.projections import query_key_value
from hasten.ops.table import EmbeddingTable, Table
from hasten.training.next_item import NextItemBatch
from hasten.training.phase import Phase


class SASRecOptions(SequentialOptions):
    """Options of SASRec; the paper's values in brackets."""

    name: Literal["sasrec"] = "sasrec"


class Block(nn.Module):
    """Causal self-attention and feed-forward, each with dropout, residual and layer norm."""

    def __init__(self, options: SASRecOptions, residuals: Residuals, number: int) -> None:
        super().__init__()
        width, inner = options.width, options.width * options.feedforward
        self.heads, self.drop, self.pre = options.heads, options.dropout, options.norm == "pre"
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Parameter(torch.empty(3 * width, width))
        self.query_bias = nn.Parameter(torch.zeros(width))
        self.output = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        for weight in self.query_key_value.view(3, width, width):
            nn.init.xavier_normal_(weight)
        initialise(self.output, self.inner, self.outer)
        self.around_attention = residuals.connection(2 * number)
        self.around_feedforward = residuals.connection(2 * number + 1)

    def forward(self, flowing: Any, buckets: Sequence[Bucket]) -> Any:
        """What flows past the block, from one bucketed batch of sequences."""

        def attend(x_TD: Tensor) -> Tensor:
            return self.attend(x_TD, buckets)

        attended = connect(
            self.around_attention, flowing, attend, self.attention_norm, pre=self.pre
        )
        return connect(
            self.around_feedforward, attended, self.transform, self.feedforward_norm, pre=self.pre
        )

    def attend(self, x_TD: Tensor, buckets: Sequence[Bucket]) -> Tensor:
        """Attention within each sequence; every bucket is a rectangle of the flat tokens."""
        query, key, value = query_key_value(x_TD, self.query_key_value, self.query_bias)
        attended = causal_attention(
            query, key, value, buckets, self.heads, self.drop, self.training
        )
        out: Tensor = self.output(attended)
        return out

    def transform(self, x_TD: Tensor) -> Tensor:
        """The point-wise feed-forward network."""
        inner = self.inner.weight, self.inner.bias
        outer = self.outer.weight, self.outer.bias
        return feedforward(x_TD, inner, outer, self.drop, self.training)


class SASRec(nn.Module):
    """The model: an item table, a position table and blocks."""

    name: ClassVar[str] = "sasrec"
    summary: ClassVar[str] = "self-attention over a user's sequence (Kang & McAuley 2018)"
    Options: ClassVar[type[SASRecOptions]] = SASRecOptions
    defaults: ClassVar[Mapping[str, Any]] = {"betas": (0.9, 0.98), "clip_norm": 5.0}
    sample: ClassVar[str] = "sequences"
    scores_new_users: ClassVar[bool] = True

    def __init__(self, options: SASRecOptions, sizes: Sizes) -> None:
        super().__init__()
        self.options = options
        self.items: Table = EmbeddingTable(sizes.items, options.width)
        self.positions = EmbeddingTable(options.max_length, options.width)
        self.residuals = residuals_of(options)
        self.blocks = nn.ModuleList(
            Block(options, self.residuals, number) for number in range(options.blocks)
        )
        self.final_norm = nn.LayerNorm(options.width)
        self.recompute = False
        self.hidden: Callable[[Tensor, Tensor, Sequence[Bucket]], Tensor] = self._hidden

    def _hidden(self, rows_TD: Tensor, places_T: Tensor, buckets: Sequence[Bucket]) -> Tensor:
        """[T, D] states of flat tokens, from their item rows and distances to the end."""
        options = self.options
        x_TD = rows_TD * math.sqrt(options.width) + self.positions.rows(places_T)
        x_TD = dropout(x_TD, options.dropout, self.training)
        x_TD = through_blocks(self.blocks, self.residuals, x_TD, buckets, recompute=self.recompute)
        out: Tensor = self.final_norm(x_TD)
        return out

    def phases(self, dataset: Dataset, config: RunConfig) -> Sequence[Phase]:
        """One phase: predict the next item at every position of the training sequences."""
        self.recompute = config.training.recompute
        return [next_item_phase(self, self.options, dataset, config)]

    def next_item_loss(self, batch: NextItemBatch) -> Tensor:
        """Summed loss of the batch's targets."""

        def encode(rows_TD: Tensor) -> Tensor:
            return self.hidden(rows_TD, batch.places, batch.buckets)

        return next_item_loss(batch, self.options, self.items, encode)

    def compile_with(self, wrap: Callable[[Any], Any]) -> None:
        """Compile what a step calls: the encoder of the flat tokens."""
        self.hidden = wrap(self._hidden)

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Scores from the state at the last item of each history (zeros for an empty one)."""
        return FactorScorer(self.query_vectors(queries), Catalogue(self.items))

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32, in the order of the queries."""

        def encode(rows_TD: Tensor, tokens: QueryTokens) -> Tensor:
            return self._hidden(rows_TD, tokens.places, tokens.buckets)

        device = next(self.parameters()).device
        return query_vectors(queries, self.options, self.items, device, encode)
