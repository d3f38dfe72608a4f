"""Predictions in typed graphs: only what the types of a relation allow."""

from __future__ import annotations

import pytest

import hasten
from tests.models.typed_graph.test_hgt import table

SETTINGS = {
    "model.width": 6, "model.hidden": 8, "model.heads": 2, "model.negatives": 5,
    "model.contrastive_weight": 0, "data.ratios": [0.7, 0.15, 0.15], "threads": 1,
    "training.epochs": 1,
}  # fmt: skip
#: relation -> the types of heads and tails
ENDS = {
    "targets": ("drug", "gene"),
    "treats": ("drug", "disease"),
    "associates": ("disease", "gene"),
    "meets": ("gene", "gene"),
}
ONE = {"drug": "drug::d0", "gene": "gene::g0", "disease": "disease::s0"}


@pytest.mark.parametrize("known", ["filter", "mark"])
@pytest.mark.parametrize("model", ["hgt", "degree"])
def test_predicted_ends_and_relations_fit_the_types(model, known, tmp_path):
    settings = SETTINGS
    if model == "degree":
        settings = {k: v for k, v in SETTINGS.items() if k.startswith(("data", "threads"))}
    run = hasten.train(model, table(), settings=settings, out=tmp_path / "run", quiet=True)
    for relation, (source, target) in ENDS.items():
        asked = [
            {"head": ONE[source], "relation": relation},
            {"relation": relation, "tail": ONE[target]},
        ]
        found = run.predict(asked, topk=1000, known=known).to_table().to_pydict()
        assert {label.partition("::")[0] for label in found["head"]} == {source}
        assert {label.partition("::")[0] for label in found["tail"]} == {target}
        assert set(found["question"]) == {1, 2}
        if known == "mark":
            pair = {"head": ONE[source], "tail": ONE[target]}
            rows = run.predict([pair], topk=1000, known=known).to_table()
            assert rows["relation"].to_pylist() == [relation]
