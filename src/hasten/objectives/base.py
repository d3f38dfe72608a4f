"""The interface between objectives and the training loop: phases, batches and loss terms.

A phase is one loss with its batches and its parameters. Most models have one phase; KGAT has two.
In each optimizer step the trainer calls

    batch   = phase.plan(seed, epoch, index)          # pure; the same in every process
    encoded = phase.encode(batch)                     # once per step, () if there is nothing
    for each micro-batch:  phase.terms(encoded, batch, ids)   -> terms of these examples
    once:                  phase.regularizers(encoded, batch) -> terms of no single example
    phase.buffers_to_sum() summed over processes, beside the gradients
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
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from hasten.objectives.permutations import LastValueCache, cached_permutation
from hasten.ops.sharded_table import JoinedRows, Shard
from hasten.ops.transfer import to_device


@dataclass(frozen=True)
class Term:
    """One summand of a loss: ``weight * numerator / denominator``.

    numerator: scalar, the sum over the given examples only. denominator: of the global batch; a
    float64 tensor where a CUDA graph is replayed with others.
    """

    name: str
    numerator: Tensor
    denominator: float | Tensor
    weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """A global batch: the examples of all processes in one optimizer step.

    ids: int64 [B] examples, in an order that balances the work of strided slices.
    denominators: of the loss terms, over the whole batch. group: number of consecutive examples
    that share BatchNorm statistics; a micro-batch has whole groups. seed, epoch, index: the key of
    all random numbers of the batch. inputs: the device's, of the next call of the phase (see
    :meth:`Phase.on_device`), or None. packed: the buffer that they are views of, or None.
    """

    ids: Tensor
    seed: int
    epoch: int
    index: int
    denominators: Mapping[str, float] = field(default_factory=dict)
    group: int = 1
    inputs: Any = None
    packed: Tensor | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """Identifies the batch within a run."""
        return self.seed, self.epoch, self.index

    @property
    def most_parts(self) -> int:
        """Into how many micro-batches the examples can be divided: one example or group in each."""
        groups = -(-len(self.ids) // self.group)
        return groups - (groups > 1 and self.group > 1 and len(self.ids) % self.group == 1)

    def micro_batch(self, part: int, parts: int) -> Tensor:
        """The ids of micro-batch ``part`` of ``parts``; may be empty.

        Groups are assigned round-robin. A last group of one example joins the group before it,
        because one example has no variance.
        """
        if parts == 1:
            return self.ids
        if self.group == 1:
            return self.ids[part::parts]
        groups = list(torch.split(self.ids, self.group))
        if len(groups) > 1 and len(groups[-1]) == 1:
            last = groups.pop()
            groups[-1] = torch.cat([groups[-1], last])
        own = groups[part::parts]
        return torch.cat(own) if own else self.ids[:0]

    def parts(self, numbers: range, count: int, empty: bool = False) -> list[tuple[int, Tensor]]:
        """The micro-batches with these numbers, of ``count``, that have examples; all if empty."""
        found = ((number, self.micro_batch(number, count)) for number in numbers)
        return [(number, ids) for number, ids in found if empty or len(ids)]


Encoded = tuple[Tensor, ...]


@dataclass(frozen=True)
class TableRows:
    """A table of which a step reads few rows. Only ``encode`` reads it, and returns these rows.

    weight: [N, D]. read: the distinct rows (int64 [S], on the host) that a batch reads, over all
    processes. at_most: about the largest S, or that of a usual step. shard: the rows of the table
    that ``weight`` holds, if it is sharded over processes. others: further tables of that width,
    whose rows are numbered after those of ``weight``; then the phase has no other parameters.
    whole: the loss reads all rows too; all have gradients. beside: its vectors [N], sharded too.
    """

    weight: nn.Parameter
    read: Callable[[Batch], Tensor]
    at_most: int
    shard: Shard | JoinedRows | None = None
    others: tuple[nn.Parameter, ...] = ()
    whole: bool = False
    beside: tuple[nn.Parameter, ...] = ()

    @property
    def weights(self) -> tuple[nn.Parameter, ...]:
        """Those of all tables."""
        return self.weight, *self.others

    def __len__(self) -> int:
        """The rows of all tables."""
        return sum(map(len, self.weights))


class Phase(ABC):
    """One loss, its batches and the parameters that it updates.

    A subclass defines the abstract methods; the other methods do nothing by default.
    """

    name: str
    #: why no CUDA graph can replay a step; None: with inputs of one layout (hasten.ops.transfer),
    #: two steps are the same operations, with the same arguments
    varying: str | None = "the phase does not say that its steps are alike"
    #: a table whose gradient is zero except in the rows of a batch; None: there is none
    table: TableRows | None = None
    #: a table that is read by rows only if it is sharded over processes, when it becomes ``table``
    divisible: TableRows | None = None

    @abstractmethod
    def steps(self) -> int:
        """Optimizer steps per epoch."""

    @abstractmethod
    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """The global batch of a step. Depends on its arguments only."""

    def start_epoch(self, seed: int, epoch: int) -> None:
        """Called once per epoch, before the first step of the phase."""
        return

    def end_epoch(self, seed: int, epoch: int) -> None:
        """Called once per epoch, after the last step of the phase.

        A run that is resumed after that step calls it again, so its result must depend on the
        weights only.
        """
        return

    def encode_inputs(self, batch: Batch) -> Any:
        """What :meth:`encode` needs of the batch: a tree that :mod:`hasten.ops.transfer` moves.

        Made on the host, from the batch and the data only: a thread may prepare the next batch.
        """
        return ()

    def term_inputs(self, batch: Batch, ids: Tensor) -> Any:
        """What :meth:`terms` needs of these examples, as :meth:`encode_inputs`."""
        return ()

    def fix_shapes(self) -> None:
        """Give all batches of one size few layouts from now on, if the phase can."""
        return

    def host_values(self, batch: Batch) -> Any:
        """What a step takes from the host besides its inputs: a CUDA graph replays these values."""
        return tuple(batch.denominators.items())

    @property
    def collective(self) -> bool:
        """Whether :meth:`terms` is a collective, called for micro-batches without examples too."""
        return self.table is not None and self.table.whole

    @cached_property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self.parameters()[0].device

    def on_device(self, batch: Batch, ids: Tensor | None = None) -> Any:
        """The inputs of ``encode``, or with ids those of ``terms``, on the device.

        The step moves those of all micro-batches by one copy. Otherwise they are made here.
        """
        if batch.inputs is not None:
            return batch.inputs
        made = self.encode_inputs(batch) if ids is None else self.term_inputs(batch, ids)
        return to_device(made, self.device)

    def encode(self, batch: Batch) -> Encoded:
        """What all micro-batches of a step share, such as node embeddings of the whole graph.

        It must be the same in every process: random numbers are keyed by the batch.
        """
        return ()

    def start_step(self) -> None:
        """Called by ``encode``, or instead of it if the optimizer has read the rows of a table."""
        return

    @abstractmethod
    def terms(self, encoded: Encoded, batch: Batch, ids: Tensor) -> Sequence[Term]:
        """The loss terms of these examples of the batch, a micro-batch."""

    def regularizers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        """Loss terms that belong to no example: added once per step, by one process."""
        return ()

    def buffers_to_sum(self) -> Sequence[Tensor]:
        """Buffers that the micro-batches of this step added to, such as BatchNorm's moments.

        Summed in place over processes after the backward passes. ``encode`` resets them.
        """
        return ()

    def end_step(self, finite: Tensor) -> None:
        """Called after the update. finite: bool scalar, whether the parameters were updated."""
        return

    @abstractmethod
    def parameters(self) -> Sequence[nn.Parameter]:
        """Exactly the parameters that this phase updates."""

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Replace the most expensive function of a step by ``wrap(function)``.

        False if the phase has nothing to compile.
        """
        return False

    def wrap_batch_building(self, wrap: Callable[[Any], Any]) -> None:
        """Replace the functions that build the tensors of a batch by ``wrap(function)``.

        For profiling. These functions must not call each other.
        """
        self.encode_inputs = wrap(self.encode_inputs)  # type: ignore[method-assign]
        self.term_inputs = wrap(self.term_inputs)  # type: ignore[method-assign]

    @abstractmethod
    def examples(self, batch: Batch) -> int:
        """The number of examples of this batch (targets, triples, ...), for the throughput."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must keep between epochs because it cannot be recomputed."""
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`state`."""
        if state:
            raise ValueError(f"this phase keeps no state, but was given {sorted(state)}")


class ExampleBatches(Phase):
    """A phase over numbered examples: each example once per epoch, ``batch_size`` in a step.

    shuffle: ids follow the epoch's permutation; otherwise they count up, and a subclass maps them
    to examples, for instance with a ``PermutationSampler``.
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
