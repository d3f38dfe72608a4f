"""RecBole's SASRec on the same data, timed from outside: nothing of RecBole is changed.

Run by the Python of ``.venvs/recbole`` (``make bench-env``). RecBole makes one example of every
prefix of a sequence and ranks the whole catalog in its loss (CE). Its epoch is timed through
the iterator of batches it is given; with ``--steps`` only the first so many batches are handed
out and the epoch is extrapolated.

    .venvs/recbole/bin/python -m bench.recbole_side.run --data beauty --steps 20
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bench.data import events
from bench.report import Stopwatch, print_report


class TimedBatches:
    """Hands out a loader's batches, at most ``limit`` after ``warmup``, and starts the clock."""

    def __init__(self, loader: Any, warmup: int, limit: int | None, clock: Stopwatch) -> None:
        self._loader = loader
        self._warmup = warmup
        self._limit = limit
        self._clock = clock
        self.timed = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        handed = 0
        batches = iter(self._loader)
        while self._limit is None or handed < self._warmup + self._limit:
            if handed == self._warmup:
                self._clock.restart()
            batch = next(batches, None)
            if batch is None:
                break
            yield batch
            handed += 1
        self.timed = handed - self._warmup


def write_atomic_file(name: str, folder: Path) -> None:
    """The data set as RecBole's ``.inter`` file; times made unique a user, so order is kept."""
    user, item, time = events(name)
    order = np.lexsort((time, user))
    user, item = user[order], item[order]
    place = np.arange(len(user)) - np.searchsorted(user, user)
    (folder / name).mkdir()
    with (folder / name / f"{name}.inter").open("w") as file:
        file.write("user_id:token\titem_id:token\ttimestamp:float\n")
        np.savetxt(file, np.stack([user, item, place], axis=1), fmt="%d", delimiter="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="beauty", choices=("beauty", "ml-1m"))
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1, help="whole epochs, where no --steps")
    parser.add_argument("--steps", type=int, help="measure so many steps of one epoch")
    parser.add_argument("--warmup", type=int, default=2, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # RecBole reads it too

    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as scratch:
        write_atomic_file(options.data, Path(scratch))
        os.chdir(scratch)  # RecBole writes logs and checkpoints into the current folder
        config = Config(
            model="SASRec",
            dataset=options.data,
            config_dict={
                "data_path": scratch,
                "use_gpu": False,
                "seed": options.seed,
                "show_progress": False,
                "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
                "MAX_ITEM_LIST_LENGTH": options.length,
                "eval_args": {
                    "split": {"LS": "valid_and_test"},
                    "order": "TO",
                    "mode": "full",
                    "group_by": "user",
                },
                "loss_type": "CE",
                "train_neg_sample_args": None,
                "hidden_size": options.width,
                "inner_size": 4 * options.width,
                "n_layers": options.blocks,
                "n_heads": options.heads,
                "hidden_dropout_prob": options.dropout,
                "attn_dropout_prob": options.dropout,
                "train_batch_size": options.batch_size,
                "learning_rate": options.lr,
                "eval_batch_size": 256,
                "metrics": ["NDCG", "Hit"],
                "topk": [10],
                "valid_metric": "NDCG@10",
                "metric_decimal_place": 8,
            },
        )
        init_seed(config["seed"], config["reproducibility"])
        train, _, test = data_preparation(config, create_dataset(config))
        model = get_model("SASRec")(config, train._dataset).to(config["device"])
        trainer = get_trainer(config["MODEL_TYPE"], "SASRec")(config, model)
        clock = Stopwatch()
        wall, cpu, steps, loss = 0.0, 0.0, 0, float("nan")
        for epoch in range(1 if options.steps else options.epochs):
            batches = TimedBatches(train, options.warmup if epoch == 0 else 0, options.steps, clock)
            loss = float(trainer._train_epoch(batches, epoch))
            seconds = clock.seconds()
            wall, cpu, steps = wall + seconds[0], cpu + seconds[1], steps + batches.timed
        metric = None
        if options.evaluate:
            result = trainer.evaluate(test, load_best_model=False)
            metric = {"ndcg@10": float(result["ndcg@10"]), "hr@10": float(result["hit@10"])}
        os.chdir("/")
    print_report(
        wall=wall,
        cpu=cpu,
        steps=steps,
        steps_per_epoch=len(train),
        examples_per_epoch=len(train._dataset),
        versions={"torch": torch.__version__, "recbole": "1.2.1"},
        threads=options.threads,
        loss=loss / (steps + options.warmup),
        metric=metric,
    )


if __name__ == "__main__":
    main()
