"""Join new interactions, facts and item features with those of a run."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct
from hasten.config import InteractionOptions
from hasten.data import splits
from hasten.data.columns.checks import counted
from hasten.data.interactions import clean
from hasten.data.interactions.assemble import describe_counts
from hasten.data.tables import TRAIN, Dataset, Facts, Interactions, Triples, Vocabulary
from hasten.errors import DataError
from hasten.updating.joined import (
    NEW,
    Joined,
    joined_features,
    joined_item_features,
    repeated,
    source_counts,
    united,
)


def join_interactions(old: Dataset, new: Dataset, options: InteractionOptions, seed: int) -> Joined:
    """The interactions of both, divided by the rule of the run's split.

    new: as read, with its parts only if its files give them. What the run has trained on stays in
    the training part. With a split by time or order, the last interactions of each user are held
    out, so yesterday's test is trained on. With a random or given split, the parts of the run stay;
    new interactions are divided at random among themselves, or trained on.

    Raises:
        DataError: nothing is new, or a column is missing.
    """
    users, *user_places = united(old.users, new.users)
    items, *item_places = united(old.items, new.items)
    a, b = old.interactions, new.interactions
    for name in ("rating", "time"):
        if getattr(a, name) is not None and getattr(b, name) is None:
            raise DataError(
                f"{new.source.path or 'the new data'}: no {name} column, but the events of the run "
                "have one"
            )
    timed = a.time is not None
    before = [user_places[0][a.user], item_places[0][a.item]]
    after = [user_places[1][b.user], item_places[1][b.item]]
    if a.time is not None and b.time is not None:
        again, whole = repeated([*before, a.time], [*after, b.time])
    else:
        again, whole = repeated(before, after)
        if not whole:  # without times, an event may happen again
            again = np.zeros(len(b), bool)
    fresh = ~again
    if not fresh.any():
        raise DataError(
            f"{new.source.path or 'the new data'}: holds no event that the run does not have"
        )

    def both(name: str) -> NDArray[np.generic] | None:
        first, second = getattr(a, name), getattr(b, name)
        return None if first is None else np.concatenate([first, second[fresh]])

    # parts of new rows are stored as NEW - part: -1, -2, -3
    given = new.split.startswith("given")
    of_new = NEW - (new.part[fresh] if given else np.zeros(int(fresh.sum()), np.int8))
    columns = clean.Columns(
        np.concatenate([before[0], after[0][fresh]]).astype(np.int32),
        np.concatenate([before[1], after[1][fresh]]).astype(np.int32),
        both("rating"),  # type: ignore[arg-type]
        both("time"),  # type: ignore[arg-type]
        None,
        np.concatenate([old.part, of_new]).astype(np.int8),
    )
    columns, _ = clean.ordered(columns)
    assert columns.part is not None
    user, item = columns.user.astype(np.int64), columns.item.astype(np.int64)
    trained = columns.part == TRAIN
    part, split = _parts(old.split, columns.part, user, len(users), options, seed, timed)
    kept = trained & (part != TRAIN)
    part = np.where(trained, TRAIN, part).astype(np.int8)
    notes = []
    if kept.any():
        notes.append(f"{counted(int(kept.sum()), 'event')} stay in the training part of the run")
    if again.any():
        notes.append(f"{counted(int(again.sum()), 'event')} of the new data are in the run already")
    interactions = Interactions(user, item, columns.rating, columns.time)
    source = replace(new.source, counts={}, notes=())
    dataset = Dataset(old.name, users, items, interactions, part, split, source)
    counts = describe_counts(dataset, notes, split.startswith("given"))
    found = {"new_events": int(fresh.sum()), **source_counts(old, dataset)}
    dataset = replace(dataset, source=source.plus(notes, **counts, **found))
    places = item_places[0], item_places[1]
    if old.facts is not None:
        facts = _facts(old, new, dataset)
        found |= {
            "new_entities": len(facts.entities) - len(old.facts.entities),
            "new_relations": len(facts.relations) - len(old.facts.relations),
            "new_facts": len(facts.triples) - len(old.facts.triples),
        }
        dataset = replace(dataset, facts=facts)
    given_features = {each.name: each for each in new.modalities}
    modalities = tuple(
        joined_features(each, given_features.get(each.name), places, items.labels, "item")
        for each in old.modalities
    )
    features = joined_item_features(old.item_features, new.item_features, places)
    dataset = replace(dataset, modalities=modalities, item_features=features)
    return Joined(dataset, trained, found, whole)


def _parts(
    split: str,
    origin: NDArray[np.int8],
    user: Int64,
    users: int,
    options: InteractionOptions,
    seed: int,
    timed: bool,
) -> tuple[NDArray[np.int8], str]:
    """The parts of sorted events, and the words of the split; origin: part in the run, or new."""
    is_new = origin <= NEW
    split = split.removesuffix(", refitted on train and validation")
    order: Literal["time", "random"] = "random" if "at random" in split else "time"
    if split.startswith("leave-last-two-out"):
        return splits.leave_last_two_out(user, users, timed)
    if split.startswith("ratio") and order == "time":
        return splits.ratio(user, users, options.ratios, order, seed, timed, options.ratio_rounding)
    part = np.where(is_new, NEW - origin, origin).astype(np.int8)
    if split.startswith("ratio"):
        try:
            part[is_new] = splits.ratio(
                user[is_new], users, options.ratios, order, seed, timed, options.ratio_rounding
            )[0]
        except DataError:  # too few for a validation or test part of their own
            part[is_new] = TRAIN
    return part, split


def _facts(old: Dataset, new: Dataset, joined: Dataset) -> Facts:
    """The facts of both. An item without facts is an entity of its own name."""
    assert old.facts is not None
    sides = [old, new] if new.facts is not None else [old]
    item_labels = joined.items.labels.cast(pa.string()).to_pylist()
    place = {label: number for number, label in enumerate(item_labels)}
    for side in reversed(sides):  # the names of the run come last
        assert side.facts is not None
        labels = side.facts.entities.labels[: len(side.items)].to_pylist()
        for item, entity in zip(side.items.labels.cast(pa.string()), labels, strict=True):
            item_labels[place[item.as_py()]] = entity
    items = pa.array(item_labels, pa.string())
    entities = relations = None
    for side in sides:
        assert side.facts is not None
        entities = side.facts.entities if entities is None else united(
            entities, side.facts.entities)[0]  # fmt: skip
        relations = side.facts.relations if relations is None else united(
            relations, side.facts.relations)[0]  # fmt: skip
    assert entities is not None
    assert relations is not None
    taken = Vocabulary(items).index(entities.labels) >= 0
    others = pa.array(np.flatnonzero(~taken))
    names = None
    if entities.names is not None:
        indices = Vocabulary(entities.labels).index(items)
        own_names = entities.names.take(pa.array(indices, mask=indices < 0))
        names = pa.concat_arrays([own_names, entities.names.take(others)])
    vocabulary = Vocabulary(pa.concat_arrays([items, entities.labels.take(others)]), names)
    keys = []
    for side in sides:
        assert side.facts is not None
        node = vocabulary.index(side.facts.entities.labels)
        kind = relations.index(side.facts.relations.labels)
        known = side.facts.triples
        head, tail = node[known.head], node[known.tail]
        keys.append((head * len(relations) + kind[known.relation]) * len(vocabulary) + tail)
    head_relation, tail = np.divmod(distinct(np.concatenate(keys)), len(vocabulary))
    head, relation = np.divmod(head_relation, len(relations))
    return Facts(vocabulary, relations, Triples(head, relation, tail))
