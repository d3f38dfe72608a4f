"""Collectives of simulated devices: those of gloo, on the CPU tensors behind.

What nccl would refuse is a mistake: tensors of the host among those of the device, and tensors of
the device in a group of gloo.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.device.recorder import current
from tests.device.simulated import DeviceTensor, unwrap

_COLLECTIVES = ("all_reduce", "reduce", "broadcast", "all_gather", "all_to_all_single")


def patch_collectives(patch: pytest.MonkeyPatch) -> None:
    """nccl is there, and takes tensors of the simulated device."""
    for name in _COLLECTIVES:
        patch.setattr(dist, name, _collective(name))
    patch.setattr(dist, "is_nccl_available", lambda: True)
    join = dist.init_process_group

    def init_process_group(backends: str, *, device_id: Any = None, **named: Any) -> None:
        assert device_id is not None, "nccl should know its device"
        join(backends.replace("nccl", "gloo"), **named)

    patch.setattr(dist, "init_process_group", init_process_group)
    patch.setattr(torch.cuda, "device_count", lambda: 8)


def _collective(name: str) -> Any:
    plain = getattr(dist, name)

    def run(*arguments: Any, **named: Any) -> Any:
        given = tree_leaves((arguments, named))
        tensors = [each for each in given if isinstance(each, Tensor)]
        ours = [each for each in tensors if isinstance(each, DeviceTensor)]
        if ours:
            current().kernels[name] += 1
            if len(ours) < len(tensors):
                current().mistake(f"{name} of device tensors and CPU tensors")
            if any(isinstance(each, dist.ProcessGroup) for each in given):
                current().mistake(f"{name} of a device tensor in a group of gloo")
            if not all(each.is_contiguous() for each in ours):
                current().mistake(f"{name} of a tensor that is not contiguous")
        return plain(*tree_map(unwrap, arguments), **tree_map(unwrap, named))

    return run
