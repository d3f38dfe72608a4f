"""Similar rows among 20,000 sets, as the contrast of HGT looks for them: seconds and memory.

    python -m bench.jaccard_side
    python -m bench.jaccard_side --rows 2000 --check

Made from a seed: sets of 2 to 60 of 20,000 members, geometrically distributed sizes of mean 10,
two thirds of a set's members from one of 1,000 groups of 40, the rest with popularity 1/rank. An
N×N matrix of float32 would be 1.6 GB.
"""

from __future__ import annotations

import argparse

import numpy as np

from bench.report import Stopwatch, peak_memory_bytes, print_report
from hasten.models.typed_graph.jaccard import jaccard_pairs
from hasten.ops.graph.csr import CSR

MEMBERS, GROUPS, GROUP = 20_000, 1_000, 40


def made_sets(rows: int) -> CSR:
    generator = np.random.default_rng(0)
    sizes = np.clip(generator.geometric(0.1, rows), 2, 60)
    row = np.repeat(np.arange(rows), sizes)
    groups = generator.integers(MEMBERS, size=(GROUPS, GROUP))
    own = groups[
        generator.integers(GROUPS, size=rows)[row], generator.integers(GROUP, size=len(row))
    ]
    popular = np.floor(MEMBERS ** generator.random(len(row))).astype(np.int64) - 1
    member = np.where(generator.random(len(row)) < 2 / 3, own, popular)
    codes = np.unique(row * MEMBERS + member)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(codes // MEMBERS, minlength=rows), out=offsets[1:])
    return CSR(offsets, codes % MEMBERS)


def jaccard_pairs_reference(sets: CSR, threshold: float) -> set[tuple[int, int]]:
    """The similar pairs, from Python sets."""
    found = [set(sets.row(i).tolist()) for i in range(len(sets))]
    pairs = set()
    for i, one in enumerate(found):
        for j, other in enumerate(found):
            union = len(one | other)
            if i != j and union and len(one & other) / union > threshold:
                pairs.add((i, j))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--threshold", type=float, default=0.1)
    parser.add_argument("--check", action="store_true", help="against Python sets; slow")
    options = parser.parse_args()
    sets = made_sets(options.rows)
    before = peak_memory_bytes()
    clock = Stopwatch()
    found = jaccard_pairs(sets, MEMBERS, options.threshold)
    wall, cpu = clock.seconds()
    if options.check:
        pairs = set(zip(found.rows.tolist(), found.items.tolist(), strict=True))
        assert pairs == jaccard_pairs_reference(sets, options.threshold)
    print_report(
        wall=wall,
        cpu=cpu,
        steps=1,
        steps_per_epoch=1,
        examples_per_epoch=options.rows,
        versions={"numpy": np.__version__},
        threads=1,
        members=len(sets.items),
        pairs=len(found.items),
        bytes_above=peak_memory_bytes() - before,
    )


if __name__ == "__main__":
    main()
