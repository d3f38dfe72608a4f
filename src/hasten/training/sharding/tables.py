"""Embedding tables whose rows are sharded over the processes (``training.shard_tables``).

Each process holds the weights and Adam's moments of its rows. Checkpoints hold whole tables, so a
run resumes on any number of processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.distributed.processes import Processes
from hasten.distributed.row_shard import RowShard
from hasten.errors import ConfigurationError
from hasten.memory import memory_bytes
from hasten.objectives.base import Phase
from hasten.objectives.prefetch import MANY_ROWS
from hasten.ops.sharded_table import JoinedRows, ShardedTable
from hasten.ops.table import EmbeddingTable
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.tensor_file import ShardedTensor
from hasten.training.memory.limit import COPIES_WITH_ADAM
from hasten.training.optimizers.row_adam import ROW_FIELDS, RowAdam

#: with ``auto``: the largest part of a machine's memory that whole tables of all its processes may
#: take, with their moments
_MAX_MEMORY_SHARE = 0.5


@dataclass(frozen=True)
class ShardedRows(ShardedTensor):
    """A tensor of which this process holds the rows of its shard."""

    own: Tensor
    shard: RowShard

    @property
    def shape(self) -> Sequence[int]:  # type: ignore[override]
        return self.shard.total, *self.own.shape[1:]

    @property
    def dtype(self) -> torch.dtype:  # type: ignore[override]
        return self.own.dtype

    def pieces(self) -> Iterable[Tensor]:
        return self.shard.pieces(self.own)


@dataclass(frozen=True)
class ShardedTables:
    """The sharded tables of a run; none if it has one process.

    parameters: the shard of each table. tensors: (group, name) of a checkpoint -> its shard.
    computed: the shard of candidates whose vectors a graph encoder computes.
    """

    parameters: dict[nn.Parameter, RowShard] = field(default_factory=dict)
    tensors: dict[tuple[str, str], RowShard] = field(default_factory=dict)
    computed: RowShard | None = None

    def __bool__(self) -> bool:
        return bool(self.parameters)

    @property
    def names(self) -> list[str]:
        """The names of the sharded tables in the model, and of vectors beside them."""
        return [name for group, name in self.tensors if group == "weights"]

    @property
    def shard(self) -> RowShard | None:
        """The shard of the candidates that are ranked, the last; None: every process holds all."""
        return self.computed or next(reversed(self.parameters.values()), None)

    def whole(
        self, groups: Mapping[str, Mapping[str, Tensor]]
    ) -> dict[str, dict[str, Tensor | ShardedTensor]]:
        """The tensors of a checkpoint as those of the whole tables."""
        return {
            group: {
                name: ShardedRows(tensor, self.tensors[group, name])
                if (group, name) in self.tensors
                else tensor
                for name, tensor in tensors.items()
            }
            for group, tensors in groups.items()
        }

    def own_rows(self, checkpoint: Checkpoint) -> Checkpoint:
        """A checkpoint of whole tables, with the rows of this process only."""
        groups = {
            group: {
                name: tensor[shard.first : shard.stop].clone()
                if (shard := self.tensors.get((group, name))) is not None
                and len(tensor) == shard.total  # else read so
                else tensor
                for name, tensor in tensors.items()
            }
            for group, tensors in checkpoint.tensors.items()
        }
        return replace(checkpoint, tensors=groups)


def shard_tables(
    model: nn.Module, phases: Sequence[Phase], options: TrainingOptions, processes: Processes
) -> ShardedTables:
    """Divide the rows of the tables that the phases update by rows over the processes.

    Parameters stay the same objects and hold the rows of this process afterwards. ``auto`` shards
    if whole tables would need much of the memory of a machine, never on GPUs, where sharded tables
    are not tried yet. Raises ConfigurationError if ``always`` cannot.
    """
    chosen = options.shard_tables
    kept = chosen == "never" or (chosen == "auto" and processes.device.type != "cpu")
    if kept or not phases:
        return ShardedTables()
    tables = {m.weight: m for m in model.modules() if isinstance(m, EmbeddingTable)}
    problem = why_not(phases, tables, options, processes)
    if problem is not None:
        if chosen == "always":
            error = ConfigurationError(f"training.shard_tables=always: {problem}")
            error.agreed = True
            raise error
        return ShardedTables()
    size = sum(weight.numel() * weight.element_size() for weight in _weights(phases))
    needed = size * COPIES_WITH_ADAM * processes.local_world
    few = chosen == "auto" and needed <= _MAX_MEMORY_SHARE * memory_bytes()
    if processes.world == 1 or few:
        return ShardedTables()
    return divide_tables(model, phases, processes)


def divide_tables(model: nn.Module, phases: Sequence[Phase], processes: Processes) -> ShardedTables:
    """Shard the rows of tables that can be sharded (:func:`why_not`), even if one has them all."""
    on_host = processes.device.type == "cpu"
    tables = {m.weight: m for m in model.modules() if isinstance(m, EmbeddingTable)}
    read, weights = [phase.table or phase.shardable for phase in phases], _weights(phases)
    for weight in weights:
        if not isinstance(tables[weight], ShardedTable):  # else built so
            ShardedTable.shard_weight(tables[weight], RowShard(processes, len(weight)))
    parameters = {weight: _shard_of(tables[weight]) for weight in weights}
    vectors: dict[nn.Parameter, RowShard] = {}
    for rows in (each for each in read if each is not None and each.beside):
        shard, divided = parameters[rows.weight], tables[rows.weight]
        assert isinstance(divided, ShardedTable)
        divided.beside = rows.beside
        for vector in rows.beside:
            vectors[vector] = shard
            vector.data = vector.data[shard.first : shard.stop].clone()
    parameters = {**vectors, **parameters}
    for phase, table in zip(phases, read, strict=True):
        assert table is not None
        shards = [parameters[weight] for weight in table.weights]
        rows_held = JoinedRows(shards) if table.others else shards[0]
        # each process asks for the rows of its own examples, however few a step reads
        expected_rows = max(table.expected_rows, MANY_ROWS)
        on_device = None if on_host else phase.on_device
        phase.shard(
            replace(table, shard=rows_held, expected_rows=expected_rows, on_device=on_device)
        )
    counts = [each.candidates for each in read if each is not None and each.candidates is not None]
    computed = RowShard(processes, counts[0]) if counts else None
    return ShardedTables(parameters, sharded_tensors(model, phases), computed)


def _weights(phases: Sequence[Phase]) -> list[nn.Parameter]:
    """The tables that the phases read by rows."""
    read = (phase.table or phase.shardable for phase in phases)
    return list(dict.fromkeys(w for each in read if each is not None for w in each.weights))


def sharded_tensors(model: nn.Module, phases: Sequence[Phase]) -> dict[tuple[str, str], RowShard]:
    """(group, name) of the tensors of a checkpoint that are sharded, with their shards."""
    tables = [m for m in model.modules() if isinstance(m, ShardedTable)]
    parameters = {w: _shard_of(table) for table in tables for w in (table.weight, *table.beside)}
    found: dict[tuple[str, str], RowShard] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if tensor in parameters:
            found |= dict.fromkeys([("weights", name), ("training", name)], parameters[tensor])
    for phase in phases:
        for number, parameter in enumerate(phase.parameters()):
            if parameter in parameters:
                keys = [("optimisers", f"{phase.name}.{number}.{kept}") for kept in ROW_FIELDS]
                found |= dict.fromkeys(keys, parameters[parameter])
        for name, shard in phase.state_shards().items():
            assert isinstance(shard, RowShard)
            found["phases", f"{phase.name}.{name}"] = shard
    return found


def _shard_of(table: EmbeddingTable) -> RowShard:
    assert isinstance(table, ShardedTable)
    assert isinstance(table.shard, RowShard)
    return table.shard


def why_not(
    phases: Sequence[Phase],
    tables: Mapping[nn.Parameter, Any],
    options: TrainingOptions,
    processes: Processes,
) -> str | None:
    """Why the tables of these phases cannot be sharded; None if they can be."""
    reason = _why_not_with(options, processes)
    if reason is not None:
        return reason
    for phase in phases:
        table = phase.table or phase.shardable
        if table is None or not all(weight in tables for weight in table.weights):
            return (
                f"each step of the phase {phase.name} reads whole tables; losses that need only "
                "the rows of each process have no regularizers or label smoothing of whole tables"
            )
        counts = [len(tables[weight]) for weight in table.weights]
        counts += [] if table.candidates is None else [table.candidates]
        if (fewest := min(counts)) < processes.world:
            return f"a table has {fewest} rows for {processes.world} processes"
        if not table.whole and not RowAdam.is_exact(options):
            return (
                "row-wise Adam, which updates sharded tables of losses with sampled negatives, "
                "needs training.weight_decay=0, a positive training.eps and the square of its "
                "first beta below 0.98 of the second"
            )
    return None


def _why_not_with(options: TrainingOptions, processes: Processes) -> str | None:
    """Why no table can be sharded with these options; None if they can be."""
    alone = "takes steps in one process, without the rows of the others"
    if processes.device.type not in ("cpu", "cuda"):
        return f"the optimizers of sharded tables run on a CPU or on CUDA, not {processes.device}"
    if processes.device.type == "cuda" and processes.backend == "gloo":
        return "rows on CUDA devices are exchanged by nccl: leave distributed.backend at auto"
    if options.precision == "fp16":
        return "the optimizers of sharded tables have no loss scale for fp16"
    if processes.world > 1 and options.precision == "auto":
        return f"training.precision=auto {alone}: choose fp32 or bf16"
    if processes.world > 1 and options.compile != "off":
        return f"training.compile={options.compile} {alone}: choose off"
    return None
