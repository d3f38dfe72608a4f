"""What sequential models share: options, layout of histories, feed-forward network, losses.

A sequential model turns the item rows of flat, ragged tokens (see :mod:`hasten.ops.buckets`) into
one state a token. Everything before and after that lies here, as functions of an ``encode`` that
does it.

Shapes: B sequences, D width, T tokens of all sequences together, N items, Q queries.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.config import ModelOptions, OnlyWith, TrainingOptions
from hasten.data.tables import TRAIN, Dataset, Histories
from hasten.models.interface import Model, Sizes
from hasten.objectives.base import Phase
from hasten.objectives.next_item import NextItemBatch, NextItemModel, NextItemPhase
from hasten.ops.buckets import SLACK_CPU, SLACK_DEVICE, Bucket, bucket_positions, make_buckets
from hasten.ops.dtypes import wide
from hasten.ops.losses.catalogue_loss import catalogue_cross_entropy
from hasten.ops.losses.sampled_loss import gbce_beta, sampled_loss, sampled_loss_from_table
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable, Table
from hasten.scoring import Catalogue, FactorScorer, RecommenderQueries

#: sampled rows up to which inputs, targets and negatives are gathered together
FEW_ROWS = 1 << 17


class SequentialOptions(ModelOptions):
    """Options that all sequential models share; the values of SASRec's paper in brackets."""

    width: int = Field(64, ge=1, description="D, the width of everything [50]")
    max_length: int = Field(50, ge=1, description="most recent items that are seen [50, ml-1m 200]")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.5, description="[0.5, ml-1m 0.2]")
    loss: Literal["ce", "bce", "gbce"] = Field("ce", description="[bce]")
    negatives: Annotated[int, OnlyWith("loss", "bce", "gbce")] = Field(
        1, ge=1, description="sampled negatives per position, bce and gbce [1]"
    )
    calibration: Annotated[float, OnlyWith("loss", "gbce")] = Field(
        0.75, ge=0, le=1, description="gBCE's calibration t"
    )


def initialise(*linears: nn.Linear) -> None:
    """Xavier-normal weights, zero biases."""
    for linear in linears:
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)


def next_item_phase(
    model: NextItemModel, options: SequentialOptions, dataset: Dataset, training: TrainingOptions
) -> NextItemPhase:
    """Predict the next item at every position of the training sequences."""
    return NextItemPhase(
        model,
        dataset.histories(TRAIN),
        items=len(dataset.items),
        batch_size=training.batch_size,
        max_length=options.max_length,
        negatives=0 if options.loss == "ce" else options.negatives,
    )


def next_item_loss(
    batch: NextItemBatch,
    options: SequentialOptions,
    items: Table,
    encode: Callable[[Tensor], Tensor],
) -> Tensor:
    """Summed loss of the batch's targets. encode: item rows [T, D] of its tokens to states."""
    if batch.negatives is None:
        x_TD = encode(items.rows(batch.tokens))
        table = items.block(0, len(items))
        return catalogue_cross_entropy(batch.at_targets(x_TD), [table], batch.targets)
    beta = 1.0
    if options.loss == "gbce":
        beta = gbce_beta(options.negatives, len(items), options.calibration)
    ids = torch.cat([batch.targets[:, None], batch.negatives], dim=1)
    if ids.numel() > FEW_ROWS:
        x_TD = encode(items.rows(batch.tokens))
        return sampled_loss_from_table(batch.at_targets(x_TD), items, ids, beta)
    if len(batch.tokens) + ids.numel() > len(items):
        x_TD = encode(items.rows(batch.tokens))
        return sampled_loss(batch.at_targets(x_TD), items.rows(ids), beta)
    # of a large table, one gather for inputs, targets and negatives: its gradient is made once
    every = items.rows(torch.cat([batch.tokens, ids.view(-1)]))
    rows_TD, sampled = torch.split(every, [len(batch.tokens), ids.numel()])
    return sampled_loss(batch.at_targets(encode(rows_TD)), sampled.view(*ids.shape, -1), beta)


@dataclass(frozen=True)
class QueryTokens:
    """The ends of histories as flat tokens in buckets, to read the state at each one's last item.

    tokens: int64 [T] items, 0 in padding; places: int64 [T] distance from the end; times: int64 [T]
    unix seconds or None, where padding repeats the sequence's last; query: int64 [R] which query a
    row is; last: int64 [R] position of its last token.
    """

    tokens: Tensor
    places: Tensor
    times: Tensor | None
    buckets: Sequence[Bucket]
    query: Tensor
    last: Tensor

    @classmethod
    def of(cls, history: Histories, limit: int, device: torch.device) -> QueryTokens | None:
        """The last ``limit`` events of every history; None if all are empty."""
        lengths = np.minimum(history.lengths, limit)
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]
        if len(order) == 0:
            return None
        lengths = lengths[order]
        buckets = make_buckets(lengths, SLACK_CPU if device.type == "cpu" else SLACK_DEVICE)
        real = bucket_positions(lengths, buckets)
        ends = np.cumsum(lengths)
        places = np.repeat(ends, lengths) - 1 - np.arange(ends[-1])
        source = np.repeat(history.offsets[order + 1], lengths) - 1 - places
        size = buckets[-1].stop
        tokens, flat_places = np.zeros((2, size), np.int64)
        tokens[real], flat_places[real] = history.items[source], places
        times = None
        if history.times is not None:
            rows = np.repeat(
                np.arange(len(order)), np.concatenate([[b.length] * b.rows for b in buckets])
            )
            flat_times = history.times[history.offsets[order + 1] - 1][rows]
            flat_times[real] = history.times[source]
            times = torch.from_numpy(flat_times).to(device)
        return cls(
            tokens=torch.from_numpy(tokens).to(device),
            places=torch.from_numpy(flat_places).to(device),
            times=times,
            buckets=buckets,
            query=torch.from_numpy(order).to(device),
            last=torch.from_numpy(real[ends - 1]).to(device),
        )


def query_vectors(
    queries: RecommenderQueries,
    options: SequentialOptions,
    items: Table,
    device: torch.device,
    encode: Callable[[Tensor, QueryTokens], Tensor],
) -> Tensor:
    """[Q, D] float32 states at the last item of each history, zeros for an empty one.

    encode: item rows [T, D] of the tokens, and the tokens, to states.
    """
    vectors = torch.zeros(len(queries), options.width, device=device)
    tokens = QueryTokens.of(queries.history, options.max_length, device)
    if tokens is not None:
        x_TD = encode(items.rows(tokens.tokens), tokens)
        found = x_TD[tokens.last]
        vectors = vectors.to(wide(found))
        vectors[tokens.query] = found.to(vectors.dtype)
    return vectors


class SequentialModel(Model):
    """An item table and an encoder: a subclass defines :meth:`encode`.

    Trained to predict the next item at every position, by cross-entropy over all items or by
    sampled negatives (``model.loss``). The score of an item is its product with the state at the
    last item of the history.
    """

    sample = "sequences"
    scores_new_users = True
    options: SequentialOptions

    def __init__(self, options: SequentialOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.items: Table = EmbeddingTable(sizes.items, options.width)

    @abstractmethod
    def encode(self, rows_TD: Tensor, batch: NextItemBatch | QueryTokens) -> Tensor:
        """[T, D] states from the item rows [T, D] of flat, bucketed tokens."""

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        self.recompute = training.recompute
        return [next_item_phase(self, self.options, dataset, training)]

    def next_item_loss(self, batch: NextItemBatch) -> Tensor:
        return next_item_loss(batch, self.options, self.items, lambda x: self.encode(x, batch))

    def example_losses(self, batch: NextItemBatch) -> Tensor:
        """[T] the loss of each target, for ``hasten influence``."""
        states = self.states(batch)
        if batch.negatives is None:
            scores = states @ self.items.block(0, len(self.items)).T
            return F.cross_entropy(scores, batch.targets, reduction="none")
        ids = torch.cat([batch.targets[:, None], batch.negatives], dim=1)
        scores = (states[:, None] * self.items.rows(ids)).sum(-1)
        beta, options = 1.0, self.options
        if options.loss == "gbce":
            beta = gbce_beta(options.negatives, len(self.items), options.calibration)
        return beta * F.softplus(-scores[:, 0]) + F.softplus(scores[:, 1:]).sum(1)

    def states(self, batch: NextItemBatch) -> Tensor:
        """[T, D] the states from which the batch's targets are predicted."""
        return batch.at_targets(self.encode(self.items.rows(batch.tokens), batch))

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32, in the order of the queries; zeros for an empty history."""
        return query_vectors(queries, self.options, self.items, self.device, self.encode)

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        return FactorScorer(self.query_vectors(queries), Catalogue(self.items))
