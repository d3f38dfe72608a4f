"""The interface between objectives and the training loop: phases, batches and loss terms.

A phase is one training objective: a loss with its batches, parameters and optimizer. Most models
have one phase; KGAT alternates two. For each optimizer step, the training loop calls

    batch   = phase.plan(seed, epoch, index)          # the same in every process
    encoded = phase.encode(batch)                     # what micro-batches share, or ()
    for each micro-batch:  phase.terms(encoded, batch, ids)   -> terms of its examples
    once:                  phase.regularizers(encoded, batch) -> terms that belong to no example
    phase.buffers_to_sum()                            # summed over processes, as gradients are
    phase.end_step(finite)

and minimizes  the sum over terms of  weight * numerator / denominator.
Loss denominators: a model returns the sum of its loss over examples and never divides it. The phase
divides by the number of examples of the global batch, ``batch.denominators["examples"]``. This
number is known before the backward pass, so the gradients of micro-batches and processes add up.
A phase whose terms have different numbers of examples has one for each; a regularizer has 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hasten.ops.permutations import LastValueCache, cached_permutation
from hasten.ops.sharded_table import Shard
from hasten.ops.table_rows import TableRows
from hasten.ops.transfer import to_device


@dataclass(frozen=True)
class Term:
    """One summand of a loss: ``weight * numerator / denominator``.

    numerator: scalar, the sum over the examples of the micro-batch. denominator: of the global
    batch. factor: ``weight / denominator`` in the type of the numerator, of a CUDA graph's step.
    """

    name: str
    numerator: Tensor
    denominator: float
    weight: float = 1.0
    factor: Tensor | None = None

    @property
    def multiplier(self) -> float | Tensor:
        """What the numerator is multiplied by."""
        return self.weight / self.denominator if self.factor is None else self.factor


@dataclass(frozen=True)
class Batch:
    """A global batch: the examples of all processes in one optimizer step.

    ids: int64 [B] examples. Micro-batches are strided slices, so ids are ordered to balance them.
    seed, epoch, index: identify the batch, and key its random numbers. denominators: of the loss
    terms, over the global batch. group: consecutive examples that share BatchNorm statistics, which
    micro-batches do not divide. inputs: device tensors of the next call of encode or terms
    (:meth:`Phase.on_device`), or None. packed: the buffer that they are views of, or None.
    local_micro_batches: (number, ids) of those of this process, of ``global_micro_batches`` on all
    processes; None: the batch is not split over processes.
    """

    ids: Tensor
    seed: int
    epoch: int
    index: int
    denominators: Mapping[str, float] = field(default_factory=dict)
    group: int = 1
    inputs: Any = None
    packed: Tensor | None = None
    local_micro_batches: Sequence[tuple[int, Tensor]] | None = None
    global_micro_batches: int = 1

    @property
    def key(self) -> tuple[int, int, int]:
        """Identifies the batch within a run."""
        return self.seed, self.epoch, self.index

    @property
    def local_key(self) -> tuple[int, ...]:
        """Identifies the examples of a process within a run."""
        return *self.key, self.global_micro_batches, *(n for n, _ in self.local_micro_batches or ())

    @property
    def max_micro_batches(self) -> int:
        """The largest number of micro-batches: one example, or one group, in each."""
        groups = -(-len(self.ids) // self.group)
        return groups - (groups > 1 and self.group > 1 and len(self.ids) % self.group == 1)

    def micro_batch_ids(self, number: int, count: int) -> Tensor:
        """The ids of micro-batch ``number`` of ``count``, whole groups; may be empty."""
        if count == 1:
            return self.ids
        if self.group == 1:
            return self.ids[number::count]
        groups = list(torch.split(self.ids, self.group))
        # one example alone has no variance
        if len(groups) > 1 and len(groups[-1]) == 1:
            groups[-2:] = [torch.cat(groups[-2:])]
        return torch.cat([self.ids[:0], *groups[number::count]])

    @property
    def local_ids(self) -> list[Tensor]:
        """The ids of each micro-batch of this process; of a batch of all processes: all its ids."""
        local = self.local_micro_batches
        return [self.ids] if local is None else [ids for _, ids in local if len(ids)]

    def for_process(self, numbers: range, count: int, empty: bool = False) -> Batch:
        """The batch of a process with these micro-batches, out of ``count`` on all processes."""
        if self.local_micro_batches is not None or len(numbers) == count:
            return self
        local = self.micro_batches(numbers, count, empty)
        return replace(self, local_micro_batches=local, global_micro_batches=count)

    def micro_batches(
        self, numbers: range, count: int, empty: bool = False
    ) -> list[tuple[int, Tensor]]:
        """(number, ids) of the non-empty micro-batches, out of ``count``; of all if ``empty``."""
        if self.local_micro_batches is not None:
            return list(self.local_micro_batches)
        return [(n, ids) for n in numbers if len(ids := self.micro_batch_ids(n, count)) or empty]


Encoded = tuple[Tensor, ...]


class Phase(ABC):
    """One training objective: a loss with its batches and the parameters that it updates.

    A subclass defines the abstract methods; the others do nothing by default.
    """

    name: str
    #: why steps cannot be replayed as a CUDA graph; None: those with the same layout of inputs can
    no_capture_reason: str | None = "the phase does not say that its steps are alike"
    #: True: the step seeds dropout once, before ``encode``, as a CUDA graph needs it. False:
    #: ``encode`` seeds what it draws, and the step seeds dropout anew for each micro-batch
    one_seed_per_step = False
    #: a table whose gradient is zero except in the rows of a batch, if there is one
    table: TableRows | None = None
    #: a table that is read by rows only if it is sharded over processes, when it becomes ``table``
    shardable: TableRows | None = None
    #: the distinct rows that all processes read, from those of each (a collective), if needed
    union: Callable[[Tensor], Tensor] | None = None

    @abstractmethod
    def steps(self) -> int:
        """Optimizer steps per epoch."""

    @abstractmethod
    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """The global batch of a step. Depends on its arguments only."""

    def largest_step(self, seed: int, epoch: int) -> int | None:
        """The step of an epoch that needs most memory; None: all need about the same."""
        return None

    def start_epoch(self, seed: int, epoch: int) -> None:
        """Called once per epoch, before the first step of the phase."""
        return

    def end_epoch(self, seed: int, epoch: int) -> None:
        """Called after the phase's last step of an epoch, and again if a run resumes there."""
        return

    def encode_inputs(self, batch: Batch) -> Any:
        """The inputs of :meth:`encode`: nested tensors that :mod:`hasten.ops.transfer` can copy.

        Built on the host from the batch and the data only, so a thread can prepare the next batch.
        """
        return ()

    def term_inputs(self, batch: Batch, ids: Tensor) -> Any:
        """The inputs of :meth:`terms` for these examples, as in :meth:`encode_inputs`."""
        return ()

    def fix_shapes(self) -> None:
        """From now on, pad batches to few different shapes, if the phase supports it."""
        return

    def host_values(self, batch: Batch) -> Any:
        """What a step reads from the batch itself: a CUDA graph is replayed only if it is equal."""
        return tuple(batch.denominators.items())

    def shard(self, table: TableRows) -> None:
        """Called once if the rows of the phase's table are sharded over processes."""
        self.table = table

    def state_shards(self) -> Mapping[str, Shard]:
        """The shards of tensors of :meth:`state` of which each process holds other rows."""
        return {}

    @property
    def communicates(self) -> bool:
        """Whether :meth:`terms` needs all processes: it is then called without examples too."""
        return self.table is not None and self.table.whole

    @cached_property
    def device(self) -> torch.device:
        """That of the parameters."""
        return self.parameters()[0].device

    def on_device(self, batch: Batch, ids: Tensor | None = None) -> Any:
        """The inputs of ``encode``, or with ids those of ``terms``, on the device.

        The training step copies those of all micro-batches at once; otherwise this copies them.
        """
        if batch.inputs is not None:
            return batch.inputs
        inputs = self.encode_inputs(batch) if ids is None else self.term_inputs(batch, ids)
        return to_device(inputs, self.device)

    def encode(self, batch: Batch) -> Encoded:
        """Compute what the micro-batches of a step share, such as embeddings of the whole graph.

        Key its random numbers by the batch: they must be the same in every process.
        """
        return ()

    def start_step(self) -> None:
        """Called by ``encode``, or in its place if the optimizer gathers the rows of ``table``."""
        return

    @abstractmethod
    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        """The loss terms of the examples ``ids``, a micro-batch."""

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        """Loss terms that belong to no example; added once per step, on rank 0."""
        return ()

    def buffers_to_sum(self) -> Sequence[Tensor]:
        """What micro-batches accumulate and ``encode`` resets; summed over processes, in place."""
        return ()

    def end_step(self, finite: Tensor) -> None:
        """Called after the update. finite: bool scalar, whether the parameters were updated."""
        return

    @abstractmethod
    def parameters(self) -> Sequence[nn.Parameter]:
        """Exactly the parameters that this phase updates."""

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Replace the most expensive function of a step by ``wrap(function)``; False: none."""
        return False

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        """Wrap the functions that build a batch, none of which calls another; for profiling."""
        self.encode_inputs = wrap(self.encode_inputs)  # type: ignore[method-assign]
        self.term_inputs = wrap(self.term_inputs)  # type: ignore[method-assign]

    @abstractmethod
    def examples(self, batch: Batch) -> int:
        """The number of examples of this batch (targets, triples, ...), for the throughput."""

    def state(self) -> dict[str, Tensor]:
        """State for checkpoints that cannot be recomputed from the weights."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`state` returned."""
        if state:
            raise ValueError(f"this phase keeps no state, but was given {sorted(state)}")


class ExampleBatches(Phase):
    """A phase over numbered examples: each example once per epoch, ``batch_size`` in a step.

    shuffle: ids in the order of the epoch's permutation; else ascending, and a subclass maps them.
    """

    def __init__(self, count: int, batch_size: int, *, shuffle: bool = True) -> None:
        self.count, self.batch_size, self.shuffle = count, batch_size, shuffle
        self._permutation: LastValueCache[Tensor] = LastValueCache()

    def steps(self) -> int:
        return -(-self.count // self.batch_size)

    def ids(self, seed: int, epoch: int, index: int) -> Tensor:
        """int64 [B]: the examples of a step."""
        start = index * self.batch_size
        stop = self.count if index == self.steps() - 1 else start + self.batch_size
        if not self.shuffle:
            return torch.arange(start, stop)
        return cached_permutation(self._permutation, self.count, seed, epoch)[start:stop]

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        ids = self.ids(seed, epoch, index)
        return Batch(ids, seed, epoch, index, {"examples": float(len(ids))})

    def examples(self, batch: Batch) -> int:
        return int(batch.denominators["examples"])
