"""The simulation itself: it catches what is planted, and computes what the CPU computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from hasten.training.state import Totals
from tests.device.recorder import difference, recording
from tests.device.simulated import DeviceTensor
from tests.device.simulation import simulated


@pytest.fixture
def device():
    with simulated("cuda") as found:
        yield found


@pytest.fixture
def x(device):
    return torch.arange(6.0).view(2, 3).to(device)


def test_tensors_are_on_the_device_and_results_stay_there(x, device):
    assert isinstance(x + 1, DeviceTensor)
    assert (x + 1).device == device
    assert torch.zeros(2, device=device).is_cuda
    assert not torch.zeros(2).is_cuda
    assert (x.cpu() + 1).device.type == "cpu"
    assert x.to(device) is x


def test_an_operation_is_a_kernel_and_a_view_is_none(x, device):
    with recording() as found:
        y = (x.T[1:].reshape(-1) * 2).sum()
        torch.zeros(3, device=device)
        x.new_empty(4)
    assert y.device == device
    assert found.kernels == {"clone": 1, "mul": 1, "sum": 1, "zeros": 1}
    assert not found.waits
    assert not found.uploads


@pytest.mark.parametrize(
    "plant",
    [
        lambda x: x.sum().item(),
        lambda x: float(x[0, 0]),
        lambda x: bool((x > 0).all()),
        lambda x: x.cpu(),
        lambda x: x.tolist(),
        lambda x: x.nonzero(),
        lambda x: x[x > 1],
        lambda x: x.masked_select(x > 1),
        torch.unique,
        lambda x: torch.repeat_interleave(x[0].long()),
        lambda x: x[0].repeat_interleave(x[0].long()),
        lambda x: torch.equal(x, x),
        lambda x: x.new_tensor([1, 2]),
        lambda x: torch.tensor([1, 2], device=x.device),
        lambda x: torch.ones(3).to(x.device),
        lambda x: torch.ones(3).to(x.device, non_blocking=True),  # unpinned memory
        lambda x: torch.ones(3).pin_memory().to(x.device),
        lambda x: x[torch.tensor([0, 1])],  # the indices are copied
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_a_synchronization_is_counted(plant, x):
    with recording() as found:
        plant(x)
    assert found.waits.total() == 1, found.waits
    assert not found.mistakes


@pytest.mark.parametrize(
    "plant",
    [
        lambda x: x[0].repeat_interleave(x[0].long(), output_size=3),
        lambda x: x.masked_fill_(x > 1, 0.0),
        lambda x: x.__setitem__(x > 1, 0.0),
        lambda x: x.index_select(0, torch.zeros(2, dtype=torch.int64, device=x.device)),
        lambda x: torch.ones(3).pin_memory().to(x.device, non_blocking=True),
        lambda x: torch.empty(3, pin_memory=True)[1:].to(x.device, non_blocking=True),
        lambda x: x[0].copy_(torch.ones(3).pin_memory(), non_blocking=True),
    ],
)
def test_what_need_not_wait_is_not_counted_as_waiting(plant, x):
    with recording() as found:
        plant(x)
    assert not found.waits
    assert not found.mistakes


def test_a_cpu_tensor_among_those_of_the_device_is_a_mistake(x):
    for plant in (lambda: x + torch.ones(3), lambda: torch.cat([x, torch.ones(1, 3)])):
        with recording() as found:
            plant()
        assert found.mistakes.total() == 1
    with recording() as found:
        x + torch.tensor(2.0)  # a number may come from the host
    assert not found.mistakes
    with pytest.raises(TypeError, match="numpy"):
        x.numpy()


def test_what_mps_lacks_is_a_mistake():
    with simulated("mps") as device, recording() as found:
        x = torch.ones(4).to(device)
        x.sort()
        assert not found.mistakes
        x.double()
        torch.segment_reduce(x, "sum", lengths=torch.full((2,), 2, device=device))
        torch.ones(2, dtype=torch.float64).to(device)
    told = " ".join(found.mistakes)
    assert "float64 of _to_copy" in told
    assert "segment_reduce is missing on MPS" in told
    assert "float64 to MPS" in told


def test_learns_as_on_the_cpu(device):
    """Autograd, SDPA, gradients of split outputs, fused Adam and autocast: the same numbers."""

    def weights(on: torch.device, dtype: torch.dtype | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layer, data = nn.Linear(4, 8), torch.randn(2, 5, 4)
        layer, data = layer.to(on), data.to(on)
        optimizer = torch.optim.Adam(layer.parameters(), fused=True)
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast(on.type, dtype or torch.bfloat16, enabled=dtype is not None):
                first, second = layer(data).split(4, -1)[0], layer(data)[..., 4:]
                out = functional.scaled_dot_product_attention(first, second, data, is_causal=True)
            out.float().square().sum().backward()
            torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
            optimizer.step()
        return [p.detach().cpu() for p in layer.parameters()]

    for dtype in (None, torch.bfloat16):
        with recording() as found:
            ours = weights(device, dtype)
        assert not found.mistakes, found.mistakes
        assert found.downloads.total() == found.waits.total() - found.uploads.total() == 2
        for one, other in zip(ours, weights(torch.device("cpu"), dtype), strict=True):
            assert torch.equal(one, other)


def test_steps_that_a_graph_cannot_replay_are_told_apart(x):
    def step(size: int, factor: float) -> object:
        with recording() as found:
            x[:size].mul(factor).sum()
        return found

    first = step(2, 1.0)
    assert difference(first, step(2, 1.0)) is None
    assert "shapes" in difference(first, step(1, 1.0))
    assert "arguments" in difference(first, step(2, 3.0))
    with recording() as shorter:
        x[:2].mul(1.0)
    assert "numbers of calls" in difference(first, shorter)


def test_events_name_the_line_that_caused_them(x):
    with recording() as found:
        Totals().add_losses("phase", {"loss": x.sum()})
    (event,) = found.waits
    assert event.startswith("_local_scalar_dense at training/state.py:")


def test_torch_is_as_before_afterwards():
    before = torch.zeros, torch.Tensor.to, torch.autograd.backward, torch.cuda.is_available()
    with simulated("cuda"):
        assert torch.zeros is not before[0]
    assert before == (
        torch.zeros, torch.Tensor.to, torch.autograd.backward, torch.cuda.is_available()
    )  # fmt: skip
