"""The seam between a model and the engine: phases, batches and loss terms.

A phase is one loss with its batches and its parameters (KGAT has two, most models one).
The trainer calls, for every optimiser step:

    batch   = phase.plan(seed, epoch, index)          # pure; the same on every process
    encoded = phase.encode(batch)                     # once a step (whole-graph models), or ();
                                                      # of a phase with a table: the rows it reads
    for each micro-batch:  phase.terms(encoded, batch, rows)   -> terms of these rows
    once:                  phase.regularisers(encoded, batch)  -> terms that no row owns
    phase.sums()           tensors that the rows added to beside gradients: summed over processes
    phase.end_step(finite)

and minimises  sum over terms of  weight * sum / denominator.  Denominators are global and known
before the backward pass, so micro-batches and processes simply add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Term:
    """One summand of a loss: ``weight * sum / denominator``.

    sum: scalar tensor over the given rows only; denominator: over the whole global batch.
    """

    name: str
    sum: Tensor
    denominator: float
    weight: float = 1.0


@dataclass(frozen=True)
class Batch:
    """A global batch: what all processes together train on in one optimiser step.

    ids: int64 [B] examples in a fixed order (chosen so that striding balances the work).
    denominators: what the terms divide by, over the whole batch.
    group: rows that belong together (BatchNorm statistics): shares are cut between groups.
    seed, epoch, index: the key of everything random in the batch.
    """

    ids: Tensor
    seed: int
    epoch: int
    index: int
    denominators: Mapping[str, float] = field(default_factory=dict)
    group: int = 1

    def rows(self, part: int, parts: int) -> Tensor:
        """The ids of share ``part`` of ``parts`` (a process's micro-batch); may be empty.

        Groups are dealt out in turn; a last group of one row joins its neighbour, because
        no variance can be estimated from it.
        """
        if parts == 1:
            return self.ids
        if self.group == 1:
            return self.ids[part::parts]
        groups = list(torch.split(self.ids, self.group))
        if len(groups) > 1 and len(groups[-1]) == 1:
            last = groups.pop()
            groups[-1] = torch.cat([groups[-1], last])
        mine = groups[part::parts]
        return torch.cat(mine) if mine else self.ids[:0]


Encoded = tuple[Tensor, ...]


@dataclass(frozen=True)
class TableRows:
    """A table of which a step reads few rows, in ``encode`` alone, which returns them.

    weight: [N, D]; read: the distinct rows (int64 [S], on the host) of a batch, over all
    processes; at_most: the largest S.
    """

    weight: nn.Parameter
    read: Callable[[Batch], Tensor]
    at_most: int


class Phase(Protocol):
    """One loss, its batches and the parameters it updates."""

    name: str
    #: a table that may be moved row by row: its gradient is zero but for the rows of a batch
    table: TableRows | None

    def steps(self) -> int:
        """Optimiser steps an epoch."""
        ...

    def plan(self, seed: int, epoch: int, index: int) -> Batch:
        """The global batch of one step: a pure function of its arguments."""
        ...

    def start_epoch(self, seed: int, epoch: int) -> None:
        """Work once an epoch, before the phase's first step."""
        ...

    def end_epoch(self, seed: int, epoch: int) -> None:
        """Work once an epoch, after the phase's last step (KGAT refreshes its attention).

        A run that goes on from after that step repeats it: it must depend on the weights alone.
        """
        ...

    def encode(self, batch: Batch) -> Encoded:
        """Whole-graph state shared by all micro-batches of a step; () where there is none.

        The same on every process: what is random in it is keyed by the batch, not by the share.
        """
        ...

    def terms(self, encoded: Encoded, batch: Batch, rows: Tensor) -> Sequence[Term]:
        """The loss terms of these rows of the batch."""
        ...

    def regularisers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        """Loss terms that belong to no row: added once a step, by one process."""
        ...

    def sums(self) -> Sequence[Tensor]:
        """What the rows of this step added up beside gradients (BatchNorm's moments).

        Summed in place over processes after the backward passes; ``encode`` starts anew.
        """
        ...

    def end_step(self, finite: Tensor) -> None:
        """After the update of the parameters; finite: bool scalar, whether it was made."""
        ...

    def parameters(self) -> Sequence[nn.Parameter]:
        """Exactly the parameters this phase updates."""
        ...

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Replace the function that a step spends its time in by ``wrap(function)``.

        False where the phase has nothing to compile.
        """
        ...

    def examples(self, batch: Batch) -> int:
        """What the throughput counts (training targets, triples, ...) in this batch."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What must survive between epochs and cannot be recomputed (goes into checkpoints)."""
        ...

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of :meth:`state`."""
        ...


class SimplePhase:
    """The parts of a phase that most models leave empty; a phase may inherit or ignore it."""

    table: TableRows | None = None

    def start_epoch(self, seed: int, epoch: int) -> None:
        return None

    def end_epoch(self, seed: int, epoch: int) -> None:
        return None

    def encode(self, batch: Batch) -> Encoded:
        return ()

    def regularisers(self, encoded: Encoded, batch: Batch) -> Sequence[Term]:
        return ()

    def sums(self) -> Sequence[Tensor]:
        return ()

    def end_step(self, finite: Tensor) -> None:
        return None

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        return False

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ValueError(f"this phase keeps no state, but was given {sorted(state)}")
