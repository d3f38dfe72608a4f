"""A small dataset made from a seed, split by leaving the last two events out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Interactions, Source, Vocabulary


def build(events: list[tuple[int, int, int]], users: int, items: int, split: str) -> Dataset:
    """From (user, item, part) in the order of users and time."""
    user, item, part = np.array(events, np.int64).reshape(-1, 3).T
    return Dataset(
        name="made",
        users=Vocabulary(pa.array([f"u{number}" for number in range(users)])),
        items=Vocabulary(pa.array(np.arange(items) * 10)),
        interactions=Interactions(user, item),
        part=part.astype(np.int8),
        split=split,
        source=Source("made"),
    )


@pytest.fixture(scope="session")
def make_dataset() -> Callable[..., Dataset]:
    return build


@pytest.fixture(scope="session")
def dataset() -> Dataset:
    """700 users of 3 to 40 events among 300 items."""
    rng = np.random.default_rng(0)
    events = []
    for user in range(700):
        count = int(rng.integers(3, 41))
        parts = [TRAIN] * (count - 2) + [VALID, TEST]
        events += [(user, int(rng.zipf(1.3)) % 300, part) for part in parts]
    return build(events, 700, 300, "leave-last-two-out")
