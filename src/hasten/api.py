"""The Python API: train, update and plan runs; :mod:`.results` has what these calls return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hasten.build import with_builtin_sample
from hasten.config_loading.build import build_config
from hasten.config_loading.units import parse_size
from hasten.distributed.launch import processes_to_start
from hasten.errors import UsageError
from hasten.planning.budget import fit_run
from hasten.planning.plan import Plan, plan_run
from hasten.reporting.report import report
from hasten.results import Result, Run, load
from hasten.run import train as train_run
from hasten.run_in_processes import train_in_processes
from hasten.runs.run_folder import remove_run
from hasten.training.epoch_report import Callback
from hasten.updating.update import update_run

__all__ = ["Result", "Run", "load", "plan", "report", "train", "update"]


def train(
    model: str = "sasrec",
    data: object | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    refit: bool = False,
    memory_budget: int | str | None = None,
    resume: str | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
    **flags: Any,
) -> Result:
    """Train a model and return its :class:`Result`.

    data: a path, a pattern of paths, a registered name, a pandas, polars, Arrow or DuckDB table, a
    Hugging Face dataset, a dict of arrays, or of the tables train, valid and test; None: the
    built-in sample. settings: dotted configuration keys, ``{"model.width": 128}``; flags: common
    options by name (``epochs=20, lr=1e-3, device="cpu", out="runs/mine"``). refit: train again on
    the training and validation parts, for the selected number of epochs. memory_budget: bytes, or
    text such as "10GB"; chooses settings whose predicted peak memory fits. resume: "auto"
    continues the run in ``out``, if there is one; overwrite: True deletes it and starts again.
    callbacks: functions that are called after each epoch with its report (``number``, ``losses``,
    ``valid``, ...). A callback ends the run by returning True; an exception that it raises ends the
    run and is passed on.
    ``devices=2`` trains in two new processes. They read the data from a path; scripts need no
    ``if __name__`` guard. Under torchrun, each calling process is one of the run's processes.
    Raises hasten.HastenError.
    """
    path = str(data) if isinstance(data, str | Path) else None
    table = None if data is None or path is not None else data
    if isinstance(table, pa.RecordBatchReader):  # a stream; refit and resume read the data again
        table = table.read_all()
    values = {**(settings or {}), **flags}
    run_config = build_config(model, path, None if config is None else Path(config), (), values)
    planned: dict[str, Any] | None = None
    if memory_budget is not None:
        if table is not None:
            raise UsageError(
                "memory_budget with a table in memory: the run is planned in a process of its own, "
                "which reads files; save the table (to Parquet, say) and give its path"
            )
        run_config, planned = fit_run(run_config, parse_size("memory_budget", memory_budget))
    if resume not in (None, "auto") or (resume and (overwrite or run_config.out is None)):
        raise UsageError('resume is None or "auto", which needs out and excludes overwrite')
    if overwrite and run_config.out is None:
        raise UsageError("overwrite needs out: the folder whose run is replaced")
    auto = resume == "auto"
    count = processes_to_start(
        run_config.devices, "devices" in values, run_config.distributed.master_port
    )
    if count:
        if table is not None:
            raise UsageError(
                f"devices={count} with a table in memory: several processes read the data from "
                "files; save the table (to Parquet, say) and give its path"
            )
        if callbacks:
            raise UsageError(
                f"callbacks with devices={count}: the new processes cannot call functions of this "
                "one; leave one of the two out, or start the script by torchrun"
            )
        if overwrite and run_config.out is not None:
            remove_run(run_config.out)
        return Result(
            train_in_processes(run_config, count, quiet=quiet, refit=refit, resume_auto=auto)
        )
    return Result(
        train_run(
            run_config, table=table, quiet=quiet, refit=refit, plan=planned, resume_auto=auto,
            overwrite=overwrite, callbacks=callbacks,
        )
    )  # fmt: skip


def update(
    run: str | Path,
    new: object,
    *,
    out: str | Path | None = None,
    replay: float | None = None,
    check: bool = False,
    margin: str = "1%",
    settings: Mapping[str, Any] | None = None,
    quiet: bool = False,
    **flags: Any,
) -> Result:
    """Train a run further on its data and new ones, in a new run folder.

    new: as the data of :func:`train`: only what is new, or everything again. replay: the share of
    users without new events that are trained on again. check: raise HastenError if the validation
    metric of known users falls by more than the margin, "1%" or "0.001". settings, flags: as for
    :func:`train` (``epochs``, ``lr``, ``device``, ``{"data.features.image": FILE}``).
    Raises hasten.HastenError.
    """
    path = new if isinstance(new, str | Path) else None
    updated = update_run(
        Path(run), path, table=None if path is not None else new,
        out=None if out is None else Path(out), replay=replay, check=check, margin=margin,
        flags={**(settings or {}), **flags}, quiet=quiet,
    )  # fmt: skip
    return Result(updated.summary, updated.about)


def plan(
    model: str = "sasrec",
    data: str | Path | None = None,
    *,
    config: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    runs: str | Path | None = "runs",
    **flags: Any,
) -> Plan:
    """Predict memory, time and disk of ``train`` with the same arguments, before it runs.

    Takes a few real steps in a process of its own. data: a path or a registered name. runs: a
    folder of run folders. Where it has finished runs with the same settings, their measured memory
    and seconds correct the prediction. None: predictions only.
    Raises hasten.HastenError.
    """
    if data is not None and not isinstance(data, str | Path):
        raise UsageError(
            "plan with a table in memory: the run is planned in a process of its own, which reads "
            "files; save the table (to Parquet, say) and give its path"
        )
    path = None if data is None else str(data)
    values = {**(settings or {}), **flags}
    run_config = build_config(model, path, None if config is None else Path(config), (), values)
    return plan_run(with_builtin_sample(run_config), None if runs is None else Path(runs))
