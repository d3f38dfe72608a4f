"""Protocols of other libraries: against their definitions, and against their own evaluators.

The reference ranks one user at a time, in a sorted list, as the libraries do. The evaluators of
RecBole and PyKEEN run in their own environments (``make bench-env``, or the folder that
HASTEN_BENCH_ENVIRONMENTS names); those of KGAT and MMRec in clones (KGAT_PYTORCH, MMREC).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hasten.config import EvaluationOptions
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, KnowledgeGraph
from hasten.errors import ConfigurationError, DataError
from hasten.evaluation.other_libraries import PEERS, peer_settings, peer_words
from hasten.evaluation.protocols import RankingTask, ranking_task
from hasten.evaluation.ranker import evaluate
from hasten.models.interface import Model, Sizes
from tests.evaluation.test_completion import ENTITIES, RELATIONS, make_graph

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = Path(os.environ.get("HASTEN_BENCH_ENVIRONMENTS", ROOT / ".venvs"))
CPU = torch.device("cpu")
USERS, ITEMS = 60, 130
PART_OF = {"valid": VALID, "test": TEST}
Make = Callable[..., Dataset]


class Fixed(Model):
    """Returns given scores: [users, items], or [E, 2R, E] of a knowledge graph."""

    def __init__(self, scores: np.ndarray) -> None:
        super().__init__(None, Sizes())
        self.scores = torch.from_numpy(scores)

    def scorer(self, queries: Any) -> Any:
        rows = (
            self.scores[queries.user]
            if self.scores.dim() == 2
            else self.scores[queries.entity, queries.relation]
        )
        return Rows(rows)


class Rows:
    def __init__(self, scores: torch.Tensor) -> None:
        self.scores = scores

    def block(self, start: int, stop: int) -> torch.Tensor:
        return self.scores[:, start:stop].clone()


def made_scores() -> np.ndarray:
    """Without ties: the order of ties is not defined in the libraries that sort."""
    row = np.arange(ITEMS, dtype=np.float32)
    return np.random.default_rng(8).permuted(np.tile(row, (USERS, 1)), axis=1)


def made_events(complete: bool = False) -> list[tuple[int, int, int]]:
    """Given parts: some targets are items of the history, and some items are in no training part.

    complete: every item is in the training part of a user.
    """
    rng = np.random.default_rng(7)
    events = [(item % USERS, item, TRAIN) for item in range(ITEMS if complete else 0)]
    for user in range(USERS):
        items = rng.permutation(ITEMS - 6)[: rng.integers(8, 20)]
        cut = rng.integers(3, len(items) - 3)
        parts = [TRAIN] * cut + [VALID] * 2 + [TEST] * (len(items) - cut - 2)
        events += [(user, int(item), part) for item, part in zip(items, parts, strict=True)]
        if user % 3 == 0:
            again = [int(items[0]), int(items[cut]), ITEMS - 1 - user % 6]
            events += [(user, item, TEST) for item in again]
    return sorted(events, key=lambda event: (event[0], event[2]))


def by_definition(name: str, hits: list[int], targets: int) -> float:
    """A metric of one user from the hits of the whole ranked list and the number of targets."""
    kind, _, cut = name.partition("@")
    k = int(cut) if cut else len(hits)
    top = hits[:k]

    def dcg(gains: list[int]) -> float:
        return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains))

    precisions = [sum(hits[: i + 1]) / (i + 1) for i, hit in enumerate(top) if hit]
    ideals = {
        "ndcg": [1] * min(targets, k),
        "ndcg_rectools": [1] * k,
        "ndcg_kgat": sorted(hits[: max(k, 100)], reverse=True)[:k],
    }
    if kind in ideals:
        return dcg(top) / dcg(ideals[kind]) if any(top) else 0.0
    return {
        "recall": sum(top) / targets,
        "precision": sum(top) / k,
        "hr": float(any(top)),
        "mrr": 1 / (top.index(1) + 1) if 1 in top else 0.0,
        "map": sum(precisions) / min(targets, k),
        "map_rectools": sum(precisions) / targets,
    }[kind]


def lists(name: str, dataset: Dataset, part: int, sequential: bool) -> list[tuple[list[int], int]]:
    """The hits of each user's ranked list and the number of targets, as the library makes them."""
    scores = made_scores()

    def items(user: int, *parts: int) -> set[int]:
        rows = (dataset.interactions.user == user) & np.isin(dataset.part, parts)
        return set(dataset.interactions.item[rows].tolist())

    catalog = set(range(ITEMS))
    if name == "rectools":
        catalog = set(dataset.interactions.item[dataset.part == TRAIN].tolist())
    found = []
    for user in range(USERS):
        history = items(user, TRAIN) if part == VALID else items(user, TRAIN, VALID)
        targets = items(user, part)
        masked = {
            "recbole": set() if sequential else history - targets,
            "rectools": history,
            "kgat": history,
            "mmrec": items(user, TRAIN),
        }[name]
        if name == "rectools":
            targets = (targets - history) & catalog
        if targets and history:
            order = sorted(catalog - masked, key=lambda item: -scores[user, item])
            found.append(([int(item in targets) for item in order], len(targets)))
    return found


def options_of(name: str, reads: str = "pairs", **changes: Any) -> EvaluationOptions:
    settings = peer_settings(name, "a model", reads)
    own = {k.partition(".")[2]: v for k, v in settings.items() if k.startswith("evaluation.")}
    return EvaluationOptions.model_validate({**own, "like": name, **changes})


def measured(model: Model, task: Any, options: EvaluationOptions) -> dict[str, float]:
    values = evaluate(model, task, options.metrics, device=CPU).values
    return {name: value for name, value in values.items() if "/" not in name}


@pytest.mark.parametrize("part", [VALID, TEST])
@pytest.mark.parametrize(
    ("name", "reads"),
    [("recbole", "pairs"), ("recbole", "interactions"), ("rectools", "interactions"),
     ("kgat", "facts"), ("mmrec", "features")],
)  # fmt: skip
def test_items_are_ranked_and_measured_as_the_library_does(
    make_dataset: Make, name: str, reads: str, part: int
) -> None:
    dataset = make_dataset(made_events(), USERS, ITEMS, "given parts (train, valid, test)")
    options = options_of(name, reads)
    kinds = {metric.partition("@")[0] for metric in options.metrics}
    more = (f"{kind}@{k}" for kind in sorted(kinds) for k in (1, 3, 5, 40))
    options = options_of(name, reads, metrics=(*options.metrics, *more))
    found = measured(Fixed(made_scores()), ranking_task(dataset, part, options, 0), options)
    wanted = lists(name, dataset, part, reads == "interactions")
    for metric in options.metrics:
        mean = np.mean([by_definition(metric, hits, count) for hits, count in wanted])
        assert found[metric] == pytest.approx(mean, abs=1e-9), metric


def test_popular_others_without_replacement(dataset: Dataset) -> None:
    options = options_of("bert4rec", "interactions")
    task = ranking_task(dataset, TEST, options, 0)
    assert isinstance(task, RankingTask)
    assert task.candidates is not None
    assert task.candidates.shape == (700, 101)
    popularity = np.bincount(dataset.interactions.item, minlength=300).astype(float)
    met = [set(dataset.interactions.item[dataset.interactions.user == u]) for u in range(700)]
    first = np.zeros(300)
    wanted = np.zeros(300)
    for row, user in enumerate(task.queries.user):
        others = task.candidates[row, 1:]
        assert len(set(others.tolist())) == 100
        assert not met[user] & set(others.tolist())
        first[others[0]] += 1
        free = popularity * ~np.isin(np.arange(300), list(met[user]))
        wanted += free / free.sum()
    # the first draw has the probabilities themselves
    common = wanted > 5
    assert ((first - wanted)[common] ** 2 / wanted[common]).mean() == pytest.approx(1, abs=0.5)
    again = ranking_task(dataset, TEST, options, 0)
    assert isinstance(again, RankingTask)
    np.testing.assert_array_equal(task.candidates, again.candidates)
    scores = np.random.default_rng(1).random((700, 300), dtype=np.float32)
    found = measured(Fixed(scores), task, options)
    mine = np.take_along_axis(scores[task.queries.user], task.candidates, axis=1)
    ranks = (mine[:, 1:] > mine[:, :1]).sum(1)
    hits = [[int(place == rank) for place in range(101)] for rank in ranks]
    for metric in options.metrics:
        wanted_mean = np.mean([by_definition(metric, row, 1) for row in hits])
        assert found[metric] == pytest.approx(wanted_mean, abs=1e-9), metric


def test_too_few_popular_others_are_refused(make_dataset: Make) -> None:
    small = make_dataset([(0, 0, TRAIN), (0, 1, TEST)], 1, 50, "leave-last-two-out")
    with pytest.raises(DataError, match="not 100 others to draw"):
        ranking_task(small, TEST, options_of("bert4rec"), 0)


def triple_scores() -> np.ndarray:
    """Few values, so that many are equal."""
    shape = (ENTITIES, 2 * RELATIONS, ENTITIES)
    return np.random.default_rng(3).integers(0, 12, shape).astype(np.float32)


def triple_ranks(name: str, graph: KnowledgeGraph, part: int) -> list[float]:
    """The rank of each triple's tail and head, one candidate at a time."""
    scores = triple_scores()
    parts = {TRAIN, VALID, TEST} if name == "libkge" else {TRAIN, VALID} if part == VALID else None
    rows = np.stack([graph.triples.head, graph.triples.relation, graph.triples.tail], axis=1)
    known = {
        tuple(row)
        for row, of in zip(rows.tolist(), graph.part.tolist(), strict=True)
        if parts is None or of in parts
    }
    ranks = []
    for h, r, t in rows[graph.part == part].tolist():
        tails = [e for e in range(ENTITIES) if e == t or (h, r, e) not in known]
        heads = [e for e in range(ENTITIES) if e == h or (e, r, t) not in known]
        for row, target, candidates in (
            (scores[h, r], t, tails),
            (scores[t, RELATIONS + r], h, heads),
        ):
            greater = sum(row[e] > row[target] for e in candidates)
            equal = sum(row[e] == row[target] for e in candidates)  # with the target itself
            ranks.append(
                greater + equal // 2 + 1 if name == "libkge" else greater + (equal + 1) / 2
            )
    return ranks


@pytest.mark.parametrize("part", [VALID, TEST])
@pytest.mark.parametrize("name", ["libkge", "pykeen"])
def test_triples_are_ranked_and_measured_as_the_library_does(name: str, part: int) -> None:
    graph, options = make_graph(), options_of(name, "triples")
    found = measured(Fixed(triple_scores()), ranking_task(graph, part, options, 0), options)
    ranks = np.array(triple_ranks(name, graph, part))
    assert found["mrr"] == pytest.approx((1 / ranks).mean(), abs=1e-9)
    assert found["mr"] == pytest.approx(ranks.mean(), abs=1e-9)
    for k in (1, 3, 10):
        assert found[f"hits@{k}"] == pytest.approx((ranks <= k).mean(), abs=1e-9)


def test_a_protocol_of_another_task_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="choose one of libkge, pykeen"):
        peer_settings("recbole", "conve", "triples")
    with pytest.raises(ConfigurationError, match="entities of a knowledge graph, which sasrec"):
        peer_settings("pykeen", "sasrec", "interactions")


def test_the_description_names_the_library_and_another_split() -> None:
    assert peer_words(None, "ratio") == ""
    assert peer_words("kgat", "given parts (train, test)") == ", like kgat"
    assert peer_words("kgat", "leave-last-two-out") == ", like kgat except for the split"
    assert peer_words("pykeen", "anything") == ", like pykeen"
    assert set(PEERS) == {
        "recbole", "rectools", "bert4rec", "kgat", "mmrec", "libkge", "pykeen"
    }  # fmt: skip


def run_peer(name: str, data: dict[str, np.ndarray], folder: Path, *flags: str) -> Any:
    """What the evaluator of a library reports of the same scores."""
    python = ENVIRONMENTS / name / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no environment {python} (make bench-env)")
    np.savez(folder / "in.npz", **data)  # type: ignore[arg-type]
    module = f"bench.{name}_side.evaluate"
    given = [str(folder / file) for file in ("in.npz", "out.json")]
    subprocess.run([python, "-m", module, *given, *flags], cwd=ROOT, check=True, timeout=600)
    return json.loads((folder / "out.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("reads", ["pairs", "interactions"])
def test_recbole_itself_reports_the_same(make_dataset: Make, tmp_path: Path, reads: str) -> None:
    sequential = reads == "interactions"
    events = made_events(complete=True)
    if sequential:  # the last two of each user, of which RecBole makes the parts itself
        own = [[event for event in events if event[0] == user] for user in range(USERS)]
        parts = [[TRAIN] * (len(rows) - 2) + [VALID, TEST] for rows in own]
        events = [(u, i, p) for rows, of in zip(own, parts, strict=True)
                  for (u, i, _), p in zip(rows, of, strict=True)]  # fmt: skip
    dataset = make_dataset(events, USERS, ITEMS, "given parts")
    columns = dataset.interactions
    theirs = run_peer(
        "recbole",
        {"user": columns.user, "item": columns.item, "part": dataset.part,
         "time": np.arange(len(columns.user)), "scores": made_scores()},
        tmp_path,
        *(["--sequential"] if sequential else []),
    )  # fmt: skip
    names = {"hit": "hr"}
    for part, values in theirs.items():
        ours = {f"{names.get(n.split('@')[0], n.split('@')[0])}@{n.split('@')[1]}": v
                for n, v in values.items()}  # fmt: skip
        options = options_of("recbole", reads, metrics=tuple(ours))
        found = measured(
            Fixed(made_scores()), ranking_task(dataset, PART_OF[part], options, 0), options
        )
        assert found == pytest.approx(ours, abs=1e-6)
        assert len(found) == 12


@pytest.mark.slow
def test_pykeen_itself_reports_the_same(tmp_path: Path) -> None:
    graph, scores = make_graph(), triple_scores()
    rows = np.stack([graph.triples.head, graph.triples.relation, graph.triples.tail], axis=1)
    parts = {name: rows[graph.part == n] for n, name in enumerate(("train", "valid", "test"))}
    theirs = run_peer("pykeen", {**parts, "scores": scores}, tmp_path)
    for part, values in theirs.items():
        options = options_of("pykeen", "triples")
        found = measured(Fixed(scores), ranking_task(graph, PART_OF[part], options, 0), options)
        assert found == pytest.approx(values, abs=1e-6)


def of_clone(variable: str, file: str) -> Any:
    """A module of a clone that an environment variable names."""
    folder = os.environ.get(variable)
    if not folder:
        pytest.skip(f"{variable} names no clone")
    spec = importlib.util.spec_from_file_location(f"of_{variable.lower()}", Path(folder) / file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_kgats_script_itself_reports_the_same(make_dataset: Make) -> None:
    script = of_clone("KGAT_PYTORCH", "utils/metrics.py")
    events = [event for event in made_events() if event[2] != VALID]
    dataset = make_dataset(events, USERS, ITEMS, "given parts (train, test)")
    items: dict[int, dict[int, list[int]]] = {TRAIN: {}, TEST: {}}
    for user, item, part in events:
        items[part].setdefault(user, []).append(item)
    users = sorted(items[TEST])
    theirs = script.calc_metrics_at_k(
        torch.from_numpy(made_scores()[users]), items[TRAIN], items[TEST],
        np.array(users), np.arange(ITEMS), [20, 40],
    )  # fmt: skip
    wanted = {f"{n}@{k}": float(v.mean()) for k, of in theirs.items() for n, v in of.items()}
    options = options_of("kgat", "facts", metrics=tuple(wanted))
    found = measured(Fixed(made_scores()), ranking_task(dataset, TEST, options, 0), options)
    assert found == pytest.approx(wanted, abs=1e-6)


@pytest.mark.slow
def test_mmrecs_metrics_themselves_are_the_same(
    make_dataset: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(np, "float", float, raising=False)  # which MMRec still uses
    script = of_clone("MMREC", "src/utils/metrics.py")
    dataset = make_dataset(made_events(), USERS, ITEMS, "given parts")
    ranked = lists("mmrec", dataset, TEST, False)
    hits = np.array([row[:50] for row, _ in ranked], bool)
    counts = np.array([count for _, count in ranked])
    wanted = {
        f"{name}@{k}": float(script.metrics_dict[name](hits, counts)[k - 1])
        for name in ("recall", "ndcg", "precision", "map")
        for k in (5, 10, 20, 50)
    }
    options = options_of("mmrec", "features", metrics=tuple(wanted))
    found = measured(Fixed(made_scores()), ranking_task(dataset, TEST, options, 0), options)
    assert found == pytest.approx(wanted, abs=1e-6)
