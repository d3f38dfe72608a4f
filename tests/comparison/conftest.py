"""Small finished runs to compare."""

from __future__ import annotations

from pathlib import Path

import pytest

import hasten

#: 30 users who walk a circle of 15 items, one step at a time
EVENTS = "user_id,item_id,timestamp\n" + "".join(
    f"user{u},item{(u + step) % 15},{100 + step}\n" for u in range(30) for step in range(8)
)
SMALL = {"model.width": 8, "model.max_length": 10, "model.dropout": 0.1, "threads": 1}
QUICK = {**SMALL, "epochs": 3, "batch_size": 10, "lr": 0.01, "training.schedule": "constant"}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of two settings with two seeds, one on other data, and two of a knowledge graph."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "events.csv").write_text(EVENTS)
    (folder / "fewer.csv").write_text("".join(EVENTS.splitlines(keepends=True)[:201]))

    def train(name: str, file: str = "events.csv", **changed: object) -> None:
        settings = {**QUICK, **changed}
        hasten.train("sasrec", folder / file, settings=settings, out=folder / name, quiet=True)

    for seed in (0, 1):
        train(f"base-{seed}", seed=seed)
        train(f"wide-{seed}", seed=seed, **{"model.width": 16})
    train("again")
    train("fewer", "fewer.csv")
    train("kept", **{"evaluation.mask_history": False})
    triples = "".join(f"n{i}\tnext\tn{(i + 1) % 40}\nn{i}\tself\tn{i}\n" for i in range(40))
    (folder / "triples.tsv").write_text(triples)
    for name, lr in (("slow", 0.001), ("fast", 0.02)):
        settings = {"epochs": 2, "lr": lr, "threads": 1, "model.width": 8}
        hasten.train(
            "distmult", folder / "triples.tsv", settings=settings, out=folder / name, quiet=True
        )
    return folder
