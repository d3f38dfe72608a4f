"""The queue: runs what has no result yet, goes on where it was stopped, keeps one result a run.

    python -m experiments.queue list
    python -m experiments.queue run [--only PATTERN]... [--jobs N] [--max-time SECONDS] [--commit]
    python -m experiments.queue judge [--only PATTERN]...
    python -m experiments.queue groups
    python -m experiments.queue open GROUP ... [--commit]

Run folders are under ``runs/experiments`` (not in git), results under ``experiments/results``;
after every run the page ``docs/experiments.md`` follows. With --commit the result and the page are
committed, one commit a run. ``judge`` evaluates finished runs, whose folders are still there, once
more by the further protocols of their definitions.

Runs are evaluated on validation alone. ``open`` evaluates the configuration that validation selects
in a group on the test set, once (:mod:`experiments.opening`).
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import IO, Any

from bench.machine import ROOT
from experiments import summary
from experiments.data import plain_file
from experiments.definitions import EXPERIMENTS, select
from experiments.evaluate import check_embeddings, evaluate
from experiments.experiment import Experiment, describes
from experiments.opening import OPENED, OpeningError, list_groups, open_group
from experiments.record import make_record, write_record
from hasten.distributed.device import cpu_computes_bf16

HASTEN = (sys.executable, "-m", "hasten")
#: the same where bf16 is asked for and the CPU has none
ROUNDED = (sys.executable, "-m", "experiments.rounded")
#: how a run ends that a signal stopped after saving: 128 + SIGINT or SIGTERM
INTERRUPTED = (130, 143)


class QueueBusyError(RuntimeError):
    """Another queue, or a run that it left behind, still works on these folders."""


@dataclass(frozen=True)
class Queue:
    """Where runs and results go, and the command that trains."""

    runs: Path = ROOT / "runs" / "experiments"
    results: Path = summary.RESULTS
    docs: Path = summary.DOCS
    command: Sequence[str] = HASTEN

    def folder(self, experiment: Experiment) -> Path:
        return self.runs / f"{experiment.name}-{experiment.fingerprint}"

    def result(self, experiment: Experiment) -> Path:
        return self.results / f"{experiment.name}.json"

    def state(self, experiment: Experiment) -> str:
        """``done``, ``started``, ``waiting``; or ``changed``: done with other options."""
        path = self.result(experiment)
        if path.exists():
            if describes(json.loads(path.read_text()), experiment):
                return "done"
            return "started" if self.folder(experiment).exists() else "changed"
        return "started" if self.folder(experiment).exists() else "waiting"

    def rounds(self, experiment: Experiment) -> bool:
        """Whether bf16 products are taken in fp32 of rounded numbers: the CPU has no others."""
        asked = "bf16" in experiment.options and self.command == HASTEN
        return asked and not cpu_computes_bf16()

    def arguments(self, experiment: Experiment) -> list[str]:
        """The command line of a run."""
        return [
            *(ROUNDED if self.rounds(experiment) else self.command),
            "train",
            experiment.model,
            str(plain_file(experiment.data)),
            *experiment.options,
            *("--set", "evaluation.test=false"),
            *("--seed", str(experiment.seed)),
            *("--resume", "auto", "--out", str(self.folder(experiment))),
            *("--json", "--quiet"),
        ]


@contextmanager
def locked(folder: Path) -> Iterator[IO[str]]:
    """Hold the queue's lock; runs inherit it, so that one left behind still counts."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise QueueBusyError(
                f"another queue, or a run it left behind, works on {folder}: wait for it or end it"
            ) from None
        yield file


def run_one(
    queue: Queue, experiment: Experiment, lock: IO[str], stopped: Callable[[], bool]
) -> tuple[int, dict[str, Any] | None]:
    """Train until done, or until ``stopped``: then the state of the run is saved.

    Returns the exit code and, where that is 0, the JSON result of the run.
    """
    if stopped():
        return INTERRUPTED[1], None
    say(f"{experiment.name}: {queue.state(experiment)}")
    process = subprocess.Popen(
        queue.arguments(experiment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lock.fileno(),),
    )
    while True:
        try:
            out, _ = process.communicate(timeout=0.5)
            break
        except subprocess.TimeoutExpired:
            if stopped():
                process.send_signal(signal.SIGTERM)
                out, _ = process.communicate()
                break
    if process.returncode != 0:
        return process.returncode, None
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return 0, result


def judgements(queue: Queue, experiment: Experiment) -> dict[str, Any]:
    """The finished run on validation by further protocols, and its embeddings."""
    command, run = queue.command, queue.folder(experiment)
    also = [evaluate(command, run, "valid", options) for options in experiment.also]
    found: dict[str, Any] = {"also": also}
    if experiment.embeddings:
        found["embeddings"] = check_embeddings(command, run, "valid")
    return found


def run_queue(
    queue: Queue,
    experiments: Sequence[Experiment],
    max_time: float | None = None,
    commit: bool = False,
    jobs: int = 1,
) -> int:
    """Run what is not done, ``jobs`` at once. 0: all done; 1: some failed; 143: stopped."""
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    stop, writing = Event(), Lock()

    def stopped() -> bool:
        return stop.is_set() or time.monotonic() >= deadline

    def fails(experiment: Experiment) -> bool:
        code, result = run_one(queue, experiment, lock, stopped)
        if result is not None:
            with writing:
                written = _record(queue, experiment, result)
                if commit:
                    commit_files(written, f"Result of {experiment.name}")
        elif code in INTERRUPTED or code == -signal.SIGTERM:
            stop.set()
            if queue.state(experiment) == "started":
                say(f"{experiment.name}: stopped; run the queue again to go on")
        else:
            say(f"{experiment.name}: failed with exit code {code}")
        return result is None

    with locked(queue.runs) as lock, ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(fails, each) for each in experiments if queue.state(each) != "done"]
        try:
            failed = [run.result() for run in as_completed(runs)]
        except BaseException:
            stop.set()  # those that run save their state and end
            raise
    return INTERRUPTED[1] if stop.is_set() else int(any(failed))


def _record(queue: Queue, experiment: Experiment, result: dict[str, Any]) -> list[Path]:
    """Write the result of a finished run, and the page; the paths of both."""
    path = queue.result(experiment)
    record = make_record(experiment, result, queue.folder(experiment))
    if queue.rounds(experiment):
        record["bf16"] = "products in fp32 of rounded numbers"
    write_record(path, {**record, **judgements(queue, experiment)})
    say(f"{experiment.name}: validation {result['valid']}")
    return [path, *summary.write_pages(queue.results, queue.docs)]


def judge_again(queue: Queue, experiments: Sequence[Experiment]) -> int:
    """Bring the further protocols of finished runs up to their definitions; 0."""
    with locked(queue.runs):
        for experiment in experiments:
            path = queue.result(experiment)
            if queue.state(experiment) != "done" or not queue.folder(experiment).exists():
                continue
            record = json.loads(path.read_text())
            if "test" in record:  # from before test sets were sealed: stays as it is
                continue
            say(f"{experiment.name}: {len(experiment.also)} further protocols")
            write_record(path, {**record, **judgements(queue, experiment)})
        summary.write_pages(queue.results, queue.docs)
    return 0


def open_and_report(queue: Queue, group: str, commit: bool) -> int:
    """Open a group's test figures, and write the page; 0, or 2 if it cannot be opened."""
    try:
        with locked(queue.runs):
            entry = open_group(queue, group, EXPERIMENTS)
            written = [queue.results / OPENED, *summary.write_pages(queue.results, queue.docs)]
    except OpeningError as error:
        say(str(error))
        return 2
    say(f"{group}: {entry['metric']} on validation selects {entry['selected']}")
    for figures in entry["test"]:
        say(f"  seed {figures['seed']}: test {figures['test']}")
    say("make docs writes them into the recipes and README.md")
    if commit:
        commit_files(written, f"Test figures of {group}")
    return 0


def list_experiments(queue: Queue, experiments: Sequence[Experiment]) -> None:
    """Print each experiment and its state."""
    for experiment in experiments:
        print(f"{queue.state(experiment):8s} {experiment.name}")


def commit_files(paths: Sequence[Path], message: str) -> None:
    """Commit these files as they are, and nothing else."""
    names = [str(path) for path in paths]
    for arguments in (["add", "--", *names], ["commit", "-q", "-m", message, "--", *names]):
        subprocess.run(["git", *arguments], cwd=paths[0].parent, check=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _terminate(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None, queue: Queue | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("list", "run", "judge", "groups", "open"))
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="open: the groups")
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="names that contain this, or another"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, choices=range(1, 65), metavar="N", help="runs at once"
    )
    parser.add_argument("--max-time", type=float, metavar="SECONDS", help="then stop and save")
    parser.add_argument("--commit", action="store_true", help="commit each result by itself")
    options = parser.parse_args(arguments)
    queue = queue or Queue()
    if bool(options.groups) != (options.verb == "open"):
        parser.error("a GROUP is what open needs, and no other command takes")
    for pattern in options.only or ():
        if not select(pattern, EXPERIMENTS):
            parser.error(f"no experiment's name contains {pattern!r}")
    names = {e.name for pattern in options.only or (None,) for e in select(pattern, EXPERIMENTS)}
    chosen = [experiment for experiment in EXPERIMENTS if experiment.name in names]
    if options.verb in ("list", "groups"):
        if options.verb == "groups":
            list_groups(queue.results, chosen)
        else:
            list_experiments(queue, chosen)
        return 0
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if options.verb == "open":
            return max(open_and_report(queue, each, options.commit) for each in options.groups)
        if options.verb == "judge":
            return judge_again(queue, chosen)
        return run_queue(queue, chosen, options.max_time, options.commit, options.jobs)
    except QueueBusyError as error:
        say(str(error))
        return 2
    except KeyboardInterrupt:
        say("stopped; run the queue again to go on")
        return INTERRUPTED[0]


if __name__ == "__main__":
    raise SystemExit(main())
