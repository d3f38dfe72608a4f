"""HGT on an Apple GPU beside the CPU: the same losses, seconds a step, memory; ``make mps-check``.

The path that MPS takes (no sparse tensors, no fused sums) is compared with the CPU's on the same
weights first. Where there is no MPS the check says so and compares the two paths on the CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch

from hasten.config import RunConfig, TrainingOptions, TripleOptions
from hasten.data.graph.load import load_graph
from hasten.data.samples.typed_graph import make_medicine
from hasten.models.interface import Sizes
from hasten.models.typed_graph.hgt import HGT
from hasten.models.typed_graph.hgt_layer import HGTLayer
from hasten.models.typed_graph.hgt_options import HGTOptions
from hasten.runs.environment import peak_memory_bytes


def steps(device: str, path: str | None, genes: int, count: int) -> dict[str, object]:
    """Losses of some steps, and seconds a step after the first."""
    config = RunConfig(model=HGTOptions(), training=TrainingOptions(batch_size=5000))
    graph = load_graph(TripleOptions(), 0, make_medicine(genes).table)
    torch.manual_seed(0)
    model = HGT(HGTOptions(), Sizes.of(graph)).to(device)
    for layer in model.layers:
        assert isinstance(layer, HGTLayer)
        layer.path = path  # type: ignore[assignment]
    model.attach(graph)
    (phase,) = model.phases(graph, config.training)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, begin = [], time.perf_counter()
    for index in range(count + 1):
        if index == 1:
            begin = time.perf_counter()
        batch = phase.plan(0, 0, index % phase.steps())
        optimiser.zero_grad()
        terms = phase.terms(phase.encode(batch), batch, batch.ids)
        loss = torch.stack([t.numerator * t.weight / t.denominator for t in terms]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(float(loss.detach()))
    memory = torch.mps.driver_allocated_memory() if device == "mps" else peak_memory_bytes()
    return {
        "device": device,
        "path": path or "of the device",
        "losses": losses,
        "seconds_a_step": (time.perf_counter() - begin) / max(1, count),
        "memory_bytes": memory,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--genes", type=int, default=720, help="size of the made graph")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    found = [steps("cpu", path, options.genes, options.steps) for path in (None, "gather")]
    if torch.backends.mps.is_available():
        found.append(steps("mps", None, options.genes, options.steps))
    else:
        sys.stderr.write("no MPS here: only the path that it would take is compared, on the CPU\n")
    first = found[0]["losses"]
    assert isinstance(first, list)
    worst = 0.0
    for each in found:
        losses = each["losses"]
        assert isinstance(losses, list)
        apart = max(abs(a - b) / abs(a) for a, b in zip(first, losses, strict=True))
        worst = max(worst, apart)
        seconds, memory = each["seconds_a_step"], each["memory_bytes"]
        sys.stderr.write(
            f"{each['device']:>4}, path {each['path']}: {seconds:.3f} s a step, "
            f"{int(str(memory)) / 2**20:,.0f} MiB, losses apart {apart:.1e}\n"
        )
    sys.stdout.write(json.dumps(found) + "\n")
    if worst > 1e-3:
        sys.stderr.write(f"error: losses differ by {worst:.1e}, more than 1e-3\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
