"""Next-item phase of sequential models with the loss ``sampled-softmax``.

A step reads few rows of the item table: those of its tokens, targets and sampled items. They are
gathered once for the batch, so that time and memory do not grow with the catalog, apart from
the table itself (see :class:`~hasten.training.optimizers.row_adam.RowAdam`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import Int64, distinct
from hasten.data.tables import Histories
from hasten.objectives.base import Batch, Encoded, Term
from hasten.objectives.next_item import (
    NextItemMicroBatch,
    NextItemModel,
    NextItemPhase,
    without_padding_targets,
)
from hasten.objectives.sequence_batch import NextItemInputs
from hasten.objectives.shared_negatives import Sample, Sampling, SharedNegatives, masked_pairs
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.permutations import LastValueCache
from hasten.ops.table import EmbeddingTable
from hasten.ops.table_rows import TableRows, is_large_on_device, with_other_rows

#: users whose targets are counted at a time
_USERS = 1 << 16


@dataclass(frozen=True)
class SampledSoftmaxMicroBatch(NextItemMicroBatch):
    """A micro-batch whose tokens and targets are indices into ``rows``.

    rows: [R, D] of the items that the step reads. sampled: int64 [S], rows. log_weights: [S], the
    logQ corrections. masked: int64 ascending ``t * S + j``, no negatives.
    """

    rows: Tensor
    sampled: Tensor
    log_weights: Tensor
    masked: Tensor


@dataclass(frozen=True)
class SampledInputs:
    """Items that the step reads (int64 [R]) and samples (int64 [S]); the others as above."""

    read: Tensor
    items: Tensor
    log_weights: Tensor
    masked: Tensor


class SampledSoftmaxPhase(NextItemPhase):
    """Next-item prediction against ``negative_count`` items that all targets of a step share.

    mask_known: leave out the negatives that a user has in training, else only the target itself.

    With fixed shapes (:mod:`.fixed_shapes`) the items that are read get others, and those that are
    sampled get repetitions of the last one with the weight 0, at least one, which the padding of
    the masked pairs masks once more.
    """

    no_capture_reason: str | None = "each batch reads another number of distinct items"

    def __init__(
        self,
        model: NextItemModel,
        histories: Histories,
        *,
        item_count: int,
        batch_size: int,
        max_length: int,
        negative_count: int,
        sampling: Sampling,
        mask_known: bool,
        prepare: Callable[[Histories], Histories] = lambda histories: histories,
    ) -> None:
        super().__init__(
            model,
            histories,
            item_count=item_count,
            batch_size=batch_size,
            max_length=max_length,
            negative_count=0,  # none for each target: all targets of a step share theirs
            prepare=prepare,
        )
        self.mask_known, self.sample_size = mask_known, negative_count
        frequencies = np.zeros(item_count, np.int64)
        for ids in np.array_split(np.arange(self.count), -(-self.count // _USERS)):
            frequencies += np.bincount(self.last_items(ids), minlength=item_count)
        self.shared = SharedNegatives(frequencies, sampling, negative_count)
        self._drawn: LastValueCache[tuple[Tensor, Sample]] = LastValueCache()
        if isinstance(model.items, EmbeddingTable):
            longest = np.sort(self.target_counts)[-batch_size:]
            most = int(longest.sum()) + len(longest) + negative_count
            weight = model.items.weight
            on_device = self.on_device if is_large_on_device([weight]) else None
            self.table = TableRows(weight, self.read, most, on_device=on_device, reads_local=True)

    def capacity(self, ids: Int64) -> int | None:
        """The number of targets of these users with padding; None: without."""
        shapes = self.shapes_for(ids)
        return None if shapes is None else shapes.capacity(int(self.target_counts[ids].sum()))

    def padding_target_loss(self, batch: Batch) -> float:
        """``log(exp(0) + sum_j exp(0 + w_j))``: no item is masked."""
        return math.log1p(float(np.exp(self.drawn(batch)[1].log_weights).sum()))

    def last_items(self, ids: Int64, more: int = 0) -> Int64:
        """The targets of these users, one user after the other; ``more`` items before them too."""
        counts = self.target_counts[ids] + more
        stops = np.cumsum(counts)
        first = self.histories.ends[self.users[ids]] - stops
        source = np.repeat(first, counts) + np.arange(stops[-1])
        items: Int64 = self.histories.items[source].astype(np.int64, copy=False)
        return items

    def targets(self, ids: Int64, numbers: Int64) -> Int64:
        """Some of :meth:`last_items`: int64 [k] with these numbers."""
        stops = np.cumsum(self.target_counts[ids])
        user = np.searchsorted(stops, numbers, side="right")
        source = self.histories.ends[self.users[ids[user]]] - stops[user] + numbers
        items: Int64 = self.histories.items[source].astype(np.int64, copy=False)
        return items

    def sample(self, batch: Batch) -> tuple[Tensor, Sample]:
        """int64 [R] the distinct items that a step reads, ascending, and its sampled items."""
        ids = batch.ids.numpy()
        count = int(self.target_counts[ids].sum())
        sample = self.shared.sample(*batch.key, count, lambda numbers: self.targets(ids, numbers))
        items = [self.last_items(own.numpy(), more=1) for own in batch.local_ids if len(own)]
        if (
            self.union is not None and batch.local_micro_batches is not None
        ):  # all have the same sample
            own_items = torch.from_numpy(distinct(np.concatenate([sample.items[:0], *items])))
            items = [self.union(own_items).numpy()]
        read = distinct(np.concatenate([*items, sample.items]))
        if batch.local_micro_batches is None and (targets := self.capacity(ids)) is not None:
            rows = len(self.model.items)
            read = with_other_rows(read, min(rows, targets + len(ids) + self.sample_size), rows)
        return torch.from_numpy(read), sample

    def drawn(self, batch: Batch) -> tuple[Tensor, Sample]:
        """:meth:`sample`, once per step."""
        return self._drawn.get(batch.local_key, lambda: self.sample(batch))

    def read(self, batch: Batch) -> Tensor:
        """int64 [R] the distinct items that a step reads, ascending."""
        return self.drawn(batch)[0]

    def encode(self, batch: Batch) -> Encoded:
        """The rows of all items that the step reads."""
        return (self.model.items.rows(self.on_device(batch)),)

    def encode_inputs(self, batch: Batch) -> Tensor:
        return self.read(batch)

    def term_inputs(self, batch: Batch, ids: Tensor) -> tuple[NextItemInputs, SampledInputs]:
        return super().term_inputs(batch, ids), self.sampled(batch, ids.numpy())

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        inputs, sampled = self.on_device(batch, ids)
        micro_batch = self.complete_micro_batch(batch, inputs)
        loss = self.model.next_item_loss(self.within(encoded[0], micro_batch, sampled))
        return [without_padding_targets(Term("loss", loss, batch.denominators["targets"]), inputs)]

    def within(
        self, rows: Tensor, micro_batch: NextItemMicroBatch, inputs: SampledInputs
    ) -> SampledSoftmaxMicroBatch:
        """The micro-batch in terms of the step's rows."""
        places = inputs.read
        moved = {
            "tokens": torch.searchsorted(places, micro_batch.tokens),
            "targets": torch.searchsorted(places, micro_batch.targets),
        }
        return SampledSoftmaxMicroBatch(
            **{**vars(micro_batch), **moved},
            rows=rows,
            sampled=torch.searchsorted(places, inputs.items),
            log_weights=inputs.log_weights,
            masked=inputs.masked,
        )

    def sampled(self, batch: Batch, ids: Int64) -> SampledInputs:
        """What the micro-batch of these users has from the sample of the step, on the host."""
        read, sample = self.drawn(batch)
        items, log_weights = sample.items, sample.log_weights
        masked = self.masked(items, ids)
        if (targets := self.capacity(ids)) is not None:
            columns, more = self.sample_size + 1, self.sample_size + 1 - len(items)
            masked = masked // len(items) * columns + masked % len(items)
            most = targets
            while most < len(masked):
                most *= 2
            last = targets * columns - 1
            masked = np.pad(masked, (0, most - len(masked)), constant_values=last)
            items = np.pad(items, (0, more), "edge")
            log_weights = np.pad(log_weights, (0, more), constant_values=-np.inf)
        kind = accumulation_dtype(self.model.items.block(0, 0))
        weights = torch.from_numpy(log_weights).to(kind)
        return SampledInputs(read, torch.from_numpy(items), weights, torch.from_numpy(masked))

    def masked(self, sampled: Int64, ids: Int64) -> Int64:
        """Which of the sampled items are no negatives of which targets of these users."""
        if not self.mask_known:
            targets = self.last_items(ids)
            each = np.arange(len(targets) + 1)
            return masked_pairs(sampled, targets, each[:-1], each)
        owned = self.histories.take(self.users[ids])
        owner = np.repeat(np.arange(len(ids)), owned.lengths)
        offsets = np.concatenate([[0], np.cumsum(self.target_counts[ids])])
        return masked_pairs(sampled, owned.items, owner, offsets)

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        super().wrap_batch_building(wrap)
        self.sample = wrap(self.sample)  # type: ignore[method-assign]
        self.sampled = wrap(self.sampled)  # type: ignore[method-assign]
        self.within = wrap(self.within)  # type: ignore[method-assign]
