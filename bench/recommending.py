"""Processor seconds of recommending to many users, beside those of a plain matrix product.

    python -m bench.recommending --users 4096 --items 1000000

BPR-MF with random vectors and 20 made interactions a user, one thread. hasten: what
``hasten recommend RUN --users all --out FILE`` does, ``--batch`` users at a time: exclude the known
items, score, select the best, write them to Parquet. product: the vectors of the same users, 256 at
a time, times blocks of the table, into a buffer that is used again. Both in turns, a batch each.
rate: the seconds of all products over those of hasten. mebibytes: what the peak of the process
grew by while both ran; run it with other numbers of users to compare.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch

from hasten.config_loading.build import build_config
from hasten.data.tables import TRAIN, Dataset, Interactions, Source, Vocabulary
from hasten.inference import stream
from hasten.loaded_run import LoadedRun
from hasten.models.collaborative.bprmf import BPRMF, BPRMFOptions
from hasten.models.interface import Sizes

TILE, BLOCK, KNOWN = 256, 8192, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=4096)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--topk", type=int, default=10)
    parser.add_argument("--batch", type=int, default=1024, help="users at a time")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    loaded = made_run(options.users, options.items, options.width)
    assert isinstance(loaded.model, BPRMF)
    users, table = (
        each.block(0, len(each)).detach() for each in (loaded.model.users, loaded.model.items)
    )
    stream.USERS_AT_A_TIME = options.batch
    base = peak()
    seconds = {"hasten": 0.0, "product": 0.0}
    buffer = torch.empty(TILE, BLOCK)
    begun, first = time.process_time(), 0

    def product(done: int, _: int) -> None:
        """After a batch of hasten: the products of the same users."""
        nonlocal begun, first
        now = time.process_time()
        seconds["hasten"] += now - begun
        for tile in torch.split(users[first:done], TILE):
            for rows in torch.split(table, BLOCK):
                torch.mm(tile, rows.T, out=buffer[: len(tile), : len(rows)])
        begun, first = time.process_time(), done
        seconds["product"] += begun - now

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "lists.parquet"
        counts = stream.write_recommendations(loaded, file, None, options.topk, product)
        written = file.stat().st_size
    print(
        json.dumps(
            {
                **vars(options),
                "rows": counts.rows,
                "bytes": written,
                "seconds": {name: round(each, 2) for name, each in seconds.items()},
                "rate_of_product": round(seconds["product"] / seconds["hasten"], 3),
                "users_a_second": round(options.users / seconds["hasten"], 1),
                "mebibytes": (peak() - base) // 1024,
            }
        )
    )


def made_run(users: int, items: int, width: int) -> LoadedRun:
    """A run whose vectors are random, with ``KNOWN`` interactions of each user."""
    random = np.random.default_rng(0)
    user = np.repeat(np.arange(users), KNOWN)
    item = random.integers(0, items, len(user))
    labels = [Vocabulary(pa.array(np.arange(count))) for count in (users, items)]
    part = np.full(len(user), TRAIN, np.int8)
    dataset = Dataset(
        "made", labels[0], labels[1], Interactions(user, item), part, "none", Source("table")
    )
    model = BPRMF(BPRMFOptions(width=width), Sizes.of(dataset)).eval()
    return LoadedRun(Path(), build_config("bprmf"), model, dataset, torch.device("cpu"))


def peak() -> int:
    """KiB of resident memory at the peak of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
