"""TiSASRec: self-attention with the time between interactions (Li et al. 2020).

Tokens ``x = √D · item``, dropout, then blocks as in SASRec. Their attention adds an embedding of
the position to every key and value, and an embedding of the time between query and key:

    logits_ij = q_i · (k_j + pK_j + rK[t_ij]) / √d,   out_i = Σ_j softmax_ij (v_j + pV_j + rV[t_ij])

Equations 4-9 of the paper; t_ij is the personalized interval (:mod:`.personal_times`), at most
``span``. All blocks share the tables of positions and intervals. Differences: those of SASRec here
(positions are counted from the end, there is an output projection and no padding, only queries have
a bias), and dropout of interval embeddings is applied to the rows of the tables once per step, not
to every pair of interactions.

Shapes: B sequences, L length, D width, H heads, T tokens of all sequences together, N items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from hasten.config import TrainingOptions
from hasten.data.tables import TRAIN, Dataset
from hasten.errors import DataError
from hasten.models.interface import Sizes
from hasten.models.sequential.attention_model import AttentionModel
from hasten.models.sequential.attention_options import AttentionOptions
from hasten.models.sequential.personal_times import personal_times
from hasten.objectives.base import Phase, Term
from hasten.ops.attention.interval_attention import find_intervals, interval_attention
from hasten.ops.buckets import Bucket
from hasten.ops.dense.dropout import dropout
from hasten.ops.table import EmbeddingTable
from hasten.scoring import RecommenderQueries

#: the paper's weight of the squared embeddings, used with the paper's loss
PAPER_L2 = 5e-5


class TiSASRecOptions(AttentionOptions):
    """Options of TiSASRec."""

    name: Literal["tisasrec"] = "tisasrec"
    max_length: int = Field(50, ge=1, description="most recent items that are read")
    span: int = Field(
        256, ge=1, description="largest time interval, in units of a user's smallest gap"
    )
    embedding_l2: float | None = Field(
        None,
        ge=0,
        description="L2 penalty of the embedding tables; none: 5e-5 with bce and gbce, else 0",
    )


class TiSASRec(AttentionModel):
    """An item table, two tables each of positions and intervals, and blocks."""

    name = "tisasrec"
    summary = "self-attention with the time between interactions (Li et al. 2020)"
    Options = TiSASRecOptions
    sample = "sittings"
    reads_times = True

    options: TiSASRecOptions

    def __init__(self, options: TiSASRecOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.key_positions = EmbeddingTable(options.max_length, options.width)
        self.value_positions = EmbeddingTable(options.max_length, options.width)
        self.key_intervals = EmbeddingTable(options.span + 1, options.width)
        self.value_intervals = EmbeddingTable(options.span + 1, options.width)
        self.build_blocks()

    @property
    def embedding_l2(self) -> float:
        """The weight of the squared embeddings."""
        if self.options.embedding_l2 is None:
            return PAPER_L2 if self.options.loss in ("bce", "gbce") else 0.0
        return self.options.embedding_l2

    def tables(self) -> Sequence[Tensor]:
        """All embedding tables."""
        others = self.key_positions, self.value_positions, self.key_intervals, self.value_intervals
        features = [p for name, p in self.items.named_parameters() if name != "weight"]
        return self.items.weight, *(table.weight for table in others), *features

    def regularizers(self) -> Sequence[Term]:
        """The squared embeddings (the paper's λ‖Θ‖²)."""
        if self.embedding_l2 == 0:
            return ()
        squares = [table.square().sum() for table in self.tables()]
        return [Term("embedding_l2", torch.stack(squares).sum(), 1.0, self.embedding_l2)]

    def hidden(
        self,
        rows_TD: Tensor,
        positions_T: Tensor,
        times_T: Tensor | None,
        buckets: Sequence[Bucket],
    ) -> Tensor:
        """[T, D] states of flat tokens. times_T: personalized times."""
        assert times_T is not None
        options = self.options

        def dropped(x: Tensor) -> Tensor:
            return dropout(x, options.dropout, self.training)

        x_TD = dropped(rows_TD * math.sqrt(options.width))
        keys = dropped(self.key_positions.rows(positions_T))
        values = dropped(self.value_positions.rows(positions_T))
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

        return self.through_blocks(x_TD, attention)

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: predict the next item at every position of the training sequences.

        Raises:
            DataError: the interactions have no times.
        """
        histories = dataset.histories(TRAIN)
        if histories.times is None:
            raise DataError(
                f"tisasrec needs the time of every event, and {dataset.name} has none: give a "
                "timestamp column (data.columns) or a parallel file of times (data.times), or "
                "train sasrec, which only needs the order"
            )
        # the last interaction is a target only
        prepare = partial(personal_times, limit=self.options.max_length, unseen=1)
        return [self.next_item_phase(histories, training, prepare)]

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32, in the order of the queries; their times are Unix seconds."""
        history = personal_times(queries.history, self.options.max_length)
        return super().query_vectors(RecommenderQueries(queries.user, history))
