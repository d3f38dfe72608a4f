"""Small runs of every kind of model."""

from __future__ import annotations

from pathlib import Path

import pytest

import hasten
from tests.comparison.conftest import EVENTS, QUICK

TRIPLES = "".join(f"n{i}\tnext\tn{(i + 1) % 40}\nn{i}\tself\tn{i}\n" for i in range(40))


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs: sealed and tested, one that did not end, a baseline, triples, a typed graph."""
    folder = tmp_path_factory.mktemp("reports")
    (folder / "events.csv").write_text(EVENTS)
    (folder / "triples.tsv").write_text(TRIPLES)
    for name, changed in (
        ("a", {"evaluation.test": False}),
        ("b", {"evaluation.test": False, "model.width": 16}),
        ("tested", {}),
    ):
        settings = {**QUICK, **changed}
        hasten.train(
            "sasrec", folder / "events.csv", settings=settings, out=folder / name, quiet=True
        )
    given = {"epochs": 2, "threads": 1, "model.width": 8}
    graph = folder / "triples.tsv"
    hasten.train("distmult", graph, settings=given, out=folder / "triples", quiet=True)
    hasten.train("pop", folder / "events.csv", out=folder / "pop", quiet=True)
    few = {"epochs": 1, "threads": 1}
    hasten.train("bprmf", folder / "events.csv", settings=few, out=folder / "pairs", quiet=True)

    hasten.train("hgt", settings=few, out=folder / "typed", quiet=True)

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hasten.train(
            "sasrec", folder / "events.csv", settings=QUICK, out=folder / "stopped", quiet=True,
            callbacks=[stop],
        )  # fmt: skip
    return folder
