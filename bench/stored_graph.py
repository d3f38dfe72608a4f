"""HGT on a store of typed edges under a limit on the address space, and from memory.

    python -m bench.stored_graph --edges 20000000 --limit 3.0

Made edges of five types with edges / 200 nodes each, 12 relations, are written to CSV in the
columns of PrimeKG and prepared under ``RLIMIT_AS``. Then HGT trains some steps by neighborhoods,
with an evaluation of 1,000 triples: from the store under the limit; from the file under the limit,
which must fail if loading takes more; from the file without a limit. The last would rank all
triples of validation at its end, which a store does not, so it is ended once its last checkpoint is
there. Weights and moments of the first and the last must be the same bytes. The measures are those
of ``bench.stored_events``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from bench.stored_events import compare, report, run

#: of an edge in memory: triples and parts, and the links and messages of the training part
BYTES_PER_EDGE = 26 + 40
_ROWS, _RELATIONS = 5_000_000, 12
_TYPES = np.array(["anatomy", "disease", "drug", "gene", "pathway"])
_MODEL = [
    *("model.width=16", "model.hidden=16", "model.heads=2", "model.negatives=16"),
    *("model.mode=neighbors", "model.fan_out=4", "model.steps_per_epoch=30"),
    *("model.contrastive_weight=0", "evaluation.triples=1000", "evaluation.test=false"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--edges", type=int, default=2_000_000)
    parser.add_argument("--limit", type=float, default=3.0, help="GB of address space")
    parser.add_argument("--prepare-only", action="store_true", help="no training")
    parser.add_argument("--skip-failing", action="store_true", help="no run from the file under it")
    options = parser.parse_args()
    limit = int(options.limit * 1e9)
    print(
        f"{options.edges:,} edges: {options.edges * BYTES_PER_EDGE / 1e9:.2f} GB in memory once "
        f"they are loaded; limit {options.limit:g} GB of address space\n"
    )
    print("| what | limited | address space, GB | resident, GB (mapped) | CPU s | outcome |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        file, store = folder / "edges.csv", folder / "edges.store"
        write_edges(file, options.edges)
        prepare = ["data", "prepare", str(file), "--out", str(store)]
        report("data prepare", run(prepare, limit), limited=True)
        sizes = [each.stat().st_size for each in store.iterdir()]
        print(f"store: {sum(sizes) / options.edges:.1f} bytes an edge", file=sys.stderr)

        if options.prepare_only:
            return 0
        command = ["train", "hgt", "--epochs", "1", "--threads", "1", "--device", "cpu", "--quiet"]
        command += ["--batch-size", "1024", "--set", *_with_set(_MODEL)]
        return compare(command, store, file, limit, skip_failing=options.skip_failing)


def _with_set(values: list[str]) -> list[str]:
    """The values of one ``--set`` each, without the first ``--set``."""
    first, *others = values
    return [first, *(part for value in others for part in ("--set", value))]


def write_edges(file: Path, edges: int) -> None:
    """Heads skewed (the third power of a uniform number), tails uniform, no names."""
    generator, nodes = np.random.default_rng(0), edges // 200
    names = ("relation", "x_id", "x_type", "y_id", "y_type")
    kinds = (pa.string(), pa.int64(), pa.string(), pa.int64(), pa.string())
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    with csv.CSVWriter(
        file, schema, write_options=csv.WriteOptions(quoting_style="none")
    ) as writer:
        for start in range(0, edges, _ROWS):
            count = min(_ROWS, edges - start)
            relation = generator.integers(0, _RELATIONS, count)
            columns = [
                pa.array(np.array([f"relation_{i}" for i in range(_RELATIONS)])).take(relation),
                pa.array((nodes * generator.random(count) ** 3).astype(np.int64)),
                pa.array(_TYPES).take(relation % 5),
                pa.array(generator.integers(0, nodes, count)),
                pa.array(_TYPES).take((2 * relation + 1) % 5),
            ]
            writer.write_table(pa.table(columns, schema=schema))


if __name__ == "__main__":
    sys.exit(main())
