"""Phases with sampled negatives that gather the rows of large tables once per step.

The rows of all inputs, answers and negatives of the global batch are gathered once; tokens and
candidates are then places among them. The gradient is that of these rows, and
:class:`~hasten.training.optimizers.row_adam.RowAdam` updates no others. The result is that of the
same phase over the whole table, except for rounding.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.arrays import distinct
from hasten.objectives.base import Batch, Encoded, ExampleBatches, TableRows, Term
from hasten.objectives.completion import (
    CompletionMicroBatch,
    CompletionModel,
    CompletionPhase,
    Examples,
)
from hasten.objectives.next_item import NextItemMicroBatch, NextItemPhase
from hasten.objectives.permutations import LastValueCache
from hasten.ops.table import EmbeddingTable

#: rows of a table from which the phases are used: smaller ones are as fast as a whole
MANY_ROWS = 100_000
#: least rows of the table for each that a usual step reads: below, the whole table is faster
FEWEST = 4


def reads_few_rows(read: int, rows: int) -> bool:
    """Whether steps that read about so many rows should not read all rows of large tables."""
    return rows > MANY_ROWS and FEWEST * read <= rows


def by_rows(table: Any, sharded: bool) -> bool:
    """Whether to use these phases for a table: a large one, or one that is to be sharded."""
    if not isinstance(table, EmbeddingTable) or table.weight.device.type != "cpu":
        return False
    return sharded or len(table) > MANY_ROWS


class StepRows(ExampleBatches):
    """What both phases do: before a phase in the bases of a class.

    If a usual step reads too many rows, ``table`` is None and they are that phase. Call
    :meth:`read_from` after the phase's own ``__init__``.
    """

    def read_from(self, embeddings: EmbeddingTable, draws: float, sharded: bool) -> None:
        """embeddings: the table. draws: ids that a usual step reads, repeated ones too.

        sharded: whether the table is to be sharded, however many rows a step reads.
        """
        self.embeddings = embeddings
        self._micro_batch: LastValueCache[Any] = LastValueCache()
        self._read: LastValueCache[Tensor] = LastValueCache()
        count = len(embeddings)
        usual = math.ceil(count * -math.expm1(-draws / count))
        if sharded or FEWEST * usual <= count:
            self.table = TableRows(embeddings.weight, self.read, usual)

    @abstractmethod
    def laid_out(self, batch: Batch, ids: Tensor) -> Any:
        """The micro-batch of these examples."""

    @abstractmethod
    def ids_of(self, micro_batch: Any) -> Sequence[Tensor]:
        """The rows that a micro-batch reads."""

    @abstractmethod
    def terms_of(self, batch: Batch, micro_batch: Any) -> Sequence[Term]:
        """The loss terms of a micro-batch."""

    def whole(self, batch: Batch) -> Any:
        """The global batch as one micro-batch, once per step."""
        return self._micro_batch.get(batch.key, lambda: self.laid_out(batch, batch.ids))

    def read(self, batch: Batch) -> Tensor:
        """int64 [R] the distinct rows that a step reads, ascending."""

        def find() -> Tensor:
            ids = [each.reshape(-1).numpy() for each in self.ids_of(self.whole(batch))]
            return torch.from_numpy(distinct(np.concatenate(ids)))

        return self._read.get(batch.key, find)

    def encode(self, batch: Batch) -> Encoded:
        """The rows that the step reads."""
        encoded = super().encode(batch)
        if self.table is None:
            return encoded
        return (self.embeddings.rows(self.read(batch)),)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        if self.table is None:
            return super().terms(encoded, batch, ids)  # type: ignore[safe-super]
        micro_batch = self.whole(batch) if ids is batch.ids else self.laid_out(batch, ids)
        with self.embeddings.reading(self.read(batch), encoded[0]):
            return self.terms_of(batch, micro_batch)


class StepRowsNextItemPhase(StepRows, NextItemPhase):
    """Next item by binary cross-entropy with sampled negatives (``bce``, ``gbce``)."""

    def __init__(self, *arguments: Any, sharded: bool, **named: Any) -> None:
        super().__init__(*arguments, **named)
        assert isinstance(self.model.items, EmbeddingTable)
        targets = self.batch_size * float(self.target_counts.mean())
        self.read_from(self.model.items, targets * (2 + self.negative_count), sharded)

    def laid_out(self, batch: Batch, ids: Tensor) -> NextItemMicroBatch:
        return self.micro_batch(batch, self.sequences(ids.numpy()))

    def ids_of(self, made: NextItemMicroBatch) -> Sequence[Tensor]:
        assert made.negatives is not None
        return made.tokens, made.targets, made.negatives

    def terms_of(self, batch: Batch, micro_batch: NextItemMicroBatch) -> Sequence[Term]:
        return NextItemPhase.terms_of(self, batch, micro_batch)


class StepRowsCompletionPhase(StepRows, CompletionPhase):
    """Triples with sampled negatives (``loss=sampled``)."""

    def __init__(
        self,
        model: CompletionModel,
        examples: Examples,
        batch_size: int,
        entities: EmbeddingTable,
        negatives: int,
        sharded: bool,
    ) -> None:
        super().__init__(model, examples, batch_size)
        self.read_from(entities, batch_size * (2 + negatives), sharded)

    def laid_out(self, batch: Batch, ids: Tensor) -> CompletionMicroBatch:
        return self.data.complete(batch, self.data.inputs(batch, ids.numpy()))

    def ids_of(self, made: CompletionMicroBatch) -> Sequence[Tensor]:
        assert made.target is not None
        assert made.negatives is not None
        return made.entity, made.target, made.negatives

    def terms_of(self, batch: Batch, micro_batch: CompletionMicroBatch) -> Sequence[Term]:
        return CompletionPhase.terms_of(self, batch, micro_batch)
