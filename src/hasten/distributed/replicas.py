"""Check that all processes hold the same data and weights; broadcast checkpoints."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.store import fingerprint
from hasten.distributed.processes import Processes
from hasten.distributed.row_shard import RowShard
from hasten.errors import DataError, ProcessesError
from hasten.ops.ranking.rank_all import RankCounts
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.exact_json import from_exact_json, to_exact_json

_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def require_same_data(processes: Processes, dataset: Any) -> None:
    """Raise DataError if the data differ between processes (files of another machine)."""
    if processes.world == 1:
        return
    found = processes.gather([fingerprint(dataset), socket.gethostname()], "comparing the data")
    other = next((rank for rank, (mark, _) in enumerate(found) if mark != found[0][0]), None)
    if other is not None:
        error = DataError(
            f"rank {other} (on {found[other][1]}) has read other data than rank 0 (on "
            f"{found[0][1]}): fingerprints {found[other][0][:12]} and {found[0][0][:12]}; the same "
            "files must lie at the same place on every machine"
        )
        error.agreed = True
        raise error


def require_same_weights(processes: Processes, model: nn.Module, when: str) -> None:
    """Compare the SHA-256 of all weights and buffers over the processes; else ProcessesError."""
    if processes.world == 1:
        return
    digest = hashlib.sha256()
    for tensor in model.state_dict().values():
        digest.update(_bytes(tensor.detach().cpu()).numpy().tobytes())
    _compare(processes, [digest.hexdigest()], ["the weights"], when)


def require_same_checksums(
    processes: Processes, model: nn.Module, when: str, sharded: Collection[str] = ()
) -> None:
    """Compare a checksum of every weight and buffer over the processes; cheaper than a hash.

    sharded: names of those of which each process holds other rows. Raises ProcessesError that names
    the first tensor that differs.
    """
    if processes.world == 1:
        return
    tensors = {name: t for name, t in model.state_dict().items() if name not in sharded}
    sums = [
        t.detach().contiguous().view(-1).view(_WHOLE[t.element_size()]).sum(dtype=torch.int64)
        for t in tensors.values()
    ]
    _compare(processes, torch.stack(sums).tolist() if sums else [], list(tensors), when)


def _compare(processes: Processes, own: list[Any], names: list[str], when: str) -> None:
    found = processes.gather(own, "comparing the weights")
    for rank, values in enumerate(found):
        for name, value, expected in zip(names, values, found[0], strict=True):
            if value != expected:
                error = ProcessesError(
                    f"{when}, {name} of rank {rank} differs from that of rank 0: the processes "
                    "would train different models; do they run the same versions?"
                )
                error.agreed = True
                raise error


def shared_checkpoint(
    processes: Processes,
    read: Callable[[], Checkpoint | None],
    shards: Mapping[tuple[str, str], RowShard] | None = None,
) -> Checkpoint | None:
    """The checkpoint that ``read`` returns on rank 0, on all ranks; only rank 0 needs the files.

    shards: (group, name) -> shard of the tensors of which each process gets its rows only.
    """
    if processes.world == 1:
        return read()
    kept: list[Checkpoint] = []

    def describe() -> dict[str, Any] | None:
        checkpoint = read()
        if checkpoint is None:
            return None
        kept.append(checkpoint)
        return {
            "path": str(checkpoint.path),
            "state": to_exact_json(checkpoint.state).decode(),
            "tensors": {
                group: {
                    name: [str(tensor.dtype).removeprefix("torch."), list(tensor.shape)]
                    for name, tensor in tensors.items()
                }
                for group, tensors in checkpoint.tensors.items()
            },
        }

    told = processes.run_on_rank0(describe, "the checkpoint")
    if told is None:
        return None
    tensors = kept[0].tensors if kept else _empty(told["tensors"])
    for group in told["tensors"]:
        for name in told["tensors"][group]:
            if shards is not None and (group, name) in shards:
                tensors[group][name] = shards[group, name].scatter(tensors[group][name])
                continue
            content = _bytes(tensors[group][name])
            if len(content):
                processes.broadcast_(content, f"the checkpoint's {name}")
                if not kept:
                    like = tensors[group][name]
                    tensors[group][name] = content.view(like.dtype).view(like.shape)
    if kept:
        return kept[0]
    return Checkpoint(Path(told["path"]), tensors, from_exact_json(told["state"].encode()))


def _empty(shapes: dict[str, Any]) -> dict[str, dict[str, Tensor]]:
    return {
        group: {
            name: torch.empty(shape, dtype=getattr(torch, dtype))
            for name, (dtype, shape) in named.items()
        }
        for group, named in shapes.items()
    }


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes of a tensor in one dimension; a view if it is contiguous."""
    return tensor.contiguous().view(-1).view(torch.uint8)


def merged_ranks(processes: Processes, ranks: RankCounts | None) -> RankCounts | None:
    """Sum the rank counts of all processes; None if one of them was stopped."""
    if not processes.joined:
        return ranks
    stopped = torch.tensor([float(ranks is None)])
    if processes.sum_(stopped, "the end of an evaluation").item() > 0 or ranks is None:
        return None
    for counts in vars(ranks).values():
        processes.sum_(counts, "the ranks of an evaluation")
    return ranks
