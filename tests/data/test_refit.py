"""The validation part as training data: events, and triples."""

from __future__ import annotations

import numpy as np
import pytest

from hasten import api
from hasten.config import DataOptions
from hasten.data.load import load_table
from hasten.data.load_graph import load_graph_table
from hasten.data.refit import refitted
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError
from tests.contract.cases import graph, sequences


@pytest.mark.parametrize("kind", ["events", "triples"])
def test_validation_joins_train_and_test_stays(kind):
    load, table = (load_table, sequences()) if kind == "events" else (load_graph_table, graph())
    plain = load(table, DataOptions(), 0)
    found = refitted(plain)
    assert not (found.part == VALID).any()
    assert np.array_equal(found.part == TEST, plain.part == TEST)
    assert np.array_equal(found.part == TRAIN, plain.part != TEST)
    assert found.split.endswith("refitted on train and validation")
    assert found.source.counts["valid"] == 0
    with pytest.raises(DataError, match="no validation part"):
        refitted(found)


def test_a_refitted_run_is_judged_on_the_same_test(tmp_path):
    settings = {
        "training.epochs": 2,
        "model.width": 8,
        "model.max_length": 8,
        "data.refit": True,
        "threads": 1,
    }
    result = api.train(
        "sasrec", sequences(), settings=settings, out=str(tmp_path / "a"), quiet=True
    )
    assert result.summary.valid == {}
    assert result.summary.test
    assert result.summary.best_epoch == 2
    assert "refitted" in result.protocol
