"""Trees of tensors: one copy to the device, and the same values there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hasten.ops.transfer import send, to_device
from tests.device.recorder import recording
from tests.device.simulated import DeviceTensor
from tests.device.simulation import simulated


@dataclass(frozen=True, eq=False)
class Part:
    rows: torch.Tensor
    bounds: np.ndarray
    most: float
    more: list[torch.Tensor]


@dataclass(frozen=True, eq=False)
class Whole:
    part: Part
    named: dict[str, tuple[torch.Tensor | None, ...]]
    plain: tuple[int, str]


def tree() -> Whole:
    rows = torch.arange(7)
    more = [torch.tensor([True, False, True]), torch.tensor(2.5), torch.empty(0, 3)]
    named = {"a": (rows, None, torch.arange(12.0).view(3, 4).T), "b": (torch.arange(5).int(),)}
    return Whole(Part(rows, np.arange(3), 1.5, more), named, (1, "x"))


def leaves(found: Whole) -> list[torch.Tensor]:
    own = [found.part.rows, *found.part.more, *found.named["a"], *found.named["b"]]
    return [each for each in own if each is not None]


def test_on_the_cpu_the_tree_is_the_same_object():
    given = tree()
    assert to_device(given, torch.device("cpu")) is given


def test_all_tensors_arrive_by_one_copy_that_does_not_wait():
    given = tree()
    with simulated("cuda") as device, recording() as recorder:
        found = to_device(given, device)
        assert recorder.uploads.total() == 1
        assert not recorder.waits
        assert not recorder.kernels
        assert all(isinstance(each, DeviceTensor) for each in leaves(found))
        for one, other in zip(leaves(found), leaves(given), strict=True):
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            assert torch.equal(one.cpu(), other)
    assert found.part.bounds is given.part.bounds
    assert found.plain is not given.plain
    assert found.plain == (1, "x")
    assert found.part.most == 1.5


def test_a_tensor_that_occurs_twice_is_sent_once_and_one_of_the_device_is_left():
    with simulated("cuda") as device, recording():
        here = torch.arange(3, device=device)
        rows = torch.arange(100)
        once, twice = send((rows,), device), send((rows, rows, here), device)
        assert once.buffer.shape == twice.buffer.shape
        assert twice.tree[2] is here
        assert torch.equal(twice.received()[1].cpu(), rows)


def test_nothing_is_copied_where_there_is_no_tensor():
    with simulated("cuda") as device, recording() as recorder:
        assert to_device([(), None, 3], device) == [(), None, 3]
        assert not recorder.uploads
