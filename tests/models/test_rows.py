"""Rows of weights: every model declares those that follow from the data; new rows begin as told."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch

from hasten.data.tables import Dataset, Interactions, Modality, Source, Vocabulary
from hasten.errors import DataError
from hasten.models.interface import Sizes
from hasten.models.rows import KnownRows, Rows, grown_weights
from hasten.models.supports import Supports
from hasten.registry import BUILT_IN, load_model

SMALL = Sizes(5, 6, 9, 3, (4, 5), (("image", 4), ("text", 3)))
LARGE = Sizes(7, 9, 14, 5, (4, 5, 5), (("image", 4), ("text", 3)))
TRAINED = [e.name for e in BUILT_IN if Supports.of(load_model(e.name)).gradient_steps]


@pytest.mark.parametrize("name", TRAINED)
def test_models_declare_all_weights_whose_shape_follows_from_the_data(name):
    kind = load_model(name)
    extra = {"decoder": "distmult"} if name == "hgt" else {}
    small, large = (kind(kind.Options(**extra), sizes) for sizes in (SMALL, LARGE))
    first, second = small.state_dict(), large.state_dict()
    declared = small.rows_of()
    changed = {key for key, value in first.items() if value.shape != second[key].shape}
    assert changed == set(declared)
    counts = {"users": 5, "items": 6, "entities": 9, "relations": 3, "node_types": 2}
    for key, rows in declared.items():
        sizes = [block if isinstance(block, int) else counts[block] for block in rows.blocks]
        assert first[key].shape[rows.dim] == sum(sizes)


def dataset(items: list[str], events: list[tuple[int, int]], *features: Modality) -> Dataset:
    user, item = (np.array(column) for column in zip(*events, strict=True))
    users = Vocabulary(pa.array([f"u{n}" for n in range(user.max() + 1)]))
    part = np.zeros(len(user), np.int8)
    found = Vocabulary(pa.array(items))
    return Dataset("d", users, found, Interactions(user, item), part, "", Source("x"),
                   modalities=features)  # fmt: skip


def test_a_new_item_begins_at_the_mean_over_its_users_of_their_known_items():
    old = dataset(["a", "c", "d"], [(0, 0), (0, 1), (1, 2)])
    # sorted anew: a b c d e f; b with two users, e with a user of nothing known, f with nobody
    events = [(0, 0), (0, 2), (0, 1), (1, 3), (1, 1), (2, 4)]
    new = dataset(list("abcdef"), events)
    known = KnownRows.of(old, new)
    assert known.old_row["items"].tolist() == [0, -1, 1, 2, -1, -1]
    weights = torch.tensor([[1.0, 10.0], [3.0, 30.0], [5.0, 50.0]])
    initial = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    noise = initial - initial.mean(0)
    rows = {"items": Rows.of("items")}
    found = grown_weights({"items": weights}, {"items": initial}, rows, known, new)["items"]
    assert torch.equal(found[[0, 2, 3]], weights)
    of_users = (torch.tensor([2.0, 20.0]) + torch.tensor([5.0, 50.0])) / 2
    torch.testing.assert_close(found[1], of_users + noise[1])
    torch.testing.assert_close(found[4:], weights.mean(0) + noise[4:])


def test_an_item_without_events_begins_at_items_of_similar_content():
    content = np.eye(12, 12, dtype=np.float32)
    content[11] = content[3] * 0.9
    content[11, 0] = 0.1
    names = [f"i{n:02}" for n in range(12)]
    old = dataset(names[:11], [(0, n) for n in range(11)])
    new = dataset(names, [(0, n) for n in range(11)], Modality.of("image", content))
    known = KnownRows.of(old, new)
    weights = torch.arange(11.0)[:, None]
    found = grown_weights(
        {"w": weights}, {"w": torch.zeros(12, 1)}, {"w": Rows.of("items")}, known, new
    )
    near = [0, 3, *[n for n in range(11) if n not in (0, 3)]]
    ten = weights[near[:10]].mean()  # the two that are similar, and eight of those that are not
    assert abs(float(found["w"][11]) - float(ten)) <= 1.0


def test_blocks_and_dimensions_are_carried_over_by_label():
    old, new = (
        dataset(["b", "c"], [(0, 0), (1, 1)]),
        dataset(["a", "b", "c"], [(0, 1), (1, 2), (2, 0)]),
    )
    known = KnownRows.of(old, new)
    weights = {"nodes": torch.arange(5.0)[:, None], "wide": torch.tensor([[7.0, 8.0]])}
    rows = {"nodes": Rows.of(1, "items", "users"), "wide": Rows.of("items", dim=1)}
    initial = {"nodes": torch.zeros(7, 1), "wide": torch.zeros(1, 3)}
    found = grown_weights(weights, initial, rows, known, new)
    assert found["nodes"][[0, 2, 3, 4, 5], 0].tolist() == [0, 1, 2, 3, 4]
    assert found["wide"].tolist() == [[0, 7, 8]]
    with pytest.raises(DataError, match="does not say what its rows stand for"):
        grown_weights(weights, initial, {"wide": rows["wide"]}, known, new)
