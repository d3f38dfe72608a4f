"""The models under contract: a new one passes the whole suite by adding a case here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

#: relations of a ring of entities: steps along it
_RING: Mapping[str, tuple[int, ...]] = {
    "next": (1,), "previous": (-1,), "second": (2,), "opposite": (15,),
}  # fmt: skip


@dataclass(frozen=True)
class ModelCase:
    """A model with options small enough for tests.

    settings: dotted configuration keys; without_dropout: what switches off all randomness that
    depends on the layout of a batch; trains: whether it has gradient steps at all; triples: whether
    it reads a knowledge graph, and ring: its relations; planted: what learning the planted
    structure takes, where that is not thirty epochs; loss: what the records call its loss; left:
    the share of its loss at the start that it may have at the end.
    """

    label: str
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    without_dropout: Mapping[str, Any] = field(default_factory=dict)
    trains: bool = True
    triples: bool = False
    ring: Mapping[str, tuple[int, ...]] = field(default_factory=lambda: _RING)
    planted: Mapping[str, Any] = field(default_factory=dict)
    loss: str = "loss"
    left: float = 0.55

    @property
    def data(self) -> dict[str, np.ndarray]:
        if self.triples:
            return graph(ring=self.ring)
        return described_sequences() if "data.event_features" in self.settings else sequences()

    @property
    def metric(self) -> str:
        """What a model that learned is good at."""
        return "mrr" if self.triples else "ndcg@10"


_SMALL = {"model.width": 16, "model.max_length": 12}
_NO_DROPOUT = {"model.dropout": 0.0}
_ITEM_TABLE = {"data.item_features": str(Path(__file__).with_name("items.csv"))}

_EVENT_COLUMNS = {"data.event_features": "device,dwell:numeric"}

#: models without an order learn from pairs at random positions of the histories
_PAIRS = {
    "model.width": 16,
    "data.split": "ratio",
    "data.ratio_order": "random",
    "training.batch_size": 64,
}
_KGAT = {
    **_PAIRS,
    "data.kg": str(Path(__file__).with_name("facts.tsv")),
    "model.relation_width": 8,
    "model.layers": [12, 8],
    "model.kg_batch_size": 200,
}

_FEATURES = {
    **_PAIRS,
    "data.features": {
        name: str(Path(__file__).with_name(f"{name}_feat.npy")) for name in ("image", "text")
    },
}

_TRIPLES = {"model.width": 16, "training.batch_size": 32}
_CONVE = {**_TRIPLES, "model.width": 36, "model.channels": 8, "model.group": 8}
_CONVE_PLAIN = {f"model.{name}_dropout": 0.0 for name in ("input", "feature", "hidden")}


#: scores that are the same from both ends can tell each of the two from the other
_NEAR = {"next": (-1, 1), "beside": (-1, 1)}
_HGT = {
    "model.width": 16,
    "model.hidden": 16,
    "model.layers": 1,
    "model.heads": 2,
    "model.negatives": 12,
    "model.contrastive_batch": 8,
    "training.batch_size": 8,
}


def _hgt(label: str, settings: Mapping[str, Any]) -> ModelCase:
    return ModelCase(
        label,
        "hgt",
        {**_HGT, **settings},
        {"model.query_dropout": 0.0},
        triples=True,
        ring=_NEAR,
        planted={"training.epochs": 12, "training.lr": 2e-2, "evaluation.every": 12},
        loss="link",
    )


CASES = (
    ModelCase("sasrec-ce", "sasrec", _SMALL, _NO_DROPOUT),
    ModelCase(
        "sasrec-bce-post",
        "sasrec",
        {**_SMALL, "model.loss": "bce", "model.norm": "post"},
        _NO_DROPOUT,
    ),
    ModelCase(
        "sasrec-gbce",
        "sasrec",
        {**_SMALL, "model.loss": "gbce", "model.negatives": 4, "model.heads": 2},
        _NO_DROPOUT,
    ),
    ModelCase(
        "sasrec-ligr",
        "sasrec",
        {**_SMALL, "model.block": "ligr", "model.heads": 2, "model.feedforward": 2},
        _NO_DROPOUT,
    ),
    ModelCase(
        "sasrec-sampled-softmax",
        "sasrec",
        {
            **_SMALL,
            "model.loss": "sampled-softmax",
            "model.sampling": "mixed",
            "model.negatives": 12,
        },
        _NO_DROPOUT,
    ),
    ModelCase("sasrec-mhc", "sasrec", {**_SMALL, "model.residual": "mhc"}, _NO_DROPOUT),
    ModelCase(
        "sasrec-mhc-static",
        "sasrec",
        {
            **_SMALL,
            "model.residual": "mhc",
            "model.maps": "static",
            "model.projection": "permutation",
        },
        _NO_DROPOUT,
    ),
    ModelCase("tisasrec-ce", "tisasrec", {**_SMALL, "model.span": 20}, _NO_DROPOUT),
    ModelCase(
        "tisasrec-bce",
        "tisasrec",
        {**_SMALL, "model.span": 4, "model.loss": "bce", "model.heads": 2},
        _NO_DROPOUT,
    ),
    ModelCase("sasrec-features", "sasrec", {**_SMALL, **_ITEM_TABLE}, _NO_DROPOUT),
    ModelCase(
        "tisasrec-features",
        "tisasrec",
        {
            **_SMALL,
            **_ITEM_TABLE,
            "model.span": 20,
            "model.loss": "sampled-softmax",
            "model.negatives": 12,
        },
        _NO_DROPOUT,
    ),
    ModelCase(
        "sasrec-events", "sasrec", {**_SMALL, **_EVENT_COLUMNS, "model.loss": "bce"}, _NO_DROPOUT
    ),
    ModelCase(
        "tisasrec-events", "tisasrec", {**_SMALL, **_EVENT_COLUMNS, "model.span": 20}, _NO_DROPOUT
    ),
    ModelCase("tisasrec-mhc", "tisasrec", {**_SMALL, "model.residual": "mhc"}, _NO_DROPOUT),
    ModelCase("pop", "pop", trains=False),
    ModelCase("ease", "ease", trains=False),
    ModelCase("slim", "slim", trains=False),
    ModelCase("itemknn", "itemknn", trains=False),
    ModelCase("gfcf", "gfcf", trains=False),
    ModelCase("bprmf", "bprmf", _PAIRS),
    ModelCase("lightgcn", "lightgcn", _PAIRS),
    # items of the same user compete, so the loss cannot reach zero
    ModelCase("lightgcn-softmax", "lightgcn", {**_PAIRS, "model.loss": "softmax"}, left=0.7),
    ModelCase("kgat", "kgat", _KGAT, _NO_DROPOUT, loss="pairwise.loss"),
    ModelCase(
        "kgat-gcn",
        "kgat",
        {**_KGAT, "model.aggregator": "gcn", "model.sampling": "interactions"},
        _NO_DROPOUT,
        loss="pairwise.loss",
    ),
    ModelCase(
        "kgat-graphsage",
        "kgat",
        {**_KGAT, "model.aggregator": "graphsage", "model.layers": [12]},
        _NO_DROPOUT,
        loss="pairwise.loss",
    ),
    ModelCase(
        "mmgcn",
        "mmgcn",
        {**_FEATURES, "model.latent": 8, "model.ids": "trainable", "model.l2": 1e-3},
    ),
    ModelCase("mmgcn-frozen", "mmgcn", {**_FEATURES, "model.latent": 8, "model.ids": "frozen"}),
    ModelCase("bm3", "bm3", _FEATURES),
    ModelCase("freedom", "freedom", {**_FEATURES, "model.modal_weight": 0.1, "model.layers": 2}),
    ModelCase("dragon", "dragon", {**_FEATURES, "model.hidden": 24, "model.companions": 10}),
    ModelCase(
        "conve",
        "conve",
        _CONVE,
        _CONVE_PLAIN,
        triples=True,
        planted={"training.epochs": 60, "training.lr": 5e-3},
    ),
    ModelCase("distmult", "distmult", _TRIPLES, _NO_DROPOUT, triples=True),
    ModelCase(
        "complex-sampled",
        "complex",
        {**_TRIPLES, "model.loss": "sampled", "model.negatives": 8},
        _NO_DROPOUT,
        triples=True,
    ),
    ModelCase(
        "complex-sampled-softmax",
        "complex",
        {**_TRIPLES, "model.loss": "sampled-softmax", "model.negatives": 24, "model.n3": 0.01},
        _NO_DROPOUT,
        triples=True,
    ),
    ModelCase(
        "distmult-softmax",
        "distmult",
        {**_TRIPLES, "model.loss": "1-n-softmax"},
        _NO_DROPOUT,
        triples=True,
    ),
    ModelCase(
        "complex-n3",
        "complex",
        {**_TRIPLES, "model.bias": False, "model.n3": 0.01, "model.relation_weight": 0.5},
        _NO_DROPOUT,
        triples=True,
    ),
    ModelCase(
        "tucker",
        "tucker",
        {**_TRIPLES, "model.relation_width": 8, "model.group": 8},
        {f"model.{name}_dropout": 0.0 for name in ("input", "relation", "hidden")},
        triples=True,
        planted={"training.epochs": 60, "training.lr": 5e-3},
    ),
    ModelCase(
        "rotate",
        "rotate",
        {**_TRIPLES, "model.negatives": 8},
        triples=True,
        planted={"training.lr": 3e-2},
    ),
    ModelCase("degree", "degree", trains=False, triples=True),
    _hgt("hgt", {"model.layers": 2}),
    _hgt("hgt-self-score", {"model.self_score": True, "model.relation_weights": "normal"}),
    _hgt(
        "hgt-shallow",
        {"model.shallow_width": 2, "model.exclude_self": True, "model.n3": 0.01},
    ),
    _hgt("hgt-edges", {"model.mode": "edges", "model.fan_out": 2}),
    _hgt(
        "hgt-neighbors",
        {"model.mode": "neighbors", "model.fan_out": 3, "model.steps_per_epoch": 6},
    ),
)


def graph(entities: int = 30, ring: Mapping[str, tuple[int, ...]] = _RING) -> dict[str, np.ndarray]:
    """A ring of entities: each relation is steps along it, one of them seen in another."""
    rows = []
    for i in range(entities):
        for relation, steps in ring.items():
            rows += [(i, relation, (i + step) % entities) for step in steps]
    generator = np.random.default_rng(5)
    columns = zip(*(rows[i] for i in generator.permutation(len(rows))), strict=True)
    names = ("head", "relation", "tail")
    return {name: np.array(column) for name, column in zip(names, columns, strict=True)}


def sequences(users: int = 50, items: int = 30, seed: int = 0) -> dict[str, np.ndarray]:
    """Events in which the next item mostly follows from the last: item + 1, sometimes a jump."""
    generator = np.random.default_rng(seed)
    rows: dict[str, list[int]] = {"user_id": [], "item_id": [], "timestamp": []}
    for user in range(users):
        item = int(generator.integers(items))
        for time in range(int(generator.integers(3, 16))):
            rows["user_id"].append(user)
            rows["item_id"].append(item)
            rows["timestamp"].append(1_000_000 + time * 60 + user)
            jump = generator.random() < 0.1
            item = int(generator.integers(items)) if jump else (item + 1) % items
    return {name: np.array(values) for name, values in rows.items()}


def described_sequences() -> dict[str, np.ndarray]:
    """The same events with a device and a dwell time, which is missing in places."""
    found, generator = sequences(), np.random.default_rng(2)
    count = len(found["user_id"])
    dwell = generator.exponential(30, count)
    dwell[generator.random(count) < 0.1] = np.nan
    devices = np.array(["phone", "tablet", "computer", ""])
    return {**found, "device": devices[generator.integers(0, 4, count)], "dwell": dwell}
