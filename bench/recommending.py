"""Processor seconds of the best items of many users, beside those of a plain matrix product.

    python -m bench.recommending --users 2560 --items 1000000

Random vectors, one thread. hasten: ``topk_all`` in tiles of 256 users, each with 20 excluded items,
as ``hasten recommend RUN --users all`` computes them. product: the same tiles of 256 users times
blocks of the table, into a buffer that is used again. Both in turns, a tile each.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable

import numpy as np
import torch

from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.topk_all import topk_all
from hasten.ops.table import FixedTable
from hasten.scoring import Catalogue, FactorScorer

TILE, BLOCK, EXCLUDED = 256, 8192, 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--users", type=int, default=2560)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--topk", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = torch.randn(options.items, options.width)
    users = torch.randn(options.users, options.width)
    random = np.random.default_rng(0)
    buffer = torch.empty(TILE, BLOCK)
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds: dict[str, list[float]] = {"hasten": [], "product": []}
    for tile in torch.split(users, TILE):
        seen = np.sort(random.integers(0, options.items, (len(tile), EXCLUDED)), axis=1)
        excluded = CSR(np.arange(0, seen.size + 1, EXCLUDED), seen.reshape(-1))
        scorer = FactorScorer(tile, Catalogue(FixedTable(table)))
        sides: dict[str, Callable[[], object]] = {
            "hasten": lambda s=scorer, e=excluded: topk_all(  # type: ignore[misc]
                s, len(s.vectors), options.items, options.topk, e
            ),
            "product": lambda t=tile: [  # type: ignore[misc]
                torch.mm(t, rows.T, out=buffer[: len(t), : len(rows)])
                for rows in torch.split(table, BLOCK)
                if len(rows) == BLOCK
            ],
        }
        for name, run in sides.items():
            begin = time.process_time()
            run()
            seconds[name].append(time.process_time() - begin)
    found = {name: float(np.median(each)) for name, each in seconds.items()}
    print(
        json.dumps(
            {
                **vars(options),
                "seconds_a_tile": {name: round(each, 4) for name, each in found.items()},
                "rate_of_product": round(found["product"] / found["hasten"], 3),
                "users_a_second": round(TILE / found["hasten"], 1),
                "mebibytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024,
            }
        )
    )


if __name__ == "__main__":
    main()
