"""Evaluation protocols of other libraries, as options of ``evaluation`` and of the split.

Each protocol was read from the source of the library (docs/protocols.md names the versions). A
protocol sets every option that decides what is ranked and how, so nothing else of a configuration
changes its metrics. The metrics of a protocol are the library's own; others may be asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hasten.config import EvaluationOptions
from hasten.errors import ConfigurationError

#: options of ``evaluation`` that a protocol leaves free
FREE = ("like", "every", "test", "metrics")
_RANDOM_RATIO = {
    "split": "ratio",
    "ratios": (0.8, 0.1, 0.1),
    "ratio_order": "random",
    "ratio_rounding": "down",
}
_LAST_TWO = {"split": "leave-last-two-out"}
_GIVEN = {"split": "given"}


@dataclass(frozen=True)
class Peer:
    """The protocol of a library.

    metrics: the first selects the model. evaluation: what differs from the defaults of
    ``EvaluationOptions``; data: options of the split of a new run; splits: how the descriptions of
    its splits begin (``Dataset.split``), () if it has no split of its own. triples: whether it
    ranks entities of a knowledge graph instead of items for users.
    """

    metrics: tuple[str, ...]
    evaluation: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)
    splits: tuple[str, ...] = ()
    triples: bool = False

    def options(self) -> dict[str, Any]:
        """The options of ``evaluation`` that it sets, with those that stay at their defaults."""
        defaults = EvaluationOptions()
        fixed = {name: getattr(defaults, name) for name in _protocol_options(self.triples)}
        return {**fixed, **self.evaluation}


def _protocol_options(triples: bool) -> tuple[str, ...]:
    if triples:
        return ("ties", "filter_test")
    return ("candidates", "mask_history", "seen_targets", "users", "ties")


_RATIO_TEXT = "ratio 0.8/0.1/0.1 of each user's events, rounded down, at random"
_GENERAL_10 = ("mrr@10", "recall@10", "ndcg@10", "hr@10", "precision@10")
_RECBOLE = Peer(
    _GENERAL_10,
    {"mask_history": True, "seen_targets": "unmask"},
    _RANDOM_RATIO,
    (_RATIO_TEXT, "leave-last-two-out"),
)
#: its sequential models: the next item of a sequence, nothing masked
_RECBOLE_SEQUENTIAL = Peer(_GENERAL_10, {"mask_history": False}, _LAST_TWO, _RECBOLE.splits)

PEERS: dict[str, Peer] = {
    "recbole": _RECBOLE,
    "rectools": Peer(
        ("recall@10", "ndcg_rectools@10", "ndcg@10", "map_rectools@10", "mrr@10", "hr@10"),
        {"candidates": "trained", "mask_history": True, "seen_targets": "drop"},
        _LAST_TWO,
        ("leave-last-two-out",),
    ),
    "bert4rec": Peer(
        ("ndcg@10", "hr@10", "ndcg@5", "hr@5", "hr@1", "mrr"),
        {"candidates": "pop100"},
        _LAST_TWO,
        ("leave-last-two-out",),
    ),
    "kgat": Peer(
        ("recall@20", "ndcg_kgat@20", "ndcg@20", "precision@20", "hr@20"),
        {"mask_history": True, "seen_targets": "miss"},
        _GIVEN,
        ("given parts",),
    ),
    "mmrec": Peer(
        tuple(f"{kind}@{k}" for kind in ("recall", "ndcg") for k in (20, 5, 10, 50)),
        {"mask_history": "train", "seen_targets": "miss"},
        _GIVEN,
        ("given parts",),
    ),
    "libkge": Peer(("mrr", "hits@1", "hits@3", "hits@10", "mr"), {"ties": "rounded"}, triples=True),
    "pykeen": Peer(
        ("hits@10", "mrr", "hits@1", "hits@3", "hits@5", "mr", "amri"),
        {"filter_test": False},
        triples=True,
    ),
}


def peer_settings(name: str, model: str, reads: str) -> dict[str, Any]:
    """What ``evaluation.like=name`` sets, by dotted key. reads: of the model (``Model.reads``).

    Raises ConfigurationError for a protocol that ranks something else than the model.
    """
    peer = PEERS[name]
    of_triples = reads in ("triples", "typed_graph")
    if peer.triples != of_triples:
        fits = ", ".join(other for other, each in PEERS.items() if each.triples == of_triples)
        ranked = "entities of a knowledge graph" if peer.triples else "items for users"
        raise ConfigurationError(
            f"evaluation.like {name} ranks {ranked}, which {model} does not: choose one of {fits}"
        )
    if name == "recbole" and reads in ("interactions", "sequences"):
        peer = _RECBOLE_SEQUENTIAL
    evaluation = {f"evaluation.{key}": value for key, value in peer.options().items()}
    data = {f"data.{key}": value for key, value in peer.data.items()}
    return {**data, **evaluation, "evaluation.metrics": peer.metrics}


def peer_words(name: str | None, split: str) -> str:
    """The end of the description of a protocol. split: the description of the data's split."""
    if name is None:
        return ""
    splits = PEERS[name].splits
    same_split = not splits or split.startswith(splits)
    return f", like {name}" if same_split else f", like {name} except for the split"
