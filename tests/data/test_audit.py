"""The audit of the held-out parts: against a second implementation, one example at a time."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

from hasten.data.audit import MIN_ITEMS, audit, near_duplicates, relation_pairs, report
from hasten.data.graph.relation_overlap import IMPLIES
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, KnowledgeGraph, Triples
from tests.evaluation.conftest import build
from tests.evaluation.test_completion import make_graph


def made(seed: int, part_at_random: bool = False) -> Dataset:
    """60 users of 1 to 7 events among 30 items (28 and 29 only at the end), with few times."""
    rng = np.random.default_rng(seed)
    events, times = [], []
    for user in range(60):
        count = int(rng.integers(1, 8))
        parts = [*[TRAIN] * (count - 2), VALID, TEST][-count:]
        if part_at_random:
            parts = rng.choice(3, count, p=[0.6, 0.2, 0.2]).tolist()
        last = int(rng.integers(0, 28 if count > 2 else 30))
        items = [*rng.integers(0, 28, count - 1).tolist(), last]
        events += [(user, item, part) for item, part in zip(items, parts, strict=True)]
        times += np.sort(rng.integers(0, 6, count)).tolist()
    dataset = build(events, 60, 30, "made")
    return replace(dataset, interactions=replace(dataset.interactions, time=np.array(times)))


def users_by_hand(dataset: Dataset, part: int) -> dict[str, list[int]]:
    """Finding -> users."""
    found: dict[str, list[int]] = {}
    columns = (dataset.interactions.user, dataset.interactions.item, dataset.interactions.time)
    events = list(zip(*(c.tolist() for c in columns), dataset.part.tolist(), strict=True))
    trained = {item for _, item, _, p in events if p == TRAIN}
    for user in range(len(dataset.users)):
        targets = [(time, item) for u, item, time, p in events if u == user and p == part]
        history = [(time, item) for u, item, time, p in events if u == user and p < part]
        if not targets:
            continue
        first, items = min(targets)[0], {item for _, item in targets}
        facts = {
            "no history": not history,
            "tied in time": bool(history) and max(history)[0] == first,
            "history after target": bool(history) and max(history)[0] > first,
            "target in history": bool(items & {item for _, item in history}),
            "target not in train": bool(items - trained),
        }
        for name, true in facts.items():
            found.setdefault(name, [])
            found[name] += [user] * true
    return found


@pytest.mark.parametrize("part_at_random", [False, True])
@pytest.mark.parametrize("part", [VALID, TEST])
def test_users_equal_one_user_at_a_time(part, part_at_random):
    for seed in range(5):
        dataset = made(seed, part_at_random)
        audited = audit(dataset, part)
        by_hand = users_by_hand(dataset, part)
        found = {name: np.flatnonzero(mask).tolist() for name, mask in audited.findings.items()}
        del found["near-duplicate user"]
        assert found == by_hand
        targets = np.unique(dataset.interactions.user[dataset.part == part])
        assert np.flatnonzero(audited.judged).tolist() == targets.tolist()
        assert all(row["of"] == len(targets) for row in audited.rows())
    assert found["tied in time"]
    assert found["target in history"]
    untimed = replace(dataset, interactions=replace(dataset.interactions, time=None))
    assert audit(untimed, part).findings.keys() == by_hand.keys() - {
        "tied in time", "history after target"
    } | {"near-duplicate user"}  # fmt: skip


def test_near_duplicates_equal_all_pairs_of_users():
    rng = np.random.default_rng(0)
    events = []
    for user in range(80):
        base = np.arange(user % 10, user % 10 + 8) * 3
        items = rng.permutation(base)[: rng.integers(3, 9)].tolist()
        items += rng.integers(0, 60, rng.integers(0, 3)).tolist()
        events += [(user, item, TRAIN) for item in [*items, items[0]]]
    dataset = build(events, 80, 60, "made")
    sets = [{item for u, item, _ in events if u == user} for user in range(80)]
    expected = set()
    for a, b in combinations(range(80), 2):
        near = max(len(sets[a] - sets[b]), len(sets[b] - sets[a])) <= 1
        if near and min(len(sets[a]), len(sets[b])) >= MIN_ITEMS:
            expected |= {a, b}
    assert 5 < len(expected) < 75
    assert set(np.flatnonzero(near_duplicates(dataset)).tolist()) == expected


def leaking_graph() -> KnowledgeGraph:
    """r1 is nearly the inverse of r0 and r2 nearly a copy, in every part; some triples twice."""
    graph, rng = make_graph(), np.random.default_rng(3)
    old, first = graph.triples, np.flatnonzero(graph.triples.relation == 0)
    back, copy, again = (rng.permutation(first)[: int(n * len(first))] for n in (0.95, 0.98, 0.3))
    kept = np.concatenate([first, back, copy, again, rng.permutation(len(old))[:40]])
    head, tail, relation = old.head[kept], old.tail[kept], old.relation[kept]
    ends = np.cumsum([len(first), len(back), len(copy)])
    turned = slice(ends[0], ends[1])
    head[turned], tail[turned], relation[turned] = old.tail[back], old.head[back], 1
    relation[ends[1] : ends[2]] = 2
    part = np.sort(rng.choice(3, len(kept), p=[0.9, 0.05, 0.05])).astype(np.int8)
    order = rng.permutation(len(kept))
    triples = Triples(head[order], relation[order], tail[order])
    # the implied triples of an entity that is only in test
    triples.head[-1] = 39
    triples.head[:-1][triples.head[:-1] == 39] = 0
    triples.tail[triples.tail == 39] = 0
    return replace(graph, triples=triples, part=part, rank_last=np.zeros(len(kept), bool))


def shares_by_hand(known: set[tuple[int, int, int]]) -> dict[tuple[str, int, int], float]:
    """(kind, r, r') -> share of r's triples, one triple at a time."""
    shares = {}
    for r in range(3):
        mine = [(h, t) for h, s, t in known if s == r]
        for other in range(3):
            kinds = {
                "inverse": sum((t, other, h) in known for h, t in mine),
                "near-duplicate": sum((h, other, t) in known for h, t in mine) * (r != other),
            }
            shares |= {(kind, r, other): n / len(mine) for kind, n in kinds.items() if n}
    return shares


def test_triples_equal_one_triple_at_a_time():
    graph = leaking_graph()
    columns = (graph.triples.head, graph.triples.relation, graph.triples.tail)
    triples = list(zip(*(column.tolist() for column in columns), strict=True))
    train = {triple for triple, p in zip(triples, graph.part, strict=True) if p == TRAIN}
    shares = shares_by_hand(set(triples))
    implies = {key for key, share in shares.items() if share >= IMPLIES}
    assert {("inverse", 0, 1), ("near-duplicate", 0, 2)} <= implies
    rows = relation_pairs(graph)
    keys = [(row["kind"], int(row["relation"][1]), int(row["other"][1])) for row in rows]
    assert {key: row["share"] for key, row in zip(keys, rows, strict=True)} == pytest.approx(shares)
    assert {key for key, row in zip(keys, rows, strict=True) if row["implies"]} == implies
    known = {end for h, _, t in train for end in (h, t)}
    relations = range(3)
    for part, name in ((VALID, "valid"), (TEST, "test")):
        found = audit(graph, part).findings
        held_out = [triple for triple, p in zip(triples, graph.part, strict=True) if p == part]
        expected = {name: [] for name in found}
        for h, r, t in held_out:
            back = [("inverse", r, o) for o in relations if (t, o, h) in train]
            same = [("near-duplicate", r, o) for o in relations if (h, o, t) in train]
            expected["triple in train"].append((h, r, t) in train)
            expected["inverse in train"].append(bool(implies & set(back)))
            expected["near-duplicate in train"].append(bool(implies & set(same)))
            expected["pair in train"].append(bool(back or same))
            expected["unseen in train"].append(not {h, t} <= known)
        assert {key: mask.tolist() for key, mask in found.items()} == expected
        assert all(any(masks) for key, masks in expected.items() if key != "unseen in train")
        for key, row in zip(keys, rows, strict=True):
            kind, r, other = key
            wanted = [(t, other, h) if kind == "inverse" else (h, other, t)
                      for h, s, t in held_out if s == r]  # fmt: skip
            assert row[name] == sum(triple in train for triple in wanted)
    assert expected["unseen in train"].count(True) == 1


def test_the_report_has_a_remedy_for_each_finding_that_occurs():
    for dataset in (made(0), made(0, part_at_random=True), leaking_graph()):
        found = report(dataset)
        occur = {row["finding"] for row in found["audit"] if row["affected"]}
        assert set(found["remedies"]) == occur
        assert {row["part"] for row in found["audit"]} == {"valid", "test"}
        assert bool(found["relation_pairs"]) == isinstance(dataset, KnowledgeGraph)
