"""TiSASRec: self-attention that knows the time between two events (Li et al. 2020).

Tokens ``x = √D · item``, dropout, then blocks as in SASRec whose attention adds to every key and
value an embedding of its position and one of the time between query and key:

    logits_ij = q_i · (k_j + pK_j + rK[t_ij]) / √d,   out_i = Σ_j softmax_ij (v_j + pV_j + rV[t_ij])

Equations 4-9 of the paper; t_ij is the personalised interval (:mod:`.personal_times`),
at most ``span``. Positions and intervals have one pair of tables for all blocks. Differences: those
of SASRec here (positions counted from the end, an output projection, no padding, queries alone have
a bias), and dropout on the interval embeddings falls on the rows of the tables, once a step, not on
every pair of events anew.

Shapes: B sequences, L length, D width, H heads, T tokens of all sequences together, N items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.errors import DataError
from hasten.models.interface import Model, Sizes
from hasten.models.sequential.attention import AttentionOptions, residuals_of, through_blocks
from hasten.models.sequential.base import QueryTokens, next_item_loss, query_vectors
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.self_attention import Block
from hasten.models.supports import Supports
from hasten.objectives.base import Batch, Encoded, Phase, Term
from hasten.objectives.next_item import NextItemBatch, NextItemPhase
from hasten.ops.attention.interval_attention import find_intervals, interval_attention
from hasten.ops.buckets import Bucket
from hasten.ops.dense.dropout import dropout
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable
from hasten.scoring import Catalogue, FactorScorer, RecommenderQueries

#: the paper's weight of the squared embeddings, where the loss is the paper's
PAPER_L2 = 5e-5


class TiSASRecOptions(AttentionOptions):
    """Options of TiSASRec; the paper's values in brackets."""

    name: Literal["tisasrec"] = "tisasrec"
    max_length: int = Field(50, ge=1, description="most recent items that are seen [50]")
    span: int = Field(
        256, ge=1, description="longest interval told apart, in a user's smallest gaps [256]"
    )
    embedding_l2: float | None = Field(
        None,
        ge=0,
        description="weight of the squared embedding tables in the loss; none: 5e-5 with bce and "
        "gbce, 0 with ce [5e-5]",
    )


class TiSASRecPhase(NextItemPhase):
    """Next-item prediction with the squared embeddings beside the loss (the paper's λ‖Θ‖²)."""

    model: TiSASRec

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        weight = self.model.embedding_l2
        if weight == 0:
            return ()
        squares = [table.weight.square().sum() for table in self.model.tables()]
        return [Term("embedding_l2", torch.stack(squares).sum(), 1.0, weight)]


class TiSASRec(Model):
    """The model: an item table, two tables each of positions and intervals, and blocks."""

    name = "tisasrec"
    summary = "self-attention that knows the time between events (Li et al. 2020)"
    Options = TiSASRecOptions
    defaults = {"betas": (0.9, 0.98), "clip_norm": 5.0}
    sample = "sittings"
    supports = Supports(recompute=True, compile=True)
    scores_new_users = True
    reads_times = True

    options: TiSASRecOptions

    def __init__(self, options: TiSASRecOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.items = EmbeddingTable(sizes.items, options.width)
        self.key_positions = EmbeddingTable(options.max_length, options.width)
        self.value_positions = EmbeddingTable(options.max_length, options.width)
        self.key_intervals = EmbeddingTable(options.span + 1, options.width)
        self.value_intervals = EmbeddingTable(options.span + 1, options.width)
        self.residuals = residuals_of(options)
        self.blocks = nn.ModuleList(
            Block(options, self.residuals, number) for number in range(options.blocks)
        )
        self.final_norm = nn.LayerNorm(options.width)
        self.hidden: Callable[..., Tensor] = self._hidden

    @property
    def embedding_l2(self) -> float:
        """The weight of the squared embeddings."""
        if self.options.embedding_l2 is None:
            return 0.0 if self.options.loss == "ce" else PAPER_L2
        return self.options.embedding_l2

    def tables(self) -> Sequence[EmbeddingTable]:
        """All embeddings."""
        positions = self.key_positions, self.value_positions
        return self.items, *positions, self.key_intervals, self.value_intervals

    def _hidden(
        self, rows_TD: Tensor, places_T: Tensor, times_T: Tensor, buckets: Sequence[Bucket]
    ) -> Tensor:
        """[T, D] states of flat tokens: item rows, distances to the end, personalised times."""
        options = self.options

        def dropped(x: Tensor) -> Tensor:
            return dropout(x, options.dropout, self.training)

        x_TD = dropped(rows_TD * math.sqrt(options.width))
        keys = dropped(self.key_positions.rows(places_T))
        values = dropped(self.value_positions.rows(places_T))
        key_table = dropped(self.key_intervals.block(0, options.span + 1))
        value_table = dropped(self.value_intervals.block(0, options.span + 1))
        intervals = find_intervals(times_T, buckets, options.span)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return interval_attention(
                query,
                key + keys.to(key.dtype),
                value + values.to(value.dtype),
                key_table,
                value_table,
                intervals,
                options.heads,
                options.dropout,
                self.training,
            )

        x_TD = through_blocks(
            self.blocks, self.residuals, x_TD, attention, recompute=self.recompute
        )
        out: Tensor = self.final_norm(x_TD)
        return out

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: predict the next item at every position of the training sequences.

        Raises:
            DataError: the events have no times.
        """
        if dataset.interactions.time is None:
            raise DataError(
                f"tisasrec needs the time of every event, and {dataset.name} has none: give a "
                "timestamp column (data.columns) or a parallel file of times (data.times), or "
                "train sasrec, which needs the order alone"
            )
        self.recompute = training.recompute
        options = self.options
        return [
            TiSASRecPhase(
                self,
                # the last event is a target only
                personal_times(dataset.histories(TRAIN), options.max_length, unseen=1),
                items=len(dataset.items),
                batch_size=training.batch_size,
                max_length=options.max_length,
                negatives=0 if options.loss == "ce" else options.negatives,
            )
        ]

    def next_item_loss(self, batch: NextItemBatch) -> Tensor:
        """Summed loss of the batch's targets."""

        def encode(rows_TD: Tensor) -> Tensor:
            return self.hidden(rows_TD, batch.places, batch.times, batch.buckets)

        return next_item_loss(batch, self.options, self.items, encode)

    def states(self, batch: NextItemBatch) -> Tensor:
        """[T, D] what each of the batch's targets is predicted from."""
        rows_TD = self.items.rows(batch.tokens)
        assert batch.times is not None
        hidden = self._hidden(rows_TD, batch.places, batch.times, batch.buckets)
        return batch.at_targets(hidden)

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Compile what a step calls: the encoder of the flat tokens."""
        self.hidden = wrap(self._hidden)
        return True

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Scores from the state at the last item of each history (zeros for an empty one)."""
        return FactorScorer(self.query_vectors(queries), Catalogue(self.items))

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32, in the order of the queries; their times are unix seconds."""
        own = personal_times(queries.history, self.options.max_length)

        def encode(rows_TD: Tensor, tokens: QueryTokens) -> Tensor:
            assert tokens.times is not None
            return self._hidden(rows_TD, tokens.places, tokens.times, tokens.buckets)

        device = self.items.weight.device
        personal = RecommenderQueries(queries.user, own)
        return query_vectors(personal, self.options, self.items, device, encode)
