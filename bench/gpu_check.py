"""Checks and times on a CUDA device, into a dated result: ``make gpu-check``.

Operations and Triton kernels against their references, times of the kernels, training steps in CUDA
graphs with the weights of the usual ones, steps of every model that may not wait for the device,
with their times, launches and memory, the same beside plain PyTorch, the guard against bad
gradients without a host synchronisation, MMGCN's losses in half precision, SASRec in every
precision and compiled, repeated runs under ``deterministic``, the peak memory that plans predict,
the process group (nccl) with as many processes as there are devices, sharded tables beside whole
ones.
Parts that check run beside each other, each in a process of its own; then parts that measure time
run alone (:mod:`.gpu_parts`).
Ends with 0 if everything passed, 1 if something did not, 2 where there is no such device.

    python -m bench.gpu_check [--device cuda] [--quick] [--no-compile]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.gpu_parts import run_part, run_parts, synthetic, verdict
from bench.machine import commit, describe_machine
from bench.results import RESULTS, write_result


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu tries the check itself out")
    parser.add_argument("--quick", action="store_true", help="a small data set")
    parser.add_argument("--no-contract", action="store_true", help="leave the test suite out")
    parser.add_argument("--no-compile", action="store_true", help="leave the compiled runs out")
    parser.add_argument("--part", help="this part alone, and its outcome as JSON")
    options = parser.parse_args(arguments)

    import torch

    if options.device.startswith("cuda") and not torch.cuda.is_available():
        print(
            f"gpu-check: no CUDA device (torch {torch.__version__}, CUDA {torch.version.cuda}); "
            "run it where there is one, with a torch built for it (make gpu-check GPU_PYTHON=...)",
            file=sys.stderr,
        )
        return 2
    device = torch.device(options.device)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if options.part:
        outcome = run_part(options.part, device, options.quick, not options.no_compile)
        print(json.dumps(outcome, default=str))
        return 0 if outcome["passed"] else 1
    result = check(
        device,
        quick=options.quick,
        compiled=not options.no_compile,
        contract=not options.no_contract,
    )
    path = write_result(result, markdown(result), results)
    out = os.environ.get("OUT")
    if out:  # where a machine without a way to commit hands its files back
        for file in (path, path.with_suffix(".md")):
            (Path(out) / file.name).write_text(file.read_text())
    print(markdown(result))
    return 0 if result["passed"] else 1


def check(device: Any, quick: bool, compiled: bool, contract: bool) -> dict[str, Any]:
    """Every part; what fails is recorded and does not keep the others from running."""
    import torch

    begin = time.perf_counter()
    left_out = set() if contract else {"contract"}
    flags = ["--device", str(device)]
    flags += ["--quick"] * quick + ["--no-compile"] * (not compiled)
    outcomes = run_parts(flags, left_out, limited=device.type == "cuda")
    training = outcomes.pop("training")
    runs = training.get("runs", [{"name": "training", **training}])
    again = outcomes.pop("repeated")
    size = synthetic(quick)
    return {
        "name": "gpu-check" if device.type == "cuda" else f"gpu-check-on-{device.type}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "device": describe_device(device),
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "data": f"{size.users} users, {size.items} items, at most {size.longest} events",
        "operations": outcomes,
        "training": runs,
        "repeated": again,
        "passed": all(part["passed"] for part in [*outcomes.values(), *runs, again]),
        "seconds": round(time.perf_counter() - begin, 1),
    }


def describe_device(device: Any) -> dict[str, Any]:
    import torch

    if device.type != "cuda":
        return {"name": str(device)}
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "memory_gib": round(properties.total_memory / 2**30, 1),
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
    }


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    device, versions = result["device"], result["versions"]
    passed = "everything passed" if result["passed"] else "**something failed**"
    lines = [
        f"# Checks on {device['name']}: {passed}",
        "",
        f"{result['date']}, commit {result['commit']}, torch {versions['torch']}, Python "
        f"{versions['python']}, {json.dumps(device)}, {result['seconds']} s in all. Synthetic "
        f"data: {result['data']}.",
        "",
        "| training | passed | s an epoch | examples/s | peak device MiB | test |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for run in result["training"]:
        if "error" in run:
            lines.append(f"| {run['name']} | no: {run['error'][:200]} | | | | |")
            continue
        memory = run["peak_device_bytes"]
        test = ", ".join(f"{name} {value:.4f}" for name, value in run["test"].items())
        lines.append(
            f"| {run['name']} | {verdict(run)} | {min(run['epoch_seconds']):.3f} "
            f"| {run['examples_per_second']:,.0f} "
            f"| {'' if memory is None else f'{memory / 2**20:.0f}'} | {test} |"
        )
    lines += ["", "| check | outcome | seconds |", "| --- | --- | --- |"]
    for name, outcome in {**result["operations"], "repeated": result["repeated"]}.items():
        seconds = outcome.get("seconds", "")
        lines.append(f"| {name.replace('_', ' ')} | {verdict(outcome)} | {seconds} |")
    lines += kernel_lines(result["operations"].get("triton_times", {}).get("times", {}))
    lines += step_lines(result["operations"].get("model_steps", {}).get("phases", {}))
    lines += plain_lines(result["operations"].get("beside_plain", {}).get("phases", {}))
    return "\n".join(lines) + "\n"


def step_lines(phases: dict[str, Any]) -> list[str]:
    """The table of :func:`bench.gpu_steps.model_steps`."""
    lines = [
        "",
        "| step, fp32, default settings | ms | launches | peak MiB | MB moved | GFLOP "
        "| % of the roofline |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, row in phases.items():
        if "error" in row:
            lines.append(f"| {name} | no: {row['error'][:200]} | | | | | |")
            continue
        peak, share = row["peak_bytes"], row.get("share_of_roofline")
        shown = [
            f"{row['ms']:.2f}", row["launches"] or "",
            "" if peak is None else f"{peak / 2**20:.0f}",
            f"{row['bytes'] / 1e6:.1f}", f"{row['flops'] / 1e9:.2f}",
            "" if share is None else f"{share:.1%}",
        ]  # fmt: skip
        lines.append(f"| {name} | {' | '.join(map(str, shown))} |")
    return lines if phases else []


def plain_lines(phases: dict[str, Any]) -> list[str]:
    """The table of :func:`bench.gpu_plain.beside_plain`."""
    lines = [
        "",
        "| step, fp32, beside plain PyTorch at equal sizes | ms | plain ms | plain / hasten "
        "| in a CUDA graph |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in phases.items():
        if "error" in row:
            lines.append(f"| {name} | no: {row['error'][:200]} | | | |")
            continue
        figures = f"{row['ms']:.2f} | {row['plain_ms']:.2f} | {row['ratio']:.2f}"
        lines.append(f"| {name} | {figures} | {'yes' if row['captured'] else 'no'} |")
    note = "The other models have no plain side."
    return [*lines, "", note] if phases else []


def kernel_lines(times: dict[str, Any]) -> list[str]:
    """The table of :func:`bench.gpu_kernels.triton_times`, if it ran."""
    if not times:
        return []
    lines = [
        "",
        "| forward and backward in a CUDA graph, bf16 | Triton ms | without ms | plain ms "
        "| % of the roofline |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, row in times.items():
        columns = [row[how] for how in ("kernels", "present", "plain")]
        shown = [
            "out of memory" if not each
            else f"{each['graph_ms']:.2f}" if each["graph_ms"] else f"{each['ms']:.2f} without one"
            for each in columns
        ]  # fmt: skip
        share = row["share_of_roofline"]
        lines.append(
            f"| {name} | {' | '.join(shown)} | {'' if share is None else f'{share:.0%}'} |"
        )
    return lines


if __name__ == "__main__":
    raise SystemExit(main())
