"""Base class of sequential models: options, batches of histories, losses and scores.

A subclass defines ``encode``: from the item embeddings of flat, ragged tokens (see
:mod:`hasten.ops.buckets`) to one state per token.

Shapes: B sequences, D width, T tokens of all sequences together, N items, Q queries.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.config import ModelOptions, OnlyWith, TrainingOptions
from hasten.data.tables import TRAIN, Dataset, Histories
from hasten.errors import UsageError
from hasten.models.interface import Model, Sizes
from hasten.models.rows import Rows
from hasten.models.sequential.event_inputs import EventInputs
from hasten.models.sequential.featured_items import FeaturedItems
from hasten.models.supports import Supports
from hasten.objectives.base import Phase, Term
from hasten.objectives.next_item import NextItemMicroBatch, NextItemPhase
from hasten.objectives.sampled_softmax import SampledSoftmaxMicroBatch, SampledSoftmaxPhase
from hasten.objectives.sequence_batch import SequenceBatch, sequence_batch
from hasten.objectives.shared_negatives import Sampling
from hasten.objectives.step_rows import StepRowsNextItemPhase, by_rows
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.losses.sampled_loss import gbce_beta, sampled_loss, sampled_loss_from_table
from hasten.ops.losses.sampled_softmax import sampled_softmax
from hasten.ops.losses.table_losses import table_cross_entropy
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.sharded_table import shardable_table
from hasten.ops.table import EmbeddingTable, FixedTable
from hasten.ops.transfer import to_device
from hasten.scoring import Catalog, FactorScorer, RecommenderQueries

#: most sampled rows for which inputs, targets and negatives are gathered together
FEW_ROWS = 1 << 17


class SequentialOptions(ModelOptions):
    """Options of all sequential models."""

    width: int = Field(64, ge=1, description="embedding dimension D (paper: 50)")
    max_length: int = Field(50, ge=1, description="most recent items that are read (ml-1m: 200)")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.5, description="dropout rate (ml-1m: 0.2)"
    )
    loss: Literal["ce", "bce", "gbce", "sampled-softmax"] = Field(
        "ce",
        description="ce: softmax over all items; sampled-softmax: over items sampled for each "
        "step; bce, gbce: negatives sampled for each position (paper: bce)",
    )
    negatives: Annotated[int | None, OnlyWith("loss", "bce", "gbce", "sampled-softmax")] = Field(
        None,
        ge=1,
        description="sampled items, per position for bce and gbce (none: 1, as in the paper), per "
        "step for sampled-softmax (none: 256)",
    )
    sampling: Annotated[Sampling, OnlyWith("loss", "sampled-softmax")] = Field(
        "uniform",
        description="sampled-softmax: items drawn uniformly, from the targets of the batch, or "
        "half of each; with logQ correction",
    )
    mask_known: Annotated[bool, OnlyWith("loss", "sampled-softmax")] = Field(
        False, description="sampled-softmax: no negatives that the user has in training"
    )
    calibration: Annotated[float, OnlyWith("loss", "gbce")] = Field(
        0.75, ge=0, le=1, description="calibration t of gbce"
    )

    @model_validator(mode="after")
    def _both_halves(self) -> SequentialOptions:
        if self.sampling == "mixed" and self.negatives == 1:
            raise ValueError("sampling=mixed needs negatives of 2 or more: half of each kind")
        return self

    @property
    def sampled(self) -> int:
        """The number of sampled items in effect."""
        if self.loss == "ce":
            return 0
        return self.negatives or (256 if self.loss == "sampled-softmax" else 1)


def initialize_linear(*linears: nn.Linear) -> None:
    """Xavier-normal weights, zero biases."""
    for linear in linears:
        nn.init.xavier_normal_(linear.weight)
        nn.init.zeros_(linear.bias)


class SequentialModel(Model):
    """An item table and an encoder: a subclass defines :meth:`encode`.

    Trained to predict the next item at every position, by cross-entropy over all items or by
    sampled negatives (``model.loss``). The score of an item is its product with the state at the
    last item of the history.
    """

    sample = "sequences"
    reads = "sequences"
    scores_new_users = True
    supports = Supports(shard_tables=True)
    #: whether ``encode`` adds :meth:`features_of` to the inputs
    reads_event_features: ClassVar[bool] = False
    options: SequentialOptions
    items: EmbeddingTable | FeaturedItems

    def __init__(self, options: SequentialOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        if sizes.item_values:
            self.items = FeaturedItems(sizes.items, options.width, sizes.item_values)
        else:
            self.items = shardable_table(sizes.items, options.width)
        self.event_inputs: EventInputs | None = None
        if sizes.event_values:
            if not self.reads_event_features:
                raise UsageError(f"data.event_features has no effect on {self.name}: leave it out")
            self.event_inputs = EventInputs(sizes.event_values, options.width)

    def attach(self, dataset: Dataset) -> None:
        if isinstance(self.items, FeaturedItems):
            self.items.attach(dataset)

    def encoded_once(self) -> AbstractContextManager[None]:
        items = self.items
        return items.computed_once() if isinstance(items, FeaturedItems) else nullcontext()

    def features_of(self, batch: SequenceBatch) -> Tensor | None:
        """[T, D] what the features of the events add to their inputs; None if there are none."""
        if self.event_inputs is None:
            return None
        assert batch.features is not None
        added: Tensor = self.event_inputs(batch.features)
        return added

    @abstractmethod
    def encode(self, items_TD: Tensor, batch: SequenceBatch) -> Tensor:
        """[T, D] states from the item rows [T, D] of flat, bucketed tokens."""

    def rows_of(self) -> Mapping[str, Rows]:
        rows = {"items.weight": Rows.of("items")}
        if isinstance(self.items, FeaturedItems):
            rows["items.values.weight"] = Rows.of("item_values")
        if self.event_inputs is not None:
            rows["event_inputs.weight"] = Rows.of("event_values")
        return rows

    def phases(self, dataset: Dataset, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: predict the next item at every position of the training sequences."""
        return [self.next_item_phase(dataset.histories(TRAIN), training)]

    def next_item_phase(
        self,
        histories: Histories,
        training: TrainingOptions,
        prepare: Callable[[Histories], Histories] = lambda histories: histories,
    ) -> NextItemPhase:
        """The phase over these histories. prepare: as of :class:`NextItemPhase`."""
        self.recompute = training.recompute
        options = self.options
        sizes: dict[str, Any] = {
            "item_count": self.sizes.items,
            "batch_size": training.batch_size,
            "max_length": options.max_length,
            "negative_count": options.sampled,
            "prepare": prepare,
        }
        if options.loss != "sampled-softmax":
            # regularizers read every row of the table
            sharded = training.shard_tables
            if by_rows(self.items, sharded, options.loss == "ce") and not self.regularizers():
                return StepRowsNextItemPhase(self, histories, sharded=sharded, **sizes)
            return NextItemPhase(self, histories, **sizes)
        phase = SampledSoftmaxPhase(
            self, histories, sampling=options.sampling, mask_known=options.mask_known, **sizes
        )
        if self.regularizers():  # they read every row of the table
            phase.table = None
        return phase

    def regularizers(self) -> Sequence[Term]:
        """Loss terms of the parameters alone, such as an L2 penalty."""
        return ()

    @property
    def _beta(self) -> float:
        """The weight of the positive term: gBCE's beta, 1 for BCE."""
        options = self.options
        if options.loss != "gbce":
            return 1.0
        return gbce_beta(options.sampled, len(self.items), options.calibration)

    def next_item_loss(self, batch: NextItemMicroBatch) -> Tensor:
        """The sum of the loss over the targets."""
        items = self.items
        if isinstance(batch, SampledSoftmaxMicroBatch):
            items_TD = FixedTable(batch.rows).rows(batch.tokens)
            states = batch.at_targets(self.encode(items_TD, batch))
            sample = batch.sampled, batch.log_weights, batch.masked
            return sampled_softmax(states, batch.rows, batch.targets, *sample)
        if batch.negatives is None:
            return table_cross_entropy(self.states(batch), items, batch.targets)
        ids = torch.cat([batch.targets[:, None], batch.negatives], dim=1)
        if ids.numel() > FEW_ROWS:
            source, places = items.within(ids)
            return sampled_loss_from_table(self.states(batch), source, places, self._beta)
        if len(batch.tokens) + ids.numel() > len(items):
            return sampled_loss(self.states(batch), items.rows(ids), self._beta)
        # a single gather from a large table, so that its gradient is built once
        rows = items.rows(torch.cat([batch.tokens, ids.view(-1)]))
        items_TD, sampled = torch.split(rows, [len(batch.tokens), ids.numel()])
        states = batch.at_targets(self.encode(items_TD, batch))
        return sampled_loss(states, sampled.view(*ids.shape, -1), self._beta)

    @property
    def padding_target_loss(self) -> float:
        """The loss of a target whose state is zeros: all its scores are 0."""
        if self.options.loss == "ce":
            return math.log(len(self.items))
        return (self._beta + self.options.sampled) * math.log(2)

    def example_losses(self, batch: NextItemMicroBatch) -> Tensor:
        """[S] the loss of each target, for ``hasten influence``; of sampled-softmax that of ce."""
        states = self.states(batch)
        if batch.negatives is None:
            scores = states @ self.items.block(0, len(self.items)).T
            return F.cross_entropy(scores, batch.targets, reduction="none")
        ids = torch.cat([batch.targets[:, None], batch.negatives], dim=1)
        scores = (states[:, None] * self.items.rows(ids)).sum(-1)
        return self._beta * F.softplus(-scores[:, 0]) + F.softplus(scores[:, 1:]).sum(1)

    def states(self, batch: NextItemMicroBatch) -> Tensor:
        """[S, D] the states from which the batch's targets are predicted."""
        if not len(batch.tokens):  # of no sequences, for a loss that all processes call
            return self.items.rows(batch.tokens)
        return batch.at_targets(self.encode(self.items.rows(batch.tokens), batch))

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32 states at the last item of each history, zeros for an empty history."""
        vectors = torch.zeros(len(queries), self.options.width, device=self.device)
        lengths = np.minimum(queries.history.lengths, self.options.max_length)
        order = np.argsort(-lengths, kind="stable")[: np.count_nonzero(lengths)]
        if len(order):
            lengths = lengths[order]
            host_batch, _ = sequence_batch(queries.history, order, lengths, self.device)
            ends = torch.from_numpy(np.cumsum(lengths) - 1)
            batch, last, rows = to_device((host_batch, ends, torch.from_numpy(order)), self.device)
            last = last if batch.real is None else batch.real[last]
            states = self.encode(self.items.rows(batch.tokens), batch)[last]
            vectors = vectors.to(accumulation_dtype(states))
            vectors[rows] = states.to(vectors.dtype)
        return vectors

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        return FactorScorer(self.query_vectors(queries), Catalog(self.items))
