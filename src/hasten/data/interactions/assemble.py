"""Assemble a Dataset from what was read: vocabularies, cleaning, sorting, split, statistics."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.config import InteractionOptions
from hasten.data import splits
from hasten.data.columns import ids, times
from hasten.data.columns.checks import counted
from hasten.data.interactions import clean, time_splits
from hasten.data.interactions.carve import carve_valid
from hasten.data.interactions.event_columns import event_features, read_columns
from hasten.data.readers import names
from hasten.data.readers.interface import Read
from hasten.data.splits import given_parts, overlaps
from hasten.data.tables import (
    PART_NAMES,
    TEST,
    TRAIN,
    VALID,
    Dataset,
    Interactions,
    Source,
    Vocabulary,
)
from hasten.errors import DataError

_REMEDY = (
    "a folder with train and test files, or data.train, data.valid and data.test, or choose "
    "another split"
)
_OF_RATIO = {
    key: InteractionOptions.model_fields[key].default
    for key in ("ratios", "ratio_order", "ratio_rounding")
}


def assemble(
    read: Read, options: InteractionOptions, seed: int, needs_order: bool = True
) -> Dataset:
    """The dataset of what was read.

    needs_order: the split ``auto`` takes the order of the file where there are no times.

    Raises:
        DataError: ids or times are wrong, or the split leaves a part empty.
    """
    with read.errors():
        return _assemble(read, options, seed, needs_order)


def _assemble(read: Read, options: InteractionOptions, seed: int, needs_order: bool) -> Dataset:
    counts: dict[str, Any] = {"read": sum(map(len, read.sources))}
    files = (*chain.from_iterable(events.files for events in read.sources), *read.files)
    notes = [*read.notes, *chain.from_iterable(events.notes for events in read.sources)]
    columns = read_columns(read.sources, options)
    events, users, items = _join(read, options, notes)
    if columns:
        events = replace(events, row=np.arange(len(events)))
    end = 0
    if options.time_window is not None:
        whole = len(events)
        events, end = time_splits.before_window_end(events, options.time_window, options.fold)
        if whole > len(events):
            later = counted(whole - len(events), "event")
            notes.append(f"{later} after the test period left out (data.fold={options.fold})")
    events = _cleaned(events, len(users), len(items), options, counts, notes)
    events, in_order = clean.ordered(events)
    if not in_order:
        notes.append("times are not in the order of the file: events sorted by time (stably)")
    if options.session_gap is not None:
        events, users = time_splits.sessions(events, users, options.session_gap)
        notes.append(f"sessions in place of users: pauses over {options.session_gap:g} s end them")
    ordered = events.time is not None or read.format == "sequences"
    if events.time is None:
        if needs_order or ordered:
            notes.append("no times: the order of the file is taken as the order in time")
        if options.time_unit != "s":
            notes.append(f"data.time_unit={options.time_unit} has no effect: there are no times")
    user_vocabulary, (user,) = Vocabulary(users).compact(events.user)
    events = replace(events, user=user)  # type: ignore[arg-type] # frees the column of int32
    item_vocabulary, (item,) = Vocabulary(items).compact(events.item)
    events = replace(events, item=item)  # type: ignore[arg-type]
    split_by_order = needs_order or ordered
    part, split = _split(user, len(user_vocabulary), events, options, seed, split_by_order, end)
    changed = {key for key, value in _OF_RATIO.items() if getattr(options, key) != value}
    if options.split == "time" and options.time_window is None:
        changed.discard("ratios")
    if changed and not split.startswith("ratio"):
        notes.append(f"no effect without data.split=ratio: {', '.join(sorted(changed))}")
    if read.names:
        item_vocabulary, more = names.with_names(item_vocabulary, read.names)
        notes += more
    interactions = Interactions(user, item, events.rating, events.time)
    source = Source(read.format, read.path, files)
    dataset = Dataset(
        read.name, user_vocabulary, item_vocabulary, interactions, part, split, source
    )
    if events.row is not None:
        features, more = event_features(columns, events.row, part)
        dataset = replace(dataset, event_features=features)
        notes += more
    counts |= describe_counts(dataset, notes, split.startswith(("given", "global time")))
    return replace(dataset, source=source.plus(notes, **counts))


def _join(
    read: Read, options: InteractionOptions, notes: list[str]
) -> tuple[clean.Columns, pa.Array, pa.Array]:
    """The interactions of all files as codes into the user and item labels; empties ``read``."""
    sources = read.sources
    require_same_columns(
        (e.source, {w for w in ("rating", "time") if getattr(e, w) is not None}) for e in sources
    )
    users = ids.vocabulary("user", ("user",), sources, options.ids)
    items = ids.vocabulary("item", ("item",), sources, options.ids)
    notes += [*users.notes, *items.notes]
    rating, time, key = None, None, None
    if timed := [events.time for events in sources if events.time is not None]:
        time, key, more = times.unite(timed, options.time_unit)
        notes += more
    if rated := [events.rating for events in sources if events.rating is not None]:
        rating = times.joined(rated)
    codes = times.joined(users.codes), times.joined(items.codes)
    events = clean.Columns(*codes, rating, time, key, read.parts())
    read.columns.clear()
    return events, users.labels, items.labels


def require_same_columns(found: Iterable[tuple[str, Collection[str]]]) -> None:
    """Raise DataError if only some files have ratings or times. found: (file, its columns)."""
    files = list(found)
    for what in ("rating", "time"):
        holding = [name for name, columns in files if what in columns]
        if 0 < len(holding) < len(files):
            raise DataError(
                f"{', '.join(holding)} with a {what} column, but not the other files: "
                "give all of them the same columns"
            )


def _cleaned(
    events: clean.Columns,
    users: int,
    items: int,
    options: InteractionOptions,
    counts: dict[str, Any],
    notes: list[str],
) -> clean.Columns:
    if options.min_rating is not None:
        before = len(events)
        events = clean.rated_at_least(events, options.min_rating)
        counts["below_min_rating"] = before - len(events)
        notes.append(
            f"{counted(before - len(events), 'event')} rated below {options.min_rating:g} left out"
        )
    events, duplicates = clean.without_duplicates(events, options.duplicates)
    counts["duplicates"] = duplicates
    if duplicates:
        did = "left out" if options.duplicates == "drop" else "kept"
        notes.append(
            f"{counted(duplicates, 'duplicate event')} (user, item, time) {did} (data.duplicates)"
        )
    if options.k_core > 1:
        before = len(events)
        events = clean.core(events, options.k_core, users, items)
        counts["outside_core"] = before - len(events)
        notes.append(
            f"{counted(before - len(events), 'event')} outside the {options.k_core}-core left out"
        )
    return events


def _split(
    user: Int64,
    users: int,
    events: clean.Columns,
    options: InteractionOptions,
    seed: int,
    by_order: bool,
    end: int,
) -> tuple[NDArray[np.int8], str]:
    """The parts and their description. end: of the test period, with a window."""
    part, timed = events.part, events.time is not None
    chosen = options.split
    if chosen == "auto":
        chosen = "leave-last-two-out" if by_order else "ratio"
        if part is not None:
            chosen = "given"
    if chosen == "given":
        parts, words = given_parts(part, "event", _REMEDY)
        if options.valid_share and not np.any(parts == VALID):
            items = events.item.astype(np.int64)
            parts, how = carve_valid(parts, user, items, options.valid_share, seed)
            words = f"{words}, {how}"
        return parts, words
    if chosen == "ratio":
        order = options.ratio_order if by_order else "random"
        rounding = options.ratio_rounding
        return splits.ratio(user, users, options.ratios, order, seed, timed, rounding)
    if chosen == "time":
        return time_splits.by_time(events, options.ratios, options.time_window, end)
    if chosen == "leave-random-two-out":
        return splits.leave_random_two_out(user, users, seed)
    last_one = chosen == "leave-last-one-out"
    leave = splits.leave_last_one_out if last_one else splits.leave_last_two_out
    return leave(user, users, timed)


def describe_counts(dataset: Dataset, notes: list[str], was_given: bool) -> dict[str, Any]:
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
