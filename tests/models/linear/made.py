"""A small data set with cold items, repeated events and a user without training events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch

from hasten.data.tables import (
    TEST,
    TRAIN,
    VALID,
    Dataset,
    Histories,
    Interactions,
    Source,
    Vocabulary,
)
from hasten.models.interface import Model, Sizes
from hasten.scoring import RecommenderQueries

USERS, ITEMS = 40, 23


def made(users: int = USERS, items: int = ITEMS, seed: int = 0) -> Dataset:
    generator = np.random.default_rng(seed)
    rows = []
    for user in range(users - 1):
        taste = (np.arange(items) * 7 + user % 3 * 5) % items
        count = int(generator.integers(2, items // 2))
        chosen = taste[generator.choice(items - 2, count, p=_falling(items - 2))]
        rows += [(user, int(item), TRAIN) for item in chosen]  # some of them repeatedly
        rows.append((user, int(generator.integers(items)), VALID))
    rows.append((users - 1, 0, TEST))
    user, item, part = np.array(rows).T
    return Dataset(
        "made",
        Vocabulary(pa.array([f"u{n}" for n in range(users)])),
        Vocabulary(pa.array([f"i{n}" for n in range(items)])),
        Interactions(user, item),
        part.astype(np.int8),
        "given",
        Source("made"),
    )


def _falling(count: int) -> np.ndarray:
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


def matrix(dataset: Dataset) -> torch.Tensor:
    """[U, N] float64: 1 for the pairs of the training part."""
    x = torch.zeros(len(dataset.users), len(dataset.items), dtype=torch.float64)
    train = dataset.part == TRAIN
    x[dataset.interactions.user[train], dataset.interactions.item[train]] = 1
    return x


def fitted(kind: type[Model], dataset: Dataset, **options: Any) -> Any:
    model = kind(kind.Options(**options), Sizes.of(dataset))
    model.fit(dataset)
    again = kind(kind.Options(**options), Sizes.of(dataset))
    again.load_state_dict(model.state_dict())  # a loaded model scores the same
    return again


HISTORIES = ([3, 1, 3, 7], [0], [22, 21, 20, 2, 4], [5, 6])


def scores(model: Model) -> torch.Tensor:
    """[4, N] of new users, computed in blocks of seven columns."""
    offsets = np.append(0, np.cumsum([len(history) for history in HISTORIES]))
    queries = RecommenderQueries(
        np.full(len(HISTORIES), -1), Histories(offsets, np.concatenate(HISTORIES))
    )
    scorer = model.scorer(queries)
    items = model.sizes.items
    blocks = [scorer.block(start, min(start + 7, items)) for start in range(0, items, 7)]
    torch.testing.assert_close(torch.cat(blocks, 1), scorer.block(0, items))
    return torch.cat(blocks, 1).double()


def histories() -> torch.Tensor:
    """[4, N] the same histories as a matrix."""
    x = torch.zeros(len(HISTORIES), ITEMS, dtype=torch.float64)
    for row, history in enumerate(HISTORIES):
        x[row, history] = 1
    return x
