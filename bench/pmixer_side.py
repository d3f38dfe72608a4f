"""pmixer's SASRec.pytorch or TiSASRec.pytorch from a clone, timed from outside.

    SASREC=DIR python -m bench.pmixer_side --model sasrec --data beauty --length 50 --dropout 0.5
    TISASREC=DIR python -m bench.pmixer_side --model tisasrec --data ml-1m --length 200 --steps 1

The clone's ``main.py`` runs as it is: its model, optimizer, loss and loop. It gets our data, and
batches that were made before the clock starts, in place of those of its sampler, which works in
other processes. Their format is its sampler's.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import runpy
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.clones import clone, clone_version
from bench.data import Int64, Sequences, sequences
from bench.padded import NegativeSampler, Padded, padded
from bench.report import Stopwatch, print_report

CLONES = {
    "sasrec": ("SASREC", "pmixer/SASRec.pytorch", "python"),
    "tisasrec": ("TISASREC", "pmixer/TiSASRec.pytorch", "."),
}


class MeasuredError(Exception):
    """All batches were handed out."""


class HandedBatches:
    """Stands for the sampler: starts the clock after the warm-up, and ends the training."""

    def __init__(self, batches: Sequence[Any], warmup: int) -> None:
        self._batches = batches
        self._warmup = warmup
        self._handed = 0
        self._clock = Stopwatch()
        self.seconds = 0.0, 0.0

    def next_batch(self) -> Any:
        if self._handed == self._warmup:
            self._clock.restart()
        if self._handed == len(self._batches):
            self.seconds = self._clock.seconds()
            raise MeasuredError
        self._handed += 1
        return self._batches[self._handed - 1]


def batch_of(
    data: Padded,
    rows: Int64,
    sampler: NegativeSampler,
    generator: np.random.Generator,
    span: int | None,
) -> tuple[Any, ...]:
    """Users, inputs, targets and negatives; with a span also times and their [L, L] intervals."""
    targets = data.targets[rows]
    negatives = np.zeros_like(targets)
    user = np.repeat(rows, data.counts[rows])
    negatives[targets > 0] = sampler.draw(user, generator)
    parts = [rows + 1, data.inputs[rows], targets, negatives]
    if span is not None:
        times = data.times[rows]
        apart = np.minimum(np.abs(times[:, :, None] - times[:, None]), span)
        parts[2:2] = [times, apart]
    return tuple(list(part.astype(np.int32)) for part in parts)


def run_clone(
    code: Path, arguments: Sequence[str], data: Sequences, users: Int64, batches: HandedBatches
) -> float:
    """Run the clone's ``main.py`` until the batches are used up; the last loss that it printed."""
    sys.path.insert(0, str(code))
    utils: Any = importlib.import_module("utils")
    training = {int(user) + 1: [1, 1] for user in users}
    parts = [training, {}, {}, len(data), data.catalog]
    if hasattr(utils, "Relation"):  # the times of TiSASRec
        parts.append(1)
        utils.Relation = lambda *_: {}
    utils.WarpSampler = lambda *_, **__: batches
    utils.data_partition = lambda _: parts
    utils.build_index = lambda _: ([], [])
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)  # it writes its logs into the current folder
        Path("data").mkdir()
        sys.argv = ["main.py", "--dataset", "bench", "--train_dir", "run", *arguments]
        with contextlib.suppress(MeasuredError), contextlib.redirect_stdout(printed):
            runpy.run_path(str(code / "main.py"), run_name="__main__")
        os.chdir(Path("/"))
    return float(printed.getvalue().splitlines()[-1].rpartition(":")[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=tuple(CLONES), required=True)
    parser.add_argument("--data", default="beauty", choices=("beauty", "ml-1m"))
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--span", type=int, default=256)
    parser.add_argument("--steps", type=int, help="none: an epoch")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    variable, repository, folder = CLONES[options.model]
    cloned = clone(variable, repository)
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    data = sequences(options.data)
    arrays = padded(data, options.length, drop=2, left=True)
    users, size = arrays.trained(), options.batch_size
    steps_per_epoch = round(len(users) / size)
    steps = options.steps or steps_per_epoch
    sampler, timed = NegativeSampler(data), options.model == "tisasrec"
    order = np.resize(generator.permutation(users), ((options.warmup + steps), size))
    span = options.span if timed else None
    batches = HandedBatches(
        [batch_of(arrays, rows, sampler, generator, span) for rows in order], options.warmup
    )
    arguments = ["--device", "cpu", "--maxlen", str(options.length)]
    arguments += ["--dropout_rate", str(options.dropout), "--batch_size", str(size)]
    arguments += ["--time_span", str(options.span)] if timed else ["--norm_first"]
    loss = run_clone(cloned / folder, arguments, data, users, batches)
    wall, cpu = batches.seconds
    print_report(
        wall=wall,
        cpu=cpu,
        steps=steps,
        steps_per_epoch=steps_per_epoch,
        examples_per_epoch=int(arrays.counts.sum()),
        versions={"torch": torch.__version__, repository: clone_version(cloned)},
        threads=options.threads,
        loss=loss,
    )


if __name__ == "__main__":
    main()
