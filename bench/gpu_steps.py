"""Real steps of every model on a device: no wait inside, time, launches, memory, the roofline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from bench.gpu_kernels import ceilings, events
from bench.gpu_operations import no_synchronisation
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.training.capture.step import refusal
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES, ModelCase, graph, sequences

#: settings that make the cases of the contract tests small
SMALL = {"model.width", "model.hidden", "model.max_length", "model.layers", "model.heads"}
USERS, ITEMS, ENTITIES = 4000, 3000, 5000
#: operations that read as many rows of their first argument as they return
GATHERS = {"embedding", "gather", "index", "index_select"}
FIRST = {case.model: case for case in reversed(CASES) if case.trains}


def model_steps(
    device: torch.device, models: Sequence[str] = tuple(FIRST), timed: int = 10
) -> dict[str, Any]:
    """For each phase of each model: its first steps wait for nothing; times of the next ones."""
    limits = ceilings(device) if device.type == "cuda" else None
    found: dict[str, dict[str, Any]] = {}
    for name in models:
        try:
            found |= _phases(FIRST[name], device, timed, limits)
        except Exception as error:  # noqa: BLE001 - recorded: one must not hide the others
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    failed = {name: each["error"] for name, each in found.items() if "error" in each}
    problem = {"error": str(failed)} if failed else {}
    return {"passed": not failed, "phases": found, **problem}


def _phases(
    case: ModelCase, device: torch.device, timed: int, limits: dict[str, float] | None
) -> dict[str, Any]:
    # the files of features have the rows of the contract's few items
    few = "data.features" in case.settings
    settings = {k: v for k, v in case.settings.items() if few or k not in SMALL}
    made = graph(ENTITIES, case.ring) if case.triples else sequences(USERS, ITEMS)
    config = build_config(case.model, None, None, (), settings)
    data = load_data(config, case.data if few else made)
    torch.manual_seed(0)
    model, found = build_model(config, data, device).train(), {}
    for number, phase in enumerate(model.phases(data, config.training)):
        precision = Precision("fp32", device)
        step = OptimizerStep(phase, number, config.training, precision, DataParallelRank(), device)
        refusal(step, config.training)  # gives batches the shapes that training gives them
        phase.start_epoch(0, 0)

        def take(index: int, phase: Any = phase, step: OptimizerStep = step) -> None:
            step(phase.plan(0, 0, index % phase.steps()), 1e-3)

        for index in range(3):  # kernels are compiled, libraries loaded
            take(index)
        with no_synchronisation(device.type == "cuda"):
            take(3)
        found[f"{case.model}, {phase.name}"] = _measured(take, device, timed, limits)
    return found


def _measured(
    take: Callable[[int], None], device: torch.device, timed: int, limits: dict[str, float] | None
) -> dict[str, Any]:
    """Milliseconds, launches, peak bytes; bytes and FLOPs counted, and their share of the time."""
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    times = [milliseconds(take, index, cuda) for index in range(timed)]
    peak = torch.cuda.max_memory_allocated(device) if cuda else None
    with Traffic() as traffic, FlopCounterMode(display=False) as flops:
        take(timed)
    found = {
        "ms": median(times), "launches": _launches(take, timed + 1) if cuda else None,
        "peak_bytes": peak, "bytes": traffic.bytes, "flops": flops.get_total_flops(),
    }  # fmt: skip
    if limits is not None:
        floor = max(found["flops"] / limits["flops"], found["bytes"] / limits["bytes"])
        found["share_of_roofline"] = 1e3 * floor / found["ms"]
    return found


def milliseconds(take: Callable[[int], None], index: int, cuda: bool) -> float:
    if not cuda:
        start = time.perf_counter()
        take(index)
        return 1e3 * (time.perf_counter() - start)
    begin, end = events()
    begin.record()
    take(index)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def _launches(take: Callable[[int], None], index: int) -> int:
    """Kernels of a step, without copies and fills."""
    from torch._C._autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        take(index)
        torch.cuda.synchronize()
    names = [each.name for each in seen.events() or () if each.device_type == DeviceType.CUDA]
    return sum(not name.startswith(("Memcpy", "Memset")) for name in names)


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The bytes that operations of PyTorch read and write; kernels in Triton are not seen."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        if not function.is_view:
            name = function._schema.name.removeprefix("aten::")
            read, written = _bytes((args, kwargs)), _bytes(out)
            if name == "index_copy_":  # reads and writes as many rows as the source has
                self.bytes += 2 * _bytes(args[3])
            else:
                self.bytes += 2 * written if name in GATHERS else read + written
        return out


def _bytes(tree: Any) -> int:
    return sum(each.nbytes for each in tree_leaves(tree) if isinstance(each, Tensor))
