"""Audit of the validation and test parts: ties in time, repeats and leaks.

``hasten data check --deep`` counts the findings, ``hasten evaluate RUN --by leakage`` measures what
they contribute to a metric. Everything takes O(n log n) array operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, distinct
from hasten.data.columns import counter_random as counter
from hasten.data.graph.relation_overlap import IMPLIES, RelationOverlap, train_pairs
from hasten.data.tables import (
    PART_NAMES,
    TEST,
    TRAIN,
    VALID,
    AnyDataset,
    Dataset,
    Histories,
    KnowledgeGraph,
)

Mask = NDArray[np.bool_]
#: users with fewer distinct items are never near-duplicates
MIN_ITEMS = 5


@dataclass(frozen=True, eq=False)
class Audit:
    """The findings in a part.

    An example is a user of the data set (noun ``users``) or a triple of the part (``triples``).
    judged: bool [examples], whether it has a target in the part. findings: name -> bool [examples],
    the examples that a finding affects.
    """

    part: int
    noun: str
    judged: Mask
    findings: dict[str, Mask]

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each finding, for a table."""
        of = int(self.judged.sum())
        counts = {name: int(mask.sum()) for name, mask in self.findings.items()}
        return [
            {"part": PART_NAMES[self.part], "finding": name, "affected": count, "of": of}
            | {"share": count / max(1, of), "unit": self.noun}
            for name, count in counts.items()
        ]


def report(dataset: AnyDataset) -> dict[str, Any]:
    """The findings of both parts, the remedies of those that occur, and the pairs of relations."""
    audits = [audit(dataset, part) for part in (VALID, TEST) if np.any(dataset.part == part)]
    rows = [row for one in audits for row in one.rows()]
    occur = {row["finding"] for row in rows if row["affected"]}
    remedies = {name: remedy for name, remedy in _REMEDIES.items() if name in occur}
    pairs = relation_pairs(dataset) if isinstance(dataset, KnowledgeGraph) else []
    return {"audit": rows, "remedies": remedies, "relation_pairs": pairs}


def audit(dataset: AnyDataset, part: int) -> Audit:
    """The findings in the validation or test part."""
    assert part in (VALID, TEST)
    if isinstance(dataset, KnowledgeGraph):
        return _audit_triples(dataset, part)
    return _audit_users(dataset, part)


def seconds_between(histories: Histories, held_out: Histories, users: Int64) -> Int64 | None:
    """[Q] the time of each user's first target minus the last time of the history, if known.

    users: int64 [Q], rows that are not empty.
    """
    if histories.times is None or held_out.times is None:
        return None
    last = histories.times[histories.ends[users] - 1]
    return np.asarray(held_out.times[held_out.offsets[users]] - last)


def _audit_users(dataset: Dataset, part: int) -> Audit:
    events, users = dataset.interactions, len(dataset.users)
    known = (TRAIN,) if part == VALID else (TRAIN, VALID)
    held_out_histories, histories = dataset.histories(part), dataset.histories(*known)
    judged, has_history = held_out_histories.lengths > 0, histories.lengths > 0
    held_out, met = dataset.part == part, np.isin(dataset.part, known)

    def some(event: Mask) -> Mask:
        """[U] the users of these events of the part."""
        affected_users = np.zeros(users, bool)
        affected_users[events.user[held_out][event]] = True
        return affected_users

    masks = {"no history": judged & ~has_history}
    judged_users = np.flatnonzero(judged & has_history)
    between = seconds_between(histories, held_out_histories, judged_users)
    if between is not None:
        for name, affected in (
            ("tied in time", between == 0),
            ("history after target", between < 0),
        ):
            masks[name] = np.isin(np.arange(users), judged_users[affected])
    pair = events.user * len(dataset.items) + events.item
    masks["target in history"] = some(np.isin(pair[held_out], pair[met]))
    trained = np.zeros(len(dataset.items), bool)
    trained[events.item[dataset.part == TRAIN]] = True
    masks["target not in train"] = some(~trained[events.item[held_out]])
    masks["near-duplicate user"] = judged & near_duplicates(dataset)
    return Audit(part, "users", judged, masks)


def near_duplicates(dataset: Dataset) -> Mask:
    """[U] the users with the items of another user, all of them or all but one.

    Two users are near-duplicates if their sets of items in all parts, of at least five, are equal,
    or become equal when at most one item is left out of each. Sets are compared by the sums of 64
    random bits per item, so chance makes one of two different sets equal with probability 2^-64.
    """
    items, users = len(dataset.items), len(dataset.users)
    pair = distinct(dataset.interactions.user * items + dataset.interactions.item)
    owner, code = pair // items, counter.bits(counter.key(0), items)[pair % items]
    size = np.bincount(owner, minlength=users)
    ends = np.concatenate([[0], np.cumsum(size)])
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(code, dtype=np.uint64)])
    whole = sums[ends[1:]] - sums[ends[:-1]]
    large = np.flatnonzero(size >= MIN_ITEMS)
    is_large = size[owner] >= MIN_ITEMS
    # the sum of each set, and the sums without each of its items
    keys = np.concatenate([whole[large], whole[owner[is_large]] - code[is_large]])
    owner = np.concatenate([large, owner[is_large]])
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    duplicated = np.zeros(users, bool)
    duplicated[owner[order[same]]] = duplicated[owner[order[same + 1]]] = True
    return duplicated


def _audit_triples(graph: KnowledgeGraph, part: int) -> Audit:
    held_out, train = graph.of(part), train_pairs(graph)
    row, pair = train.matches(held_out, reverse=False)
    repeated = np.zeros(len(held_out), bool)
    repeated[row[pair // train.relations == pair % train.relations]] = True
    linked, duplicate = RelationOverlap.of(graph, reverse=False).implied(train, held_out)
    reversed_, inverse = RelationOverlap.of(graph, reverse=True).implied(train, held_out)
    entity, relation = graph.trained
    unseen = ~(entity[held_out.head] & entity[held_out.tail] & relation[held_out.relation])
    affected = {
        "triple in train": repeated,
        "inverse in train": inverse,
        "near-duplicate in train": duplicate,
        "pair in train": linked | reversed_,
        "unseen in train": unseen,
    }
    return Audit(part, "triples", np.ones(len(held_out), bool), affected)


def relation_pairs(graph: KnowledgeGraph) -> list[dict[str, Any]]:
    """The pairs of relations that share pairs of entities, the most harmful first.

    Of a row, ``share`` of the distinct triples of ``relation`` in all parts have a counterpart
    under ``other``: on the same pair of entities (kind ``near-duplicate``) or on the reversed one
    (``inverse``). valid, test: the number of held-out triples of ``relation`` with one in training.
    implies: whether the share is large enough for the findings of the audit.
    """
    train, rows = train_pairs(graph), []
    labels = graph.relations.labels.to_pylist()
    for kind, reverse in (("inverse", True), ("near-duplicate", False)):
        overlap = RelationOverlap.of(graph, reverse=reverse)
        answered = {}
        for part in (VALID, TEST):
            _, pair = train.matches(graph.of(part), reverse=reverse)
            positions = np.searchsorted(overlap.pairs, pair[np.isin(pair, overlap.pairs)])
            answered[PART_NAMES[part]] = np.bincount(positions, minlength=len(overlap.pairs))
        pairs = zip(overlap.pairs.tolist(), overlap.shares.tolist(), strict=True)
        for number, (pair, share) in enumerate(pairs):
            relation, other = divmod(pair, train.relations)
            row = {"relation": labels[relation], "other": labels[other], "kind": kind}
            row |= {"triples": int(overlap.sizes[relation]), "share": share}
            row |= {part: int(counts[number]) for part, counts in answered.items()}
            rows.append(row | {"implies": share >= IMPLIES})
    return sorted(
        rows, key=lambda row: (not row["implies"], -row["valid"] - row["test"], -row["share"])
    )


_DROP_RELATION = (
    "a rule answers these triples: keep one relation of each pair, then split again; report the "
    "metric without them"
)
_REMEDIES = {
    "no history": "these users cannot be evaluated: give them training events, or leave them out",
    "tied in time": (
        "the order of the file decides which event is the target: compare only results on the same "
        "file, and report evaluation.users=untied beside all users"
    ),
    "history after target": (
        "the model sees events that are later than the target: use data.split=leave-last-two-out "
        "or data.ratio_order=time"
    ),
    "target in history": (
        "compare the metrics with the history kept and masked; data.duplicates=drop leaves out "
        "repeated events"
    ),
    "target not in train": (
        "no model can learn these items from interactions: use item features, or data.k_core"
    ),
    "near-duplicate user": (
        "these users may be copies of one another: keep one of them if they are"
    ),
    "triple in train": "leave these triples out of the held-out part",
    "inverse in train": _DROP_RELATION,
    "near-duplicate in train": _DROP_RELATION,
    "pair in train": (
        "some training relation links the same two entities, in one direction or the other: "
        "FB15k-237 leaves such triples out of its validation and test parts"
    ),
    "unseen in train": "choose data.unknown: drop, rank-last or keep",
}
