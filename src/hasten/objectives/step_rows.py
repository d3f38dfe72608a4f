"""Phases with sampled negatives that gather the rows of large tables once per step.

The rows of all inputs, answers and negatives of the global batch are gathered once; tokens and
candidates are then places among them. Each process finds those of its own examples, and gets the
ids of the others from them; of a sharded table it reads its own only. The gradient is that of these
rows, and :class:`~hasten.training.optimizers.row_adam.RowAdam` updates no others. The result is
that of the same phase over the whole table, except for rounding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hasten.arrays import Int64, distinct
from hasten.objectives.base import Batch, Encoded, ExampleBatches, Term
from hasten.objectives.completion import (
    CompletionMicroBatch,
    CompletionModel,
    CompletionPhase,
    Examples,
)
from hasten.objectives.next_item import NextItemMicroBatch, NextItemPhase
from hasten.ops.permutations import LastValueCache
from hasten.ops.table import EmbeddingTable
from hasten.ops.table_rows import TableRows

#: rows of a table from which the phases are used: smaller ones are as fast as a whole
MANY_ROWS = 100_000
#: and elements, of tables with fewer and wider rows
MANY_ELEMENTS = 1 << 22
#: least rows of the table for each that a usual step reads: below, the whole table is faster
MIN_TABLE_TO_READ_RATIO = 4


def reads_few_rows(read: int, rows: int) -> bool:
    """Whether steps that read about so many rows should not read all rows of large tables."""
    return rows > MANY_ROWS and MIN_TABLE_TO_READ_RATIO * read <= rows


def by_rows(table: Any, sharded: str, whole: bool = False) -> bool:
    """Whether to use these phases for a table: a large one, or one that is to be sharded.

    sharded: ``training.shard_tables``. whole: the loss reads all rows, so the phases are needed if
    the table may be sharded. On a device they are used for tables that are to be sharded alone.
    """
    if not isinstance(table, EmbeddingTable):
        return False
    if table.weight.device.type != "cpu":
        return sharded == "always"
    if whole:
        return sharded != "never"
    is_large = len(table) > MANY_ROWS or table.weight.numel() > MANY_ELEMENTS
    return is_large or sharded == "always"


class StepRows(ExampleBatches):
    """What both phases do: before a phase in the bases of a class.

    If a usual step reads too many rows, ``table`` is None and they are that phase. So they are on a
    device unless the table is sharded. Call :meth:`read_from` after the phase's own ``__init__``.

    Micro-batches are built on the host, with their negatives, because the rows that a step reads
    follow from them.
    """

    def read_from(
        self,
        embeddings: EmbeddingTable,
        draws: float,
        sharded: str,
        whole: bool,
        beside: tuple[nn.Parameter, ...] = (),
    ) -> None:
        """embeddings: the table. draws: ids that a usual step reads, repeated ones too.

        sharded: ``always``: the table is to be sharded, however many rows a step reads. whole: the
        loss reads all rows besides: only a sharded table is read by rows. beside: as of
        :class:`.TableRows`.
        """
        self.embeddings = embeddings
        #: with its examples, which the entry keeps so that no others have their identity
        self._micro_batches: LastValueCache[tuple[Tensor, Any]] = LastValueCache()
        self._read: LastValueCache[Tensor] = LastValueCache()
        count = len(embeddings)
        expected_rows = math.ceil(count * -math.expm1(-draws / count))
        on_device = None if embeddings.weight.device.type == "cpu" else self.on_device
        if whole or on_device is not None:
            self.shardable = TableRows(
                embeddings.weight,
                self.read,
                expected_rows,
                whole=whole,
                beside=beside if whole else (),
                on_device=on_device,
                reads_local=True,
            )
        elif sharded == "always" or MIN_TABLE_TO_READ_RATIO * expected_rows <= count:
            self.table = TableRows(embeddings.weight, self.read, expected_rows, reads_local=True)

    @abstractmethod
    def make_micro_batch(self, batch: Batch, ids: Tensor) -> Any:
        """The micro-batch of these examples."""

    @abstractmethod
    def rows_read(self, micro_batch: Any) -> Sequence[Tensor]:
        """The rows that a micro-batch reads."""

    @abstractmethod
    def terms_of(self, batch: Batch, micro_batch: Any) -> Sequence[Term]:
        """The loss terms of a micro-batch."""

    def cached_micro_batch(self, batch: Batch, ids: Tensor) -> Any:
        """:meth:`make_micro_batch`, once if it is called with the same examples again."""
        made = self._micro_batches.get(
            (batch.key, id(ids)), lambda: (ids, self.make_micro_batch(batch, ids))
        )
        return made[1]

    def read(self, batch: Batch) -> Tensor:
        """int64 [R] the distinct rows that a step reads, ascending."""

        def find() -> Tensor:
            ids: list[Int64] = [np.empty(0, np.int64)]
            for each in batch.local_ids:
                micro_batch = self.cached_micro_batch(batch, each)
                ids += [rows.reshape(-1).numpy() for rows in self.rows_read(micro_batch)]
            rows = torch.from_numpy(distinct(np.concatenate(ids)))
            return (
                rows
                if self.union is None or batch.local_micro_batches is None
                else self.union(rows)
            )

        return self._read.get(batch.local_key, find)

    def encode_inputs(self, batch: Batch) -> Any:
        return super().encode_inputs(batch) if self.table is None else self.read(batch)

    def term_inputs(self, batch: Batch, ids: Tensor) -> Any:
        """The rows that the step reads, and the micro-batch."""
        if self.table is None:
            return super().term_inputs(batch, ids)
        return self.read(batch), self.cached_micro_batch(batch, ids)

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        if self.table is None:
            super().wrap_batch_building(wrap)
        else:
            self.make_micro_batch = wrap(self.make_micro_batch)  # type: ignore[method-assign]

    def encode(self, batch: Batch) -> Encoded:
        """The rows that the step reads."""
        encoded = super().encode(batch)
        if self.table is None:
            return encoded
        return (self.embeddings.rows(self.on_device(batch)),)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        if self.table is None:
            return super().terms(encoded, batch, ids)  # type: ignore[safe-super]
        rows, micro_batch = self.on_device(batch, ids)
        with self.embeddings.reading(rows, encoded[0]):
            return self.terms_of(batch, micro_batch)


class StepRowsNextItemPhase(StepRows, NextItemPhase):
    """Next item by ``bce`` or ``gbce``, with sampled negatives, or ``ce`` of a sharded table."""

    def __init__(self, *arguments: Any, sharded: str, **named: Any) -> None:
        super().__init__(*arguments, **named)
        items, sampled = self.model.items, self.negative_count
        assert isinstance(items, EmbeddingTable)
        targets = self.batch_size * float(self.target_counts.mean())
        self.read_from(items, targets * (2 + sampled), sharded, whole=sampled == 0)

    def make_micro_batch(self, batch: Batch, ids: Tensor) -> NextItemMicroBatch:
        if not len(ids):
            events, features = self.histories.features, None
            if events is not None:
                value, weight = events.value[:0].astype(np.int64), events.weight[:0]
                features = torch.from_numpy(value), torch.from_numpy(weight)
            return NextItemMicroBatch(
                ids, ids, None, (), None, None, features, targets=ids, negatives=None
            )
        return self.complete_micro_batch(batch, self.micro_batch_inputs(ids.numpy()))

    def rows_read(self, micro_batch: NextItemMicroBatch) -> Sequence[Tensor]:
        if micro_batch.negatives is None:
            return (micro_batch.tokens,)
        return micro_batch.tokens, micro_batch.targets, micro_batch.negatives

    def terms_of(self, batch: Batch, micro_batch: NextItemMicroBatch) -> Sequence[Term]:
        return NextItemPhase.terms_of(self, batch, micro_batch)


class StepRowsCompletionPhase(StepRows, CompletionPhase):
    """Queries with sampled negatives, or all entities of a sharded table.

    draws: as of :meth:`StepRows.read_from`; 0: the loss is over all entities.
    """

    def __init__(
        self,
        model: CompletionModel,
        examples: Examples,
        batch_size: int,
        entities: EmbeddingTable,
        draws: float,
        sharded: str,
    ) -> None:
        super().__init__(model, examples, batch_size)
        beside = tuple(self.module.get_parameter(name) for name in model.biases_of_entities)
        self.read_from(entities, draws or 2 * batch_size, sharded, whole=not draws, beside=beside)

    def make_micro_batch(self, batch: Batch, ids: Tensor) -> CompletionMicroBatch:
        return self.data.complete(batch, self.data.inputs(batch, ids.numpy()))

    def rows_read(self, micro_batch: CompletionMicroBatch) -> Sequence[Tensor]:
        if micro_batch.negatives is not None:
            assert micro_batch.target is not None
            return micro_batch.entity, micro_batch.target, micro_batch.negatives
        if micro_batch.shared is not None:
            return micro_batch.entity, micro_batch.triples()[2], micro_batch.shared.items
        return (
            (micro_batch.entity, micro_batch.triples()[2])
            if self.model.reads_answers
            else (micro_batch.entity,)
        )

    def terms_of(self, batch: Batch, micro_batch: CompletionMicroBatch) -> Sequence[Term]:
        return CompletionPhase.terms_of(self, batch, micro_batch)
