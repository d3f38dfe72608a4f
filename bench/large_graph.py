"""A made graph of millions of entities, trained with drawn negatives: does it fit, and how fast?

    python -m bench.large_graph
    python -m bench.large_graph --entities 20000 --triples 50000

Triples are planted: the tail of (h, r) is h + 1 + r·7919 modulo the number of entities, so that
every entity and relation has triples. Dense Adam holds four numbers a weight, so that the width
decides the memory: 2,000,000 entities of width 100 are 3.2 GB. The result has the process's peak,
the examples per second and the filtered figures of held-out triples.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.machine import load
from bench.results import RESULTS, circumstances, page, write_result

RELATIONS = 20
HELD_OUT = 100


def write_graph(folder: Path, entities: int, triples: int) -> None:
    """``train.parquet``, ``valid.parquet`` and ``test.parquet``; train holds every entity."""
    if triples < entities:
        raise SystemExit(f"{triples} triples cannot hold all of {entities} entities as heads")
    generator = np.random.default_rng(0)
    head = np.concatenate(
        [np.arange(entities), generator.integers(0, entities, triples - entities)]
    )
    relation = generator.integers(0, RELATIONS, triples)
    rest = generator.integers(0, entities, 2 * HELD_OUT)
    parts = {"train": (head, relation)}
    for number, name in enumerate(("valid", "test")):
        chosen = rest[number * HELD_OUT : (number + 1) * HELD_OUT]
        parts[name] = (chosen, generator.integers(0, RELATIONS, HELD_OUT))
    for name, (h, r) in parts.items():
        tail = (h + 1 + 7919 * r) % entities
        table = pa.table({"head": h, "relation": r, "tail": tail})
        pq.write_table(table, folder / f"{name}.parquet")


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="conve")
    parser.add_argument("--entities", type=int, default=2_000_000)
    parser.add_argument("--triples", type=int, default=2_500_000)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4096)
    losses = ("sampled", "sampled-softmax", "1-n", "1vsall")
    parser.add_argument("--loss", default="sampled", choices=losses)
    parser.add_argument("--seconds", type=int, default=120, help="of training")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    before = load()
    chosen = vars(options) | {"relations": RELATIONS}
    result = {
        "name": f"large-graph-{options.model}-{options.loss}",
        **circumstances(before, chosen.pop("provisional")),
        "settings": chosen,
        **train(options),
        "repeat": "python -m bench.large_graph " + " ".join(sys.argv[1:]),
    }
    path = write_result(result, markdown(result), results)
    print(markdown(result))
    print(path)
    return 0


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Make the graph, train on it in a fresh process, and give back what that says of itself."""
    with tempfile.TemporaryDirectory() as scratch:
        data, out = Path(scratch) / "graph", Path(scratch) / "run"
        data.mkdir()
        write_graph(data, options.entities, options.triples)
        command = [sys.executable, "-m", "hasten", "train", options.model, str(data)]
        command += ["--set", f"model.width={options.width}", "--set", f"model.loss={options.loss}"]
        command += ["--batch-size", str(options.batch_size), "--epochs", "1"]
        command += ["--max-time", f"{options.seconds}s", "--threads", str(options.threads)]
        command += ["--out", str(out), "--json", "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        found = json.loads(done.stdout.splitlines()[-1])
    kept = ("peak_memory_bytes", "examples_per_second", "seconds", "stopped_by", "test")
    return {name: found[name] for name in kept}


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    chosen = result["settings"]
    about = (
        f"{chosen['entities']:,} entities, {chosen['triples']:,} triples, width "
        f"{chosen['width']}, batches of {chosen['batch_size']:,}, {chosen['threads']} thread(s), "
        f"loss {chosen['loss']}."
    )
    rate, seconds = result["examples_per_second"], result["seconds"]["train"]
    lines = [
        f"Peak {result['peak_memory_bytes'] / 2**30:.2f} GiB, "
        f"{rate:,.0f} examples a second in {seconds:.0f} s of training.",
    ]
    return page(result, about, lines)


if __name__ == "__main__":
    raise SystemExit(main())
