"""Vectors of items, users and entities against the scores, and the nearest items by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

import hasten
from hasten.cli.main import main
from hasten.errors import DataError, UsageError
from hasten.inference.embed import read_embeddings
from hasten.inference.vectors import vectors
from tests.contract.cases import CASES

SMALL = {"training.epochs": 1, "training.batch_size": 8, "device": "cpu", "threads": 1}
BY_MODEL = {case.model: case for case in CASES}
CHOSEN = [BY_MODEL[name] for name in ("sasrec", "bprmf", "kgat")]
GRAPHS = [BY_MODEL[name] for name in ("conve", "rotate", "hgt")]


def trained(case, out):
    given = {**SMALL, **case.settings}
    return hasten.train(case.model, case.data, settings=given, out=str(out), quiet=True).loaded


@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.model)
def test_scores_are_products_of_the_vectors(case, tmp_path):
    run = trained(case, tmp_path / "run")
    items, users = run.item_vectors(), run.user_vectors()
    found = run.recommend(topk=len(items), exclude_seen=False)
    expected = np.einsum("nd,nd->n", users.vectors[found.user], items.vectors[found.item])
    np.testing.assert_allclose(found.score, expected, rtol=1e-4, atol=1e-5)
    assert items.ids.equals(run.dataset.items.labels)
    assert users.to_table()["node_type"].unique().to_pylist() == ["user"]
    with pytest.raises(UsageError, match="not of entities"):
        run.entity_vectors()


@pytest.mark.parametrize("case", GRAPHS, ids=lambda case: case.model)
def test_entities_have_vectors(case, tmp_path):
    run = trained(case, tmp_path / "run")
    found = run.entity_vectors()
    assert len(found) == len(run.dataset.entities)
    near = run.similar_items(run.dataset.entities.labels[0].as_py(), k=2)
    assert len(near) == 2
    with pytest.raises(UsageError, match="has vectors of entities, not of items"):
        run.item_vectors()


def test_similar_items_and_files_of_vectors(tmp_path, capsys):
    run = trained(BY_MODEL["bprmf"], tmp_path / "run")
    vectors = run.item_vectors().vectors.astype(np.float64)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosine = unit @ unit.T
    np.fill_diagonal(cosine, -2)
    labels = run.dataset.items.labels.to_pylist()
    found = run.similar_items(labels[:3], k=4).to_table().to_pylist()
    for number, asked in enumerate(labels[:3]):
        rows = [row for row in found if row["item_id"] == asked]
        best = np.argsort(-cosine[number])[:4]
        assert [row["similar_id"] for row in rows] == [labels[i] for i in best]
        assert [row["rank"] for row in rows] == [1, 2, 3, 4]
        np.testing.assert_allclose([row["cosine"] for row in rows], cosine[number][best], 1e-4)
    with pytest.raises(DataError, match="unknown to the run"):
        run.similar_items("no such item")
    with pytest.raises(UsageError, match="must be 1 or more"):
        run.similar_items(labels[0], 0)

    path = str(tmp_path / "run")
    assert main(["similar", path, "--item", str(labels[0]), "--topk", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["similar"]
    assert [row["similar_id"] for row in told] == [row["similar_id"] for row in found[:4]]
    assert main(["vectors", path, "--of", "users", "--out", str(tmp_path / "u.parquet")]) == 0
    read = read_embeddings(tmp_path / "u.parquet")
    assert read.ids.to_pylist() == list(map(str, run.dataset.users.labels.to_pylist()))
    np.testing.assert_array_equal(read.vectors, run.user_vectors().vectors)
    assert main(["embed", path]) == 2
    assert "hasten vectors RUN" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("case", BY_MODEL.values(), ids=lambda case: case.model)
def test_similar_items_of_every_model(case, tmp_path):
    run = (trained if case.trains else fitted)(case, tmp_path / "run")
    if not case.trains:
        with pytest.raises(UsageError, match="scores without vectors"):
            run.similar_items(3)
        return
    table = vectors(run).vectors.astype(np.float64)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    cosine = table @ table.T
    np.fill_diagonal(cosine, -2)
    found = run.similar_items([3, 5], k=4)
    best = -np.sort(-cosine[found.asked])[:, :4]
    np.testing.assert_allclose(found.cosine, best, 1e-5, 1e-5)
    np.testing.assert_allclose(found.cosine, cosine[found.asked[:, None], found.item], 1e-5, 1e-5)
    assert run.similar_items(range(len(table)), k=1000).item.shape == (30, 29)


def fitted(case, out):
    return hasten.train(case.model, case.data, out=str(out), quiet=True).loaded


def test_a_model_without_vectors_says_so(tmp_path):
    run = hasten.train("pop", BY_MODEL["pop"].data, out=str(tmp_path / "run"), quiet=True).loaded
    with pytest.raises(UsageError, match="pop scores without vectors"):
        run.similar_items(run.dataset.items.labels[0].as_py())
