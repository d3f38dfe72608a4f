"""A loaded run with a model whose scores can be computed by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch

from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Interactions, Source, Vocabulary
from hasten.models.interface import Model, Sizes
from hasten.scoring import RecommenderQueries

ITEMS = ["ant", "bee", "cat", "dog", "eel", "=fox"]
NAMES = ["Ant", "Bee", None, "Dog", "Eel", "Fox"]
USERS = ["u1", "u2", "u3"]
#: (user, item, part), oldest first
EVENTS = [
    (0, 0, TRAIN),
    (0, 1, VALID),
    (0, 2, TEST),
    (1, 3, TRAIN),
    (1, 4, TRAIN),
    (2, 5, TEST),
]


class NextOnTheCircle(Model):
    """Scores item j after last item i by -(distance from i forward to j); 0 users matter."""

    name: ClassVar[str] = "circle"
    scores_new_users: ClassVar[bool] = True

    def __init__(self) -> None:
        super().__init__(None, Sizes(items=len(ITEMS)))

    def scorer(self, queries: RecommenderQueries) -> Any:
        count = len(ITEMS)
        history = queries.history
        last = np.array(
            [
                history.items[end - 1] if end > start else -1
                for start, end in zip(history.offsets[:-1], history.offsets[1:], strict=True)
            ]
        )
        scores = -((np.arange(count)[None] - last[:, None] - 1) % count).astype(np.float32)

        def block(start: int, stop: int) -> torch.Tensor:
            return torch.from_numpy(scores[:, start:stop])

        return SimpleNamespace(block=block)


def make_dataset(numeric: bool = False) -> Dataset:
    user, item, part = (np.array(column) for column in zip(*EVENTS, strict=True))
    if numeric:
        users = Vocabulary(pa.array([10, 20, 30]))
        items = Vocabulary(pa.array([100, 101, 102, 103, 104, 105]))
    else:
        users = Vocabulary(pa.array(USERS))
        items = Vocabulary(pa.array(ITEMS), pa.array(NAMES))
    return Dataset(
        "events",
        users,
        items,
        Interactions(user.astype(np.int64), item.astype(np.int64)),
        part.astype(np.int8),
        "given",
        Source("test"),
    )


@pytest.fixture
def make_run():
    def make(numeric: bool = False) -> Any:
        config = SimpleNamespace(
            model=SimpleNamespace(name="circle"), data=SimpleNamespace(time_unit="s")
        )
        return SimpleNamespace(
            path=Path("runs/x"),
            config=config,
            model=NextOnTheCircle().eval(),
            dataset=make_dataset(numeric),
            device=torch.device("cpu"),
        )

    return make
