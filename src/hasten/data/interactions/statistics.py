"""Statistics of a dataset: sizes, short users, items and users outside train, overlaps."""

from __future__ import annotations

from typing import Any

import numpy as np

from hasten.data.columns.checks import counted
from hasten.data.columns.parts import overlaps
from hasten.data.tables import PART_NAMES, TEST, TRAIN, VALID, Dataset


def count(dataset: Dataset, notes: list[str], was_given: bool) -> dict[str, Any]:
    """The counts for ``data.json``; warnings are appended to ``notes``."""
    user, item = dataset.interactions.user, dataset.interactions.item
    events = np.bincount(user, minlength=len(dataset.users))
    counts: dict[str, Any] = {
        "users": len(dataset.users),
        "items": len(dataset.items),
        "interactions": len(dataset.interactions),
    }
    counts |= {name: int(np.sum(dataset.part == p)) for p, name in enumerate(PART_NAMES)}
    short = {n: int(np.sum(events == n)) for n in (1, 2)}
    counts |= {"users_with_1_event": short[1], "users_with_2_events": short[2]}
    if sum(short.values()) and not was_given:
        notes.append(
            f"{counted(short[1], 'user')} with 1 event, {counted(short[2], 'user')} with 2: "
            "in train only, never tested"
        )
    trained = np.zeros(len(dataset.items), bool)
    trained[item[dataset.part == TRAIN]] = True
    cold = int(np.sum(~trained))
    counts["items_not_in_train"] = cold
    if cold:
        notes.append(f"{counted(cold, 'item')} only in valid or test: not trained on")
    if was_given:
        counts |= _overlaps(dataset, notes)
    return counts


def _overlaps(dataset: Dataset, notes: list[str]) -> dict[str, int]:
    """The (user, item) pairs in two parts of a given split, and the users not in train."""
    pair = dataset.interactions.user * len(dataset.items) + dataset.interactions.item
    counts = overlaps(pair, dataset.part, "pair", " of user and item", notes)
    users = [np.unique(dataset.interactions.user[dataset.part == p]) for p in (TRAIN, VALID, TEST)]
    unseen = int(np.sum(~np.isin(np.union1d(users[VALID], users[TEST]), users[TRAIN])))
    counts["users_not_in_train"] = unseen
    if unseen:
        notes.append(f"{counted(unseen, 'user')} only in valid or test")
    empty = [PART_NAMES[p] for p in (VALID, TEST) if not len(users[p])]
    notes += [f"the given split has no {name} part" for name in empty]
    return counts
