"""Next-item phase of sequential models with the losses ``ce``, ``bce`` and ``gbce``.

The model predicts the next item at every position of a sequence. A global batch takes the next
``batch_size`` users of the epoch's permutation and sorts them, the longest first. Each of n
micro-batches takes every n-th user, so micro-batches have similar lengths and buckets contain
little padding.

Fixed shapes (:meth:`NextItemPhase.fix_shapes`, :mod:`.fixed_shapes`): a CUDA graph can be replayed
only for batches of the shapes that it was recorded with. For CUDA graphs, batches are therefore
filled with padding targets up to one of a few sizes. The loss of a padding target is a known
constant; the sum of these constants (``NextItemInputs.padding_loss``) is subtracted from the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from hasten.arrays import Int64
from hasten.data.tables import Histories
from hasten.errors import DataError
from hasten.objectives.base import Batch, Encoded, ExampleBatches, Term
from hasten.objectives.fixed_shapes import FixedShapes, with_padding_targets
from hasten.objectives.sequence_batch import NextItemInputs, SequenceBatch, sequence_batch
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.graph.csr import CSR
from hasten.ops.negatives import KnownItems, negatives
from hasten.ops.random import Stream, key
from hasten.ops.table import Table
from hasten.ops.transfer import to_device


@dataclass(frozen=True)
class NextItemMicroBatch(SequenceBatch):
    """The sequences of a micro-batch with S targets.

    targets: int64 [S] items. negatives: int64 [S, k] items, None for losses over the whole
    catalog. Both have a row for each padding target too.
    """

    targets: Tensor
    negatives: Tensor | None


class NextItemModel(Protocol):
    """What the phase calls on a model."""

    @property
    def items(self) -> Table: ...

    def next_item_loss(self, batch: NextItemMicroBatch) -> Tensor:
        """The sum of the loss over the targets."""
        ...

    @property
    def padding_target_loss(self) -> float:
        """The loss of one padding target: a constant, as its hidden state is a zero vector."""
        ...

    def regularizers(self) -> Sequence[Term]:
        """As :meth:`Phase.regularizers`."""
        ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """As :meth:`Phase.compile_with`."""
        ...


class NextItemPhase(ExampleBatches):
    """Next-item prediction for the users with at least two training interactions.

    prepare: transforms histories, for instance their times. For histories in memory-mapped files
    it is called for the users of each micro-batch.

    Raises:
        DataError: no user has two training interactions, or a user has no negative items.
    """

    name = "next_item"
    no_capture_reason: str | None = "the number of tokens varies between batches"
    #: the shapes of all batches of ``batch_size`` users; None: each batch has its own
    fixed: FixedShapes | None = None

    def __init__(
        self,
        model: NextItemModel,
        histories: Histories,
        *,
        item_count: int,
        batch_size: int,
        max_length: int,
        negative_count: int,
        prepare: Callable[[Histories], Histories] = lambda histories: histories,
    ) -> None:
        assert isinstance(model, nn.Module)
        #: the users that are trained on, as rows of ``histories``; a batch's ids index this array
        self.users = np.flatnonzero(histories.lengths >= 2)
        super().__init__(len(self.users), batch_size)
        # the same object with two types: a module, and the protocol
        self.module: nn.Module = model
        self.model: NextItemModel = model
        self.prepare = prepare
        self.histories = histories if histories.mapped else prepare(histories)
        if len(self.users) == 0:
            raise DataError(
                "no user has two or more training events, so there is no next item to predict: "
                "use longer histories or another split (data.split)"
            )
        #: the number of targets of each of ``users``: every event but the first is a target, and
        #: at most the last ``max_length`` are used
        self.target_counts = np.minimum(histories.lengths[self.users] - 1, max_length)
        self.max_length = max_length
        self.item_count, self.negative_count = item_count, negative_count
        self.known_items: KnownItems | None = None
        if negative_count:
            if a_user_has_all_items(histories, item_count):
                raise DataError(
                    f"a user has all {item_count} items in training, so there are no negatives to "
                    "sample: use a loss without negatives (model.loss=ce)"
                )
            if not histories.mapped:
                self.known_items = self.build_known_items(histories)

    def build_known_items(self, histories: Histories) -> KnownItems:
        """The items of each history, which are not sampled as its negatives."""
        rows = np.repeat(np.arange(len(histories)), histories.lengths)
        return KnownItems.build(rows, histories.items, len(histories), self.item_count)

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        ids = self.ids(seed, epoch, index).numpy()
        counts = self.target_counts[ids]
        # numpy sorts 16-bit integers by radix: 20 times as fast
        sort_keys = counts.astype(np.int16) if self.max_length < 1 << 15 else counts
        ids = ids[np.argsort(-sort_keys, kind="stable")]
        total = float(counts.sum())
        return Batch(torch.from_numpy(ids), seed, epoch, index, {"targets": total})

    def examples(self, batch: Batch) -> int:
        return int(batch.denominators["targets"])

    def parameters(self) -> Sequence[nn.Parameter]:
        return [p for p in self.module.parameters() if p.requires_grad]

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return self.model.compile_with(wrap)

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        """Wrap what builds a micro-batch, on the host and on the device; used for profiling."""
        self.micro_batch_inputs = wrap(self.micro_batch_inputs)  # type: ignore[method-assign]
        self.complete_micro_batch = wrap(self.complete_micro_batch)  # type: ignore[method-assign]

    def term_inputs(self, batch: Batch, ids: Tensor) -> Any:
        """The inputs of :meth:`terms` for these examples, built on the host."""
        inputs, shapes = self.micro_batch_inputs(ids.numpy()), self.shapes_for(ids)
        if shapes is None:
            return inputs
        epoch_key = key(batch.seed, Stream.NEGATIVES, batch.epoch)
        dtype = accumulation_dtype(self.model.items.block(0, 0))  # an empty block, for its dtype
        loss = torch.tensor(self.padding_target_loss(batch), dtype=dtype)
        capacity = shapes.capacity(len(inputs.targets))
        return with_padding_targets(inputs, capacity, epoch_key, loss)

    def shapes_for(self, ids: Tensor | Int64) -> FixedShapes | None:
        """The fixed shapes of a batch with these ids; None for one of another size.

        The last batch of an epoch has fewer users, and so has every micro-batch if a step has
        several: no CUDA graph is replayed for these.
        """
        return self.fixed if self.fixed is not None and self.fixed.rows == len(ids) else None

    def padding_target_loss(self, batch: Batch) -> float:
        """As :attr:`NextItemModel.padding_target_loss`."""
        return self.model.padding_target_loss

    def fix_shapes(self) -> None:
        if self.histories.mapped and self.negative_count:
            self.no_capture_reason = "the number of known items varies between batches"
            return
        self.fixed = FixedShapes.of(self.target_counts, self.batch_size)
        if self.fixed is not None:
            self.no_capture_reason = None

    def host_values(self, batch: Batch) -> Any:
        """What must be equal for a CUDA graph to be replayed: the denominator of the batch.

        () with fixed shapes, where the denominator is a tensor among the inputs.
        """
        return () if self.fixed is not None else super().host_values(batch)

    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        inputs: NextItemInputs = self.on_device(batch, ids)
        terms = self.terms_of(batch, self.complete_micro_batch(batch, inputs))
        return [without_padding_targets(term, inputs) for term in terms]

    def terms_of(self, batch: Batch, micro_batch: NextItemMicroBatch) -> Sequence[Term]:
        """The loss terms of a micro-batch."""
        return [Term("loss", self.model.next_item_loss(micro_batch), batch.denominators["targets"])]

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        return self.model.regularizers()

    @cached_property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    def build_micro_batch(self, batch: Batch, ids: Int64) -> NextItemMicroBatch:
        """A micro-batch on the model's device. ids: indices into ``users``, longest first."""
        return self.complete_micro_batch(
            batch, to_device(self.micro_batch_inputs(ids), self.device)
        )

    def micro_batch_inputs(self, ids: Int64) -> NextItemInputs:
        """The inputs of a micro-batch, on the host. ids: indices into ``users``, longest first."""
        # Three index spaces: `ids` index self.users. `users` are rows of self.histories, and `rows`
        # are rows of the local `histories`: these are self.histories or, if that is memory-mapped,
        # a copy of the users of this micro-batch, numbered from 0. `input_index` indexes
        # histories.items, the events of all rows.
        users, lengths = self.users[ids], self.target_counts[ids]
        histories, rows, known = self.histories, users, None
        if histories.mapped:
            histories, rows = self.prepare(histories.take(users)), np.arange(len(users))
        shapes = self.shapes_for(ids)
        length = None if shapes is None else shapes.length
        skip_last = 1  # the last event is only a target, not an input
        sequences, input_index = sequence_batch(
            histories, rows, lengths, self.device, skip_last, length
        )
        targets = torch.from_numpy(histories.items[input_index + 1])  # a target follows its input
        known_row_S1 = counter_S1 = None
        if self.negative_count:
            known = self.build_known_items(histories) if self.histories.mapped else None
            user_of_target, row_of_target = np.repeat(users, lengths), np.repeat(rows, lengths)
            # events from this input to the last input of its user: 0 for the last. Not
            # SequenceBatch.positions, which has entries for padding too
            positions = histories.ends[row_of_target] - 1 - skip_last - input_index
            # a distinct counter for each (user, position, negative), whatever the batch
            counter = (user_of_target * self.max_length + positions) * self.negative_count
            known_row_S1, counter_S1 = (
                torch.from_numpy(x)[:, None] for x in (row_of_target, counter)
            )
        return NextItemInputs(sequences, targets, known_row_S1, counter_S1, known)

    def complete_micro_batch(self, batch: Batch, inputs: NextItemInputs) -> NextItemMicroBatch:
        """The micro-batch with these inputs; its negatives are sampled where they are."""
        sampled_negatives = None
        if self.negative_count:
            assert inputs.known_rows is not None
            assert inputs.counters is not None
            device = inputs.counters.device
            if self.known_items is not None and self.known_items.keys.device != device:
                self.known_items = self.known_items.to(device)
            known = inputs.known_items or self.known_items
            assert known is not None
            counters = inputs.counters + torch.arange(self.negative_count, device=device)
            # a CUDA graph would repeat a number that it was recorded with: for graphs, the key of
            # the epoch is a tensor among the inputs
            epoch_key = key(batch.seed, Stream.NEGATIVES, batch.epoch)
            negatives_key = epoch_key if inputs.negatives_key is None else inputs.negatives_key
            sampled_negatives = negatives(known, inputs.known_rows, negatives_key, counters)
        return NextItemMicroBatch(
            **vars(inputs.sequences), targets=inputs.targets, negatives=sampled_negatives
        )


def a_user_has_all_items(histories: Histories, item_count: int) -> bool:
    """Whether some user has interacted with every item."""
    # only a user with at least as many events as there are items can have all of them
    candidates = np.flatnonzero(histories.lengths >= item_count)
    distinct_items = CSR.of(histories.take(candidates)).distinct().lengths
    return bool(distinct_items.max(initial=0) >= item_count)


def without_padding_targets(term: Term, inputs: NextItemInputs) -> Term:
    """The term without the loss of the padding targets, if the inputs have fixed shapes.

    ``padding_loss`` is subtracted from the numerator. ``factor``, the tensor of 1 / denominator,
    takes the place of the number ``denominator``: a replayed CUDA graph reads a tensor anew for
    each batch, and would repeat a number.
    """
    if inputs.padding_loss is None:
        return term
    numerator = term.numerator - inputs.padding_loss
    return replace(term, numerator=numerator, factor=inputs.inverse_denominator)
