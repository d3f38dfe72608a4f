"""A process of a run in which memory runs out: ``python -m tests.faults.memory_driver OUT``.

All scenarios train in one process group. An injected error is raised at chosen calls of a function,
on chosen ranks. What was found goes to ``OUT/<rank>.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from hasten import api, run
from hasten.config import DistributedOptions
from hasten.distributed.processes import Processes
from hasten.errors import HastenError
from hasten.evaluation import tile_inputs
from hasten.training import trainer
from hasten.training.optimizers import row_adam
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES

ERROR = torch.OutOfMemoryError("injected: out of memory")


@contextmanager
def failing(owner: Any, name: str, calls: Callable[[int], bool]) -> Iterator[None]:
    """Raise after the calls (from 1) of a function that were chosen."""
    real, count = getattr(owner, name), 0

    def function(*arguments: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if owner is PhaseAdam and calls(count):  # before it has changed anything
            raise ERROR
        found = real(*arguments, **named)
        if calls(count):
            raise ERROR
        return found

    with patch.object(owner, name, function):
        yield


#: name -> (the ranks that fail, where, at which calls)
SCENARIOS: dict[str, tuple[tuple[int, ...], Any, str, Callable[[int], bool]]] = {
    "plain": ((), OptimizerStep, "encode", lambda _: False),
    "forward": ((1,), OptimizerStep, "encode", {3}.__contains__),
    "backward": ((0,), OptimizerStep, "backward", {4}.__contains__),
    "first step of all": ((0, 1), OptimizerStep, "encode", {1}.__contains__),
    "optimizer": ((1,), PhaseAdam, "step", {1, 4}.__contains__),
    "evaluation": ((0,), tile_inputs, "rank_all", {1, 2}.__contains__),
    "three times": ((1,), OptimizerStep, "encode", {3, 4, 5}.__contains__),
}
#: read every fifth step only, as on devices that the host does not wait for
LATE: dict[str, tuple[tuple[int, ...], Any, str, Callable[[int], bool]]] = {
    "late": ((1,), OptimizerStep, "backward", {2, 6}.__contains__),
    "late on both": ((0, 1), OptimizerStep, "encode", {3}.__contains__),
}
ROWS: dict[str, tuple[tuple[int, ...], Any, str, Callable[[int], bool]]] = {
    "rows plain": ((), RowAdam, "gather_rows", lambda _: False),
    "rows": ((1,), RowAdam, "gather_rows", {1, 4}.__contains__),
}


#: rank 0 alone adds the term of the regularizer
TERMS: dict[str, tuple[tuple[int, ...], Any, str, Callable[[int], bool]]] = {
    "terms plain": ((), OptimizerStep, "encode", lambda _: False),
    "terms": ((0,), OptimizerStep, "encode", {1}.__contains__),
}


def train(case: str, out: Path, **settings: Any) -> dict[str, Any]:
    chosen = next(each for each in CASES if each.label == case)
    given = {**chosen.settings, **chosen.without_dropout, "device": "cpu", "threads": 1}
    given |= {"training.epochs": 2, "training.batch_size": 16, **settings}
    try:
        found = api.train(chosen.model, chosen.data, settings=given, out=str(out), quiet=True)
    except HastenError as error:
        return {"error": str(error), "code": error.code, "exit": error.exit_code}
    return {"effective": found.summary.effective, "valid": found.summary.valid}


def main(out: Path) -> None:
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    with (
        Processes.join("cpu", DistributedOptions(timeout=60, heartbeat=20)) as processes,
        patch.object(Processes, "join", lambda *_: nullcontext(processes)),
    ):

        def scenario(name: str, chosen: Any, case: str = "sasrec-ce", **settings: Any) -> None:
            ranks, owner, function, calls = chosen
            with ExitStack() as stack:
                if processes.rank in ranks:
                    stack.enter_context(failing(owner, function, calls))
                found[name] = train(case, out / name, **settings)

        for name, chosen in SCENARIOS.items():
            scenario(name, chosen)
        with patch.object(trainer, "_SYNC_INTERVAL_CPU", 5):
            for name, chosen in LATE.items():
                scenario(name, chosen, **{"training.average": 1.0})
        scenario("late plain", SCENARIOS["plain"], **{"training.average": 1.0})
        with patch.object(row_adam, "MIN_TABLE_TO_READ_RATIO", 1):
            for name, chosen in ROWS.items():
                scenario(name, chosen, "kgat")
        for name, chosen in TERMS.items():
            scenario(name, chosen, "tisasrec-bce", **{"model.embedding_l2": 1e-3})
        always = ((1,), OptimizerStep, "encode", lambda call: call > 3)
        scenario("always", always, **{"checkpoint.every_steps": 1})
        resumed = run.resume(out / "always", quiet=True)
        found["always"]["epochs"] = resumed.epochs
        found["always"]["effective"] = resumed.effective
    (out / f"{processes.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
