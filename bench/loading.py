"""Seconds, peak memory and fingerprint of loading made data of a size.

    python -m bench.loading triples 10000000
    python -m bench.loading typed 1000000
    python -m bench.loading quoted 10000000

triples: ``head relation tail`` of n / 10 entities and 200 relations. typed: the columns of PrimeKG
with names, n / 20 ids a type, each edge in both directions. plain, quoted: interactions of n / 15
users with n / 50 items, text in quotes or not. facts: n triples about these items, with 20
relations and n / 50 entities. The file is made once, in the folder for temporary files. Equal
fingerprints before and after a change show that it reads the same data.
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
import pyarrow.compute as pc
import pyarrow.csv as arrow_csv
from numpy.typing import NDArray
from pyarrow import parquet

KINDS = ("triples", "typed", "plain", "quoted", "facts")
_GRAPHS = ("triples", "typed", "facts")
_TRIPLES = ("triples", "facts")
_TYPES = np.array(["drug", "disease", "gene/protein", "pathway", "anatomy"])
#: of the features of each modality, as those of Music4All
_WIDTHS = {"image": 1024, "text": 384}


def made(kind: str, rows: int) -> Path:
    """The file of a kind and size, made where it does not exist."""
    path = (
        Path(tempfile.gettempdir()) / f"hasten-{kind}-{rows}.{'tsv' if kind in _TRIPLES else 'csv'}"
    )
    if not path.exists():
        table = {"triples": _triples, "typed": _typed, "facts": _facts}.get(kind, _events)(rows)
        options = arrow_csv.WriteOptions(
            include_header=kind not in _TRIPLES,
            delimiter="\t" if kind in _TRIPLES else ",",
            quoting_style="needed" if kind == "quoted" else "none",
        )
        arrow_csv.write_csv(table, path, options)
    return path


def made_for(reads: str, rows: int) -> tuple[Path, dict[str, str]]:
    """The file that a model with this attribute ``reads`` trains on, and what else it is given.

    As many facts as interactions, or normally distributed features of all items.
    """
    kind = {"triples": "triples", "typed_graph": "typed"}.get(reads, "plain")
    given = {}
    if reads == "facts":
        given["data.kg"] = str(made("facts", rows))
    elif reads == "features":
        for modality in _WIDTHS:
            given[f"data.features.{modality}"] = str(_features(modality, rows))
    return made(kind, rows), given


def _features(modality: str, rows: int) -> Path:
    path = Path(tempfile.gettempdir()) / f"hasten-{modality}-{rows}.parquet"
    if not path.exists():
        items, width = rows // 50, _WIDTHS[modality]
        values = np.random.default_rng(width).standard_normal(items * width, np.float32)
        lists = pa.FixedSizeListArray.from_arrays(pa.array(values), width)
        parquet.write_table(
            pa.table({"item_id": _named("item-", np.arange(items)), "features": lists}), path
        )
    return path


def _triples(rows: int) -> pa.Table:
    random, entities = np.random.default_rng(0), rows // 10
    columns = {
        "head": _named("e", _skewed(random, entities, rows)),
        "relation": _named("r", random.integers(0, 200, rows)),
        "tail": _named("e", random.integers(0, entities, rows)),
    }
    return pa.table(columns)


def _facts(rows: int) -> pa.Table:
    random, items = np.random.default_rng(1), rows // 50
    columns = {
        "head": _named("item-", random.integers(0, items, rows)),
        "relation": _named("r", random.integers(0, 20, rows)),
        "tail": _named("e", _skewed(random, items, rows)),
    }
    return pa.table(columns)


def _typed(rows: int) -> pa.Table:
    random, nodes, half = np.random.default_rng(0), rows // 20, rows // 2
    relation = random.integers(0, 12, half)
    ends = _skewed(random, nodes, half), random.integers(0, nodes, half)
    kinds = relation % 5, (2 * relation + 1) % 5
    order = random.permutation(2 * half)
    columns = {"relation": _named("relation_", np.tile(relation, 2)[order])}
    for end, step in (("x", 1), ("y", -1)):
        number = np.concatenate(ends[::step])[order]
        kind = pa.array(_TYPES[np.concatenate(kinds[::step])[order]])
        columns[f"{end}_id"] = _named("", number)
        columns[f"{end}_type"] = kind
        columns[f"{end}_name"] = pc.binary_join_element_wise(kind, _named("node ", number), " ")
    return pa.table(columns)


def _events(rows: int) -> pa.Table:
    random = np.random.default_rng(0)
    columns = {
        "user_id": _named("user-", random.integers(0, rows // 15, rows)),
        "item_id": _named("item-", _skewed(random, rows // 50, rows)),
        "rating": pa.array(random.integers(1, 6, rows)),
        "timestamp": pa.array(random.integers(1_400_000_000, 1_600_000_000, rows)),
    }
    return pa.table(columns)


def _skewed(random: np.random.Generator, values: int, rows: int) -> NDArray[np.int64]:
    return (values * random.random(rows) ** 3).astype(np.int64)


def _named(before: str, numbers: NDArray[np.int64]) -> pa.Array:
    return pc.binary_join_element_wise(before, pa.array(numbers).cast(pa.string()), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("rows", type=int)
    options = parser.parse_args()
    path = made(options.kind, options.rows)

    from hasten.config import EvaluationOptions, InteractionOptions, TypedGraphOptions
    from hasten.data.graph.load import load_graph
    from hasten.data.interactions.load import load_dataset
    from hasten.data.store import fingerprint
    from hasten.data.tables import TEST, VALID, AnyDataset
    from hasten.evaluation.protocols import ranking_task

    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started, processor = time.perf_counter(), time.process_time()
    data: AnyDataset
    if options.kind in _GRAPHS:
        data = load_graph(TypedGraphOptions(path=str(path)), 0)
    else:
        data = load_dataset(InteractionOptions(path=str(path)), 0)
    found = {
        "kind": options.kind,
        "rows": options.rows,
        "seconds": round(time.perf_counter() - started, 2),
        "cpu": round(time.process_time() - processor, 2),
        "mebibytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - base) // 1024,
        "fingerprint": fingerprint(data)[:16],
    }
    if options.kind == "triples":
        processor = time.process_time()
        for part in (VALID, TEST):
            ranking_task(data, part, EvaluationOptions(), 0)
        found["cpu of both tasks"] = round(time.process_time() - processor, 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
