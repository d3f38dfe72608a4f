"""The growth of models: what is measured of each kind, and the slope of the logarithms."""

from __future__ import annotations

import tempfile

import pytest
import torch

from bench import growth

TRAINED = {"load", "build", "step", "epoch", "evaluation", "peak"}
FITTED = {"load", "fit", "evaluation", "peak"}


@pytest.mark.parametrize(
    ("model", "keys"),
    [("bm3", TRAINED), ("kgat", TRAINED), ("distmult", TRAINED), ("itemknn", FITTED)],
)
def test_each_kind_of_model_is_measured(model, keys, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    threads = torch.get_num_threads()
    found = growth.measure(model, 1000)
    torch.set_num_threads(threads)
    assert set(found) == keys
    assert all(value >= 0 for value in found.values())
    assert found["peak"] > 0


def test_the_exponent_is_the_slope_of_the_logarithms():
    assert growth.exponent([10, 100, 1000], [3.0, 300.0, 30_000.0]) == "2.00"
    assert growth.exponent([10, 100], [0.0, 1.0]) == ""
