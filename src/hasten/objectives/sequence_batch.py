"""Batches of ragged sequences, in buckets of similar length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hasten.arrays import Int64
from hasten.data.tables import Histories
from hasten.ops.buckets import (
    SLACK_CPU,
    SLACK_DEVICE,
    Bucket,
    flat_indices,
    make_buckets,
    pads_tokens,
    with_padding_bucket,
)
from hasten.ops.negatives import KnownItems


@dataclass(frozen=True)
class SequenceBatch:
    """Ragged sequences in buckets (see :mod:`hasten.ops.buckets`).

    T tokens, padding included. tokens: int64 [T] items. positions: int64 [T] distance to the end of
    the sequence. times: int64 [T] Unix seconds or None. real: int64 [S] indices of the tokens that
    are not padding, None if there is no padding. unused: bool [S, 1] targets of weight 0
    (:mod:`.fixed_shapes`); None: there are none. features: int64 and float32 [T, C], the entries of
    the features of the events (:class:`~hasten.data.event_features.EventEntries`); None: the data
    have none.
    """

    tokens: Tensor
    positions: Tensor
    times: Tensor | None
    buckets: Sequence[Bucket]
    real: Tensor | None
    unused: Tensor | None
    features: tuple[Tensor, Tensor] | None

    def at_targets(self, states: Tensor) -> Tensor:
        """[S, D] the states of the tokens that are not padding, in the order of the targets.

        Those of unused targets are zeros.
        """
        target_states = states if self.real is None else states.index_select(0, self.real)
        return target_states if self.unused is None else target_states.masked_fill(self.unused, 0.0)


def sequence_batch(
    histories: Histories,
    users: Int64,
    lengths: Int64,
    device: torch.device,
    skip_last: int = 0,
    rectangle: int | None = None,
) -> tuple[SequenceBatch, Int64]:
    """The sequences of these users, on the host: ``lengths`` consecutive items of each history.

    lengths: longest first. device: that the batch is for. skip_last: the number of items of the
    history after the sequence. rectangle: the length of all sequences with their padding; None:
    chosen. Also returns int64 [S]: for each token that is not padding, its index in
    ``histories.items``.
    """
    if rectangle is None:
        buckets = make_buckets(lengths, SLACK_CPU if device.type == "cpu" else SLACK_DEVICE)
    else:
        buckets = [Bucket(0, len(lengths), rectangle)]
    real = flat_indices(lengths, buckets)
    if pads_tokens(device):
        buckets = with_padding_bucket(buckets)
    ends = np.cumsum(lengths)
    positions = np.repeat(ends, lengths) - 1 - np.arange(ends[-1])
    input_index = np.repeat(histories.ends[users], lengths) - 1 - skip_last - positions
    size = buckets[-1].stop
    padded = size != len(real)

    def flat(values: NDArray[Any]) -> Tensor:
        if padded:
            filled = np.zeros((size, *values.shape[1:]), values.dtype)
            filled[real] = values
            values = filled
        return torch.from_numpy(values)

    events, features = histories.features, None
    if events is not None:
        features = (
            flat(events.value[input_index].astype(np.int64)),
            flat(events.weight[input_index]),
        )
    batch = SequenceBatch(
        flat(histories.items[input_index]),
        flat(positions),
        None if histories.times is None else flat(histories.times[input_index]),
        buckets,
        torch.from_numpy(real) if padded else None,
        None,
        features,
    )
    return batch, input_index


@dataclass(frozen=True)
class NextItemInputs:
    """What a micro-batch has from the host.

    known_rows, counters: int64 [S, 1], row of the known items and first counter of each target's
    negatives; None: without negatives. known_items: those items, if they are made for each
    micro-batch.
    A batch with :class:`FixedShapes` has three scalars besides. negatives_key: int64, the key of
    the negatives. inverse_denominator: 1 / the number of targets, without padding targets.
    padding_loss: the loss of all padding targets together.
    """

    sequences: SequenceBatch
    targets: Tensor
    known_rows: Tensor | None
    counters: Tensor | None
    known_items: KnownItems | None = None
    negatives_key: Tensor | None = None
    inverse_denominator: Tensor | None = None
    padding_loss: Tensor | None = None
