"""Recommendations under business rules, against a plain reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import hasten
from hasten.cli.main import main
from hasten.errors import DataError, UsageError
from hasten.inference.recommend import recommend
from hasten.inference.rules import Rules, read_rules
from tests.comparison.conftest import EVENTS
from tests.inference.test_recommend import by_user


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> hasten.Result:
    folder = tmp_path_factory.mktemp("rules")
    table = np.random.default_rng(1)
    rows = {
        (u, i) for u, i in zip(table.integers(0, 12, 90), table.integers(0, 60, 90), strict=True)
    }
    text = "".join(f"u{u},i{i}\n" for u, i in sorted(rows))
    (folder / "pairs.csv").write_text("user_id,item_id\n" + text)
    return hasten.train(
        "bprmf", folder / "pairs.csv", epochs=3, settings={"model.width": 8, "threads": 1},
        out=folder / "run", quiet=True,
    )  # fmt: skip


def reference(run, rules, topk, seen=True):
    """Every list by the definition, from all scores."""
    full = recommend(run, topk=len(run.dataset.items), exclude_seen=seen)
    vectors = run.item_vectors().vectors
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = run.dataset.items.labels.to_pylist()
    lists = {}
    for number, user in enumerate(full.users.to_pylist()):
        mine = full.user == number
        group = rules.groups.get(user)
        ranked = [
            (int(i), float(s)) for i, s in zip(full.item[mine], full.score[mine], strict=True)
            if labels[i] not in rules.exclude.get(user, ())
            and (group is None or labels[i] in rules.group_items[group])
        ]  # fmt: skip
        pool = 5 * topk
        while True:
            chosen = greedy(ranked[:pool], topk, rules, labels, vectors)
            if len(chosen) == topk or pool >= len(ranked):
                break
            pool *= 4
        lists[user] = [labels[i] for i in chosen]
    return lists


def greedy(pool, topk, rules, labels, vectors):
    chosen: list[int] = []
    scores = [score for _, score in pool]
    spread = (max(scores) - min(scores)) or 1.0 if pool else 1.0
    while len(chosen) < topk:
        best = None
        for item, score in pool:
            kind = rules.categories.get(labels[item])
            same = sum(rules.categories.get(labels[i]) == kind for i in chosen)
            if item in chosen or (rules.cap and kind is not None and same >= rules.cap):
                continue
            similar = max((float(vectors[item] @ vectors[i]) for i in chosen), default=0.0)
            value = (1 - rules.diversity) * (score - min(scores)) / spread
            value -= rules.diversity * similar if chosen else 0
            if best is None or value > best[0] + 1e-9:
                best = (value, item)
        if best is None:
            break
        chosen.append(best[1])
    return chosen


CATEGORIES = {f"i{n}": "many" if n < 50 else f"c{n % 3}" for n in range(58)}
RULES = {
    "exclude": Rules(exclude={"u1": [f"i{n}" for n in range(0, 60, 2)], "u3": ["i5", "nowhere"]}),
    "groups": Rules(
        groups={"u1": "eu", "u2": "eu", "u4": "us"},
        group_items={"eu": [f"i{n}" for n in range(20)], "us": ["i30", "i31"]},
    ),
    "cap": Rules(categories=CATEGORIES, cap=1),
    "diversity": Rules(diversity=0.6),
    "all": Rules(
        {"u0": ["i1", "i2"]}, {"u1": "eu"}, {"eu": [f"i{n}" for n in range(40)]}, CATEGORIES, 2, 0.3
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_lists_are_those_of_the_definition(trained, name):
    run, rules = trained.loaded, RULES[name]
    found = recommend(run, topk=4, rules=rules)
    assert by_user(found) == {k: v for k, v in reference(run, rules, 4).items() if v}
    assert found.to_table().num_rows == len(found)
    if name == "exclude":
        known = set(run.dataset.items.labels.to_pylist())
        listed = [item for each in rules.exclude.values() for item in each]
        assert found.ignored == {"excluded item": len([i for i in listed if i not in known])}


def test_no_rule_changes_nothing(trained):
    run = trained.loaded
    assert by_user(recommend(run, topk=5, rules=Rules())) == by_user(recommend(run, topk=5))


def test_rules_are_read_from_files(trained, tmp_path, capsys, make_run):
    (tmp_path / "never.csv").write_text("user_id,item_id\nu1,i1\nu1,i2\n")
    (tmp_path / "kinds.csv").write_text(
        "item_id,category\n" + "".join(f"{item},{kind}\n" for item, kind in CATEGORIES.items())
    )
    file = tmp_path / "rules.yaml"
    file.write_text("exclude: never.csv\ncategories: kinds.csv\ncap: 2\ndiversity: 0.25\n")
    rules = read_rules(file)
    assert rules == Rules({"u1": ["i1", "i2"]}, categories=CATEGORIES, cap=2, diversity=0.25)
    words = ["recommend", str(trained.path), "--users", "all", "--topk", "4", "--rules", str(file)]
    assert main([*words, "--json"]) == 0
    lists: dict[str, list[str]] = {}
    for row in json.loads(capsys.readouterr().out)["recommendations"]:
        lists.setdefault(row["user_id"], []).append(row["item_id"])
    assert lists == by_user(trained.recommend(topk=4, rules=rules))
    for text, message in (
        ("cap: 2\n", "cap has no effect without categories"),
        ("exclude: kinds.csv\n", "no column user_id"),
        ("cap: two\n", r"rules\.yaml, line 1: cap: 'two' is not a number"),
        ("diversty: 1\n", "did you mean 'diversity'"),
        ("diversity: 2\n", "must be between 0 and 1"),
    ):
        file.write_text(text)
        with pytest.raises((UsageError, DataError), match=message):
            read_rules(file)
    with pytest.raises(UsageError, match="group 'eu' has no items"):
        Rules(groups={"u1": "eu"}, group_items={"us": ["i1"]})
    with pytest.raises(UsageError, match="diversity needs item vectors"):
        recommend(make_run(), rules=Rules(diversity=0.5))


def test_rules_hold_for_new_histories(tmp_path):
    (tmp_path / "events.csv").write_text(EVENTS)
    settings = {"model.width": 8, "epochs": 1, "threads": 1}
    result = hasten.train("sasrec", tmp_path / "events.csv", settings=settings,
                          out=tmp_path / "run", quiet=True)  # fmt: skip
    histories = {"a": ["item1", "item2"], "b": ["item3"]}
    rules = Rules(exclude={"a": [f"item{n}" for n in range(8)]}, diversity=0.4)
    lists = by_user(result.recommend(histories=histories, topk=9, rules=rules))
    assert sorted(lists["a"]) == sorted(f"item{n}" for n in range(8, 15))
    assert len(lists["b"]) == 9
    assert torch.is_grad_enabled()
