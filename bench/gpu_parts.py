"""The parts of ``make gpu-check``, each in a process of its own.

Those that check something run beside each other, those that measure time alone afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.machine import ROOT

if TYPE_CHECKING:
    import torch

    from bench.gpu_training import Synthetic

#: the seconds that each part may take, the longest first
BESIDE = {
    "contract": 240,
    "captured_steps": 150,
    "triton_kernels": 120,
    "plan_peaks": 120,
    "losses": 90,
    "repeated": 60,
    "group_of_one": 60,
    "sharded_tables": 60,
    "collectives": 60,
    "operations": 60,
}
ALONE = {"triton_times": 80, "model_steps": 40, "beside_plain": 50, "training": 120}
#: the contract tests have as many processes of their own
CONTRACT_PROCESSES = 8


def run_parts(flags: Sequence[str], left_out: set[str], *, limited: bool) -> dict[str, Any]:
    """The outcome of each part. flags: of bench.gpu_check; limited: whether parts are stopped."""
    # a machine of few cores would only slow parts down beside each other
    several = max(1, min(len(BESIDE), (os.cpu_count() or 1) // 2))
    outcomes: dict[str, Any] = {}

    def run(name: str, seconds: float) -> None:
        outcomes[name] = in_process(name, flags, seconds if limited else None)
        # a check that is cut short leaves what it measured
        say(f"{name}: {verdict(outcomes[name])} ({outcomes[name]['seconds']} s)")
        say(json.dumps(outcomes[name], default=str))

    with ThreadPoolExecutor(several) as together:
        chosen = [(name, limit) for name, limit in BESIDE.items() if name not in left_out]
        for each in [together.submit(run, *pair) for pair in chosen]:
            each.result()
    for name, seconds in ALONE.items():
        run(name, seconds)
    return outcomes


def in_process(name: str, flags: Iterable[str], seconds: float | None) -> dict[str, Any]:
    """Run a part in a process of its own: the outcome that it prints, or what ended it."""
    begin = time.perf_counter()
    command = [sys.executable, "-m", "bench.gpu_check", "--part", name, *flags]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            out, _ = process.communicate(timeout=seconds)
            outcome: dict[str, Any] = json.loads(out.splitlines()[-1])
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that the part started
            process.communicate()
            outcome = {"passed": False, "error": f"stopped after {seconds} s"}
        except (IndexError, ValueError):
            errors.seek(0)
            told = errors.read()[-2000:]
            outcome = {"passed": False, "error": f"ended with {process.returncode}: {told}"}
    return {**outcome, "seconds": round(time.perf_counter() - begin, 1)}


def run_part(name: str, device: torch.device, quick: bool, compiled: bool) -> dict[str, Any]:
    """Run a part in this process: its outcome, or what it raised."""
    import torch

    torch.zeros((), device=device)  # statistics of its memory exist from now on
    try:
        with tempfile.TemporaryDirectory() as folder:
            outcome: dict[str, Any] = _parts(device, Path(folder), quick, compiled)[name]()
    except Exception as error:  # noqa: BLE001 - recorded as a failed check
        outcome = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    return outcome


def _parts(
    device: torch.device, scratch: Path, quick: bool, compiled: bool
) -> dict[str, Callable[[], dict[str, Any]]]:
    from bench.gpu_capture import captured_steps
    from bench.gpu_distributed import collectives, group_of_one, sharded_tables
    from bench.gpu_kernels import triton_kernels, triton_times
    from bench.gpu_losses import losses
    from bench.gpu_operations import operations
    from bench.gpu_plain import beside_plain
    from bench.gpu_plan import plan_peaks
    from bench.gpu_steps import model_steps
    from bench.gpu_training import repeated, training_runs

    size, epochs = synthetic(quick), 2 if quick else 4
    return {
        **{
            part.__name__: partial(part, device)
            for part in (operations, losses, triton_kernels, triton_times, captured_steps,
                         model_steps, collectives, sharded_tables)
        },
        "beside_plain": partial(beside_plain, device, quick=quick),
        "contract": partial(contract_suite, device),
        "training": partial(training_runs, device, scratch, size, epochs, compiled),
        "repeated": partial(repeated, device, scratch, size, 1),
        "plan_peaks": partial(plan_peaks, device, scratch, quick),
        "group_of_one": partial(group_of_one, device, scratch, size),
    }  # fmt: skip


def synthetic(quick: bool) -> Synthetic:
    """The events that SASRec is trained on."""
    from bench.gpu_training import Synthetic

    return Synthetic(users=400, items=300, longest=30) if quick else Synthetic()


def contract_suite(device: torch.device) -> dict[str, Any]:
    """The suite that every model passes, on this device; its closing line."""
    parallel = find_spec("xdist") and device.type == "cuda"
    several = ["-n", str(CONTRACT_PROCESSES)] if parallel else []
    command = [sys.executable, "-m", "pytest", "tests/contract", "-v", "-W", "default", *several]
    seconds = BESIDE["contract"] - 10
    with tempfile.TemporaryFile("w+") as told:
        try:
            code: int | None = subprocess.run(
                [*command, "--show-capture=no", "--tb=short"],
                cwd=ROOT,
                env=os.environ | {"HASTEN_TEST_DEVICE": str(device)},
                stdin=subprocess.DEVNULL,
                stdout=told,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
        told.seek(0)
        return suite_outcome(told.read().splitlines(), code, seconds)


def suite_outcome(lines: Sequence[str], code: int | None, seconds: float) -> dict[str, Any]:
    """What a suite printed; code: its exit status, None if it was stopped after so long."""
    closing = lines[-1] if lines else "it printed nothing"
    if code == 0:
        return {"passed": True, "closing": closing}
    failed = {
        word
        for line in lines
        if "FAILED" in line or "ERROR" in line
        for word in line.split()
        if "::" in word
    }
    error = closing if code is not None else f"stopped after {seconds:.0f} s"
    passed = sum(" PASSED" in f" {line}" for line in lines)
    told = [line for line in lines if line.startswith("E  ")][:200]
    return {
        "passed": False, "closing": closing, "error": error, "passed_tests": passed,
        "failed": sorted(failed), "told": told,
    }  # fmt: skip


def verdict(outcome: dict[str, Any]) -> str:
    if "skipped" in outcome:
        return f"not run: {outcome['skipped']}"
    return "yes" if outcome["passed"] else f"no: {outcome.get('error', 'see the JSON file')[:200]}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
