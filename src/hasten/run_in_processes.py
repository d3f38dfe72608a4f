"""For ``hasten.train(devices=N)``: train in N new processes, and read the result."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from hasten.config import RunConfig
from hasten.distributed.launch import run_processes
from hasten.errors import HastenError
from hasten.runs.config_text import config_text
from hasten.runs.summary import Summary


def train_in_processes(
    config: RunConfig,
    count: int,
    *,
    quiet: bool = False,
    refit: bool = False,
    resume_auto: bool = False,
) -> Summary:
    """Train as configured in ``count`` new processes.

    resume_auto: continue the run in ``config.out`` if there is one. Raises HastenError with the
    message, the code and the exit code of the processes.
    """
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "config.yaml"
        file.write_text(config_text(config, given=True), encoding="utf-8")
        arguments = ["train", "--config", str(file), "--json"]
        arguments += ["--out", str(config.out)] if config.out is not None else []
        arguments += ["--resume", "auto"] if resume_auto else []
        arguments += ["--quiet"] if quiet else []
        arguments += ["--refit"] if refit else []
        ended = run_processes(arguments, count, config.distributed.master_port, capture=True)
    lines = ended.output.splitlines()
    values = json.loads(lines[-1]) if lines else {}
    if ended.code == 0:
        return Summary.from_json(values)
    failure = values.get("error", {"code": "processes", "message": ended.problem})
    error = HastenError(failure["message"] or "the processes failed; see their messages above")
    error.code, error.exit_code = failure["code"], ended.code
    raise error
