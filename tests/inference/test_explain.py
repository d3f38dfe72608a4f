"""Paths beside recommendations against trying all paths of the graph by its names."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from hasten.cli.main import main
from hasten.inference.explain import explain
from hasten.inference.recommend import recommend
from hasten.loaded_run import load_run
from hasten.ops.graph.collaborative_graph import CollaborativeGraph
from tests.models.collaborative.kgat_data import write_layout

QUICK = ["--epochs", "1", "--set", "model.width=6", "--threads", "1", "--quiet"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("explained")
    data = write_layout(folder / "data")
    names = "".join(f"fact{number} {number}\n" for number in range(3))
    (data / "relation_list.txt").write_text(f"org_id remap_id\n{names}")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        layers = ["--set", "model.layers=4,4,4"]
        assert main(["train", "kgat", "data", *QUICK, *layers, "--out", "run"]) == 0
        assert main(["train", "bprmf", "data", *QUICK, "--out", "factors"]) == 0
    return folder


def all_paths(loaded) -> dict[tuple[str, str], list[tuple[float, str]]]:
    """(user, item) -> weight and text of every simple path of at most three edges."""
    dataset, model = loaded.dataset, loaded.model
    graph = CollaborativeGraph.of(dataset)
    entities = dataset.facts.entities
    nodes = [*map(str, entities.labels.to_pylist()), *map(str, dataset.users.labels.to_pylist())]
    kinds = ["fact0", "fact1", "fact2"]
    relations = ["event", "^event", *kinds, *(f"^{kind}" for kind in kinds)]
    out: dict[int, list] = {}
    columns = (graph.head, graph.relation, graph.tail)
    for (h, r, t), weight in zip(
        zip(*(column.tolist() for column in columns), strict=True),
        model.attention.tolist(),
        strict=True,
    ):
        out.setdefault(h, []).append((relations[r], t, weight))
    found: dict[tuple[str, str], list[tuple[float, str]]] = {}

    def walk(user, visited, weight, text):
        node = visited[-1]
        if len(visited) > 1 and node < len(dataset.items):
            found.setdefault((user, nodes[node]), []).append((weight, text))
        if len(visited) <= 3:
            for relation, tail, more in out.get(node, []):
                if tail not in visited:
                    step = f"{text} -[{relation}]-> {nodes[tail]}"
                    walk(user, (*visited, tail), weight * more, step)

    for node in range(len(entities), len(nodes)):
        walk(nodes[node], (node,), 1.0, nodes[node])
    return {pair: sorted(paths, reverse=True) for pair, paths in found.items()}


def test_the_paths_are_the_heaviest_of_all(folder):
    loaded = load_run(folder / "run")
    found = recommend(loaded, topk=4)
    rows = explain(loaded, found, paths=2).to_pylist()
    expected = all_paths(loaded)
    pairs = [(str(r["user_id"]), str(r["item_id"])) for r in found.to_table().to_pylist()]
    assert list(dict.fromkeys((str(r["user_id"]), str(r["item_id"])) for r in rows)) == pairs
    seen = 0
    for pair in pairs:
        mine = [r for r in rows if (str(r["user_id"]), str(r["item_id"])) == pair]
        best = expected.get(pair, [])[:2]
        if not best:
            assert [r["path"] for r in mine] == [None]
            assert mine[0]["explanation"] is None
            continue
        seen += 1
        assert [r["path"] for r in mine] == list(range(1, len(best) + 1))
        assert [r["attention"] for r in mine] == pytest.approx([w for w, _ in best], rel=1e-6)
        if len({weight for weight, _ in best}) == len(best):
            assert [r["explanation"] for r in mine] == [text for _, text in best]
        for row in mine:
            cells = [(row[f"relation_{k}"], row[f"node_{k}"]) for k in (1, 2, 3)]
            steps = "".join(f" -[{relation}]-> {node}" for relation, node in cells if node)
            assert row["explanation"] == str(row["user_id"]) + steps
    assert seen > 5


def test_on_the_command_line_and_in_files(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    ask = ["recommend", "run", "--users", "0,2", "--topk", "2", "--explain", "--paths", "1"]
    assert main([*ask, "--json"]) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])["recommendations"]
    assert {"user_id", "item_id", "rank", "score", "path", "attention", "explanation"} <= set(
        told[0]
    )
    assert main([*ask, "--out", "paths.csv"]) == 0
    assert main([*ask, "--out", "paths.parquet"]) == 0
    assert pq.read_table("paths.parquet").to_pylist() == told
    assert pa_csv.read_csv("paths.csv").column_names == list(told[0])
    capsys.readouterr()
    assert main(ask) == 0
    assert "-[" in capsys.readouterr().out
    everyone = ["recommend", "run", "--users", "all", "--topk", "9", "--explain", "--paths", "1"]
    assert main([*everyone, "--json"]) == 0
    shown = capsys.readouterr()
    rows = json.loads(shown.out.splitlines()[-1])["recommendations"]
    without = sum(row["explanation"] is None for row in rows)
    assert without
    assert f"{without} of {len(rows)} items have no path: none of at most 3 edges" in shown.err


def test_what_cannot_be_explained_is_refused(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert main(["recommend", "factors", "--users", "all", "--explain"]) == 2
    assert "bprmf has no attention over a graph" in capsys.readouterr().err
    assert main(["recommend", "run", "--users", "all", "--paths", "2"]) == 2
    assert "--explain" in capsys.readouterr().err
