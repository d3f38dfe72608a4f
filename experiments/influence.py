"""Whether influence finds things: planted errors, and triples without which a prediction falls.

    python -m experiments.influence planted|removed [--data kinship] [--epochs 100] [--cases 20]

``planted``: 3 % of the training triples get a wrong tail or head; after training, the triples are
ranked by their influence on themselves, and the area under the ROC curve says how well the wrong
ones are told apart. ``removed``: for each of some predictions of the test part the model is trained
again without its strongest proponents, and without as many random triples; both times the score of
the prediction is compared with that of the whole data.

Each training and each case is kept under ``runs/experiments/influence`` and not repeated: the
command goes on where it was stopped. Results: ``experiments/results/influence``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from bench.data import GRAPHS, data_folder
from bench.machine import ROOT, commit, describe_machine
from experiments.queue import locked, say
from experiments.record import write_record

RUNS = ROOT / "runs" / "experiments" / "influence"
RESULTS = ROOT / "experiments" / "results" / "influence"
HASTEN = (sys.executable, "-m", "hasten")

Row = tuple[str, ...]
Parts = dict[str, list[Row]]


def read_parts(name: str) -> Parts:
    """The triples of train, valid and test, as labels in the order of the files."""
    found = {}
    with tarfile.open(data_folder() / GRAPHS[name]) as archive:
        for part in ("train", "valid", "test"):
            member = archive.extractfile(f"{part}.txt")
            assert member is not None
            lines = member.read().decode().splitlines()
            found[part] = [tuple(line.split("\t")) for line in lines]
    return found


def plant(parts: Parts, share: float, seed: int) -> tuple[Parts, set[Row]]:
    """The parts with wrong triples in the place of a share of train's, and which those are.

    Head or tail is replaced by another entity so that no part has the triple.
    """
    generator = np.random.default_rng(seed)
    known = {row for rows in parts.values() for row in rows}
    entities = sorted({end for row in known for end in (row[0], row[2])})
    train, wrong = list(parts["train"]), set()
    for place in generator.permutation(len(train))[: round(share * len(train))].tolist():
        while True:
            row, end = list(train[place]), int(generator.integers(2)) * 2
            row[end] = entities[int(generator.integers(len(entities)))]
            made = tuple(row)
            if made not in known and made not in wrong:
                break
        train[place] = made
        wrong.add(made)
    return {**parts, "train": train}, wrong


def area_under_curve(scores: np.ndarray[Any, Any], positive: np.ndarray[Any, Any]) -> float:
    """The probability that a positive has the higher score; ties count half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[place]
    hits, count = int(positive.sum()), len(scores)
    total = float(ranks[positive].sum()) - hits * (hits + 1) / 2
    return total / (hits * (count - hits))


def run_hasten(*arguments: str) -> dict[str, Any]:
    """The JSON object that a command prints."""
    command = [*HASTEN, *arguments, "--json", "--quiet"]
    done = subprocess.run(command, check=False, text=True, capture_output=True)
    if done.returncode != 0:
        raise SystemExit(f"hasten {' '.join(arguments)}:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def train(folder: Path, parts: Parts, options: Sequence[str], seed: int) -> dict[str, Any]:
    """A run on these parts, in ``folder/run``, gone on with or found done."""
    folder.mkdir(parents=True, exist_ok=True)
    result = folder / "result.json"
    if result.exists():
        found: dict[str, Any] = json.loads(result.read_text())
        return found
    named = []
    for part, rows in parts.items():
        file = folder / f"{part}.txt"
        file.write_text("".join("\t".join(row) + "\n" for row in rows))
        named += ["--set", f"data.{part}={file}"]
    arguments = ("train", "conve", *named, *options, "--seed", str(seed))
    found = run_hasten(*arguments, "--resume", "auto", "--out", str(folder / "run"))
    write_record(result, found)
    return found


def options_of(given: argparse.Namespace, checkpoints: int = 10) -> list[str]:
    """What ``hasten train`` is given: no selection, so that all runs train alike."""
    every = max(1, given.epochs // checkpoints)
    return [
        *("--epochs", str(given.epochs), "--eval-every", str(every)),
        *("--set", f"checkpoint.every={every}", "--set", "checkpoint.keep=100"),
        *("--set", "data.unknown=keep", "--metrics", "mrr,hits", "--topk", "1,10"),
    ]


#: how planted triples are looked for: name -> options of ``hasten influence --self``
WAYS = {
    "positive, best": ("--loss", "positive"),
    "positive, final": ("--loss", "positive", "--checkpoints", "final"),
    "positive, all checkpoints": ("--loss", "positive", "--checkpoints", "all"),
    "positive, all, last layer": (
        *("--loss", "positive", "--checkpoints", "all", "--layers", "last"),
    ),
    "training, all checkpoints": ("--loss", "training", "--checkpoints", "all"),
}


def planted(given: argparse.Namespace) -> dict[str, Any]:
    """AUC of self-influence for planted triples, in several ways."""
    folder = RUNS / f"planted-{given.data}-{given.epochs}-seed{given.seed}"
    parts, wrong = plant(read_parts(given.data), given.share, given.seed)
    trained = train(folder, parts, options_of(given), given.seed)
    say(f"trained: test {trained['test']}")
    areas, found_first = {}, {}
    for number, (name, options) in enumerate(WAYS.items()):
        file = folder / f"self-{number}.parquet"
        if not file.exists():
            run_hasten("influence", str(folder / "run"), "--self", *options, "--out", str(file))
        table = pq.read_table(file)
        columns = [table[c].cast("string").to_pylist() for c in ("head", "relation", "tail")]
        positive = np.array([row in wrong for row in zip(*columns, strict=True)])
        assert int(positive.sum()) == len(wrong)
        areas[name] = area_under_curve(table["influence"].to_numpy(), positive)
        found_first[name] = float(positive[: len(wrong)].mean())
        say(f"{name}: AUC {areas[name]:.4f}, {found_first[name]:.1%} of the first {len(wrong)}")
    return {"auc": areas, "share_of_first": found_first, "planted": len(wrong),
            "train": len(parts["train"]), "test": trained["test"]}  # fmt: skip


def score_of(run: Path, triple: Row) -> float:
    """The mean of the triple's two scores, as answer of the question for its tail and its head."""
    import torch

    from hasten.data.tables import KnowledgeGraph
    from hasten.influence.queries import triples_of
    from hasten.loaded_run import load_run
    from hasten.objectives.triple_queries import both_directions
    from hasten.scoring import TripleQueries

    loaded = load_run(run, checkpoint="final", device="cpu")
    graph, model = loaded.dataset, loaded.model
    assert isinstance(graph, KnowledgeGraph)
    one = triples_of(graph, [(triple[0], triple[1], triple[2])])
    entity, relation, answer = both_directions(one, len(graph.relations))
    with torch.no_grad():
        scorer = model.scorer(TripleQueries(entity, relation))
        scores = scorer.block(0, len(graph.entities))
    return float(np.mean([float(scores[i, answer[i]]) for i in range(2)]))


def removed(given: argparse.Namespace) -> dict[str, Any]:
    """How far predictions fall without their proponents, and without random triples."""
    name = f"removed-{given.data}-{given.epochs}-seed{given.seed}"
    folder, parts = RUNS / name, read_parts(given.data)
    whole = train(folder / "whole", parts, options_of(given), given.seed)
    run = folder / "whole" / "run"
    generator = np.random.default_rng(given.seed)
    order = generator.permutation(len(parts["test"])).tolist()
    # predictions that the model makes: their mean score is above that of a coin
    chosen = [t for t in (parts["test"][i] for i in order[: 4 * given.cases])
              if score_of(run, t) > 0][: given.cases]  # fmt: skip
    cases = []
    for number, triple in enumerate(chosen):
        kept = folder / f"case-{number}.json"
        if not kept.exists():
            last = options_of(given, checkpoints=1)
            write_record(kept, _case(given, folder / f"case-{number}", parts, last, run, triple))
        cases.append(json.loads(kept.read_text()))
        case = cases[-1]
        say(f"case {number}: whole {case['whole']:.3f}, without proponents "
            f"{case['proponents']:.3f}, without random {case['random']:.3f}")  # fmt: skip
    fell = [case["random"] - case["proponents"] for case in cases]
    return {"cases": cases, "removed": given.remove, "test": whole["test"],
            "further_without_proponents": sum(f > 0 for f in fell),
            "mean_further": float(np.mean(fell))}  # fmt: skip


def _case(
    given: argparse.Namespace,
    folder: Path,
    parts: Parts,
    options: list[str],
    run: Path,
    triple: Row,
) -> dict[str, Any]:
    """One prediction: its scores with all triples, without proponents, without random ones."""
    asked = ",".join(f'"{cell}"' for cell in triple)
    found = run_hasten(
        *("influence", str(run), "--triple", asked, "--topk", str(given.remove)),
        *("--checkpoints", "all", "--loss", "positive"),
    )
    best = [
        (str(row["head"]), str(row["relation"]), str(row["tail"]))
        for row in found["influences"]
        if row["kind"] == "proponent"
    ]
    generator = np.random.default_rng([given.seed, *"".join(triple).encode()])
    drawn = generator.permutation(len(parts["train"]))[: len(best)].tolist()
    without = {
        "proponents": [row for row in parts["train"] if row not in set(best)],
        "random": [row for i, row in enumerate(parts["train"]) if i not in set(drawn)],
    }
    case: dict[str, Any] = {"triple": list(triple), "whole": score_of(run, triple)}
    for name, rows in without.items():
        train(folder / name, {**parts, "train": rows}, options, given.seed)
        case[name] = score_of(folder / name / "run", triple)
    shutil.rmtree(folder)  # twice the weights and their checkpoints a case
    return {**case, "proponents_removed": len(best)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("verb", choices=("planted", "removed"))
    parser.add_argument("--data", default="kinship", choices=sorted(GRAPHS))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--share", type=float, default=0.03, help="planted: of the training triples"
    )
    parser.add_argument("--cases", type=int, default=20, help="removed: predictions")
    parser.add_argument("--remove", type=int, default=20, help="removed: triples left out of each")
    given = parser.parse_args(arguments)
    with locked(RUNS):
        found = (planted if given.verb == "planted" else removed)(given)
    name = f"{given.verb}-{given.data}-{given.epochs}-seed{given.seed}"
    about = {
        "name": name,
        "arguments": vars(given),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": describe_machine(),
    }
    write_record(RESULTS / f"{name}.json", {**about, **found})
    print(json.dumps({key: value for key, value in found.items() if key != "cases"}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
