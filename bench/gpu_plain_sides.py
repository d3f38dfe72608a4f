"""The plain models of this folder on a device, with their data, for :mod:`bench.gpu_plain`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.book_graph import BookGraph
from bench.data import Sequences
from bench.gpu_data import facts, made_book, made_features
from bench.gpu_training import Synthetic
from bench.hgt_side import SAMPLE, SHARE, knowledge_graph, scored_links
from bench.kgat_side import dataset_of
from bench.lightgcn_side import PlainLightGCN
from bench.link_step import HEADS, HIDDEN, LAYERS, NEGATIVES, WIDTH, Arranged, LinkStep, PlainHGT
from bench.made_graph import MadeGraph, made_graph
from bench.padded import NegativeSampler, padded
from bench.plain_batches import EdgeBatches, PairBatches
from bench.plain_blocks import TokenBatch
from bench.plain_conve import PlainConvE, backward, places_of, rows_of
from bench.plain_dragon import PlainDRAGON
from bench.plain_graph import SparseMatrix
from bench.plain_kgat import PlainKGAT
from bench.plain_mmgcn import MeanGraph, PlainMMGCN
from bench.plain_sasrec import PlainSASRec
from bench.plain_tisasrec import PlainTiSASRec
from hasten.build import load_data
from hasten.config_loading.build import build_config
from hasten.data.graph.node_types import NodeTypes
from hasten.data.tables import TRAIN
from hasten.models.multimodal.modal_data import training_pairs
from hasten.ops.transfer import to_device

#: batches that the plain side repeats
BATCHES = 8
LENGTH = 200

SETTINGS: dict[str, dict[str, Any]] = {
    "sasrec": {"model.loss": "ce", "model.width": 64, "model.dropout": 0.2},
    "tisasrec": {"model.loss": "bce", "model.width": 64, "model.dropout": 0.2},
    "conve": {"model.loss": "1-n", "model.width": 200, "model.channels": 32, "model.group": 128},
    "lightgcn": {"model.sampling": "users"},
    "kgat": {"model.sampling": "users", "training.batch_size": 1024},
    "mmgcn": {"model.ids": "trainable"},
    "dragon": {},
    "hgt": {
        "model.hidden": HIDDEN, "model.width": WIDTH, "model.heads": HEADS, "model.layers": LAYERS,
        "model.negatives": NEGATIVES, "model.loss": "logistic", "model.contrastive_weight": 0.0,
        "model.steps_per_epoch": 100, "model.scored_share": SHARE, "training.batch_size": SAMPLE,
    },
}  # fmt: skip
SETTINGS["sasrec"] |= {"model.max_length": LENGTH, "training.batch_size": 128}
SETTINGS["tisasrec"] |= {"model.max_length": LENGTH, "training.batch_size": 128}
SETTINGS["conve"] |= {f"model.{part}_dropout": rate for part, rate in
                      (("input", 0.2), ("feature", 0.2), ("hidden", 0.3))}  # fmt: skip


@dataclass(frozen=True)
class Plain:
    """A phase of a plain model: from a batch to the loss, whose gradients are then computed.

    loss: returns None if it has added the gradients itself.
    """

    parameters: Sequence[Tensor]
    batches: Sequence[Any]
    loss: Callable[..., Tensor | None]

    def stepper(self) -> Callable[[int], None]:
        """What takes the step of a number."""
        optimizer = torch.optim.Adam(self.parameters, lr=1e-3, fused=True)

        def take(number: int) -> None:
            optimizer.zero_grad()
            loss = self.loss(*self.batches[number % len(self.batches)])
            if loss is not None:
                torch.autograd.backward(loss)
            optimizer.step()

        return take


def problem(model: str, quick: bool) -> tuple[Any, Any]:
    """The configuration and the data of a model."""
    config = build_config(model, None, None, (), SETTINGS[model])
    if model == "hgt":
        return config, knowledge_graph(made_graph("guide", 0.02 if quick else 1.0))
    table = table_of(model, quick)
    if table is not None:
        return config, load_data(config, table)
    book = made_book(0.02 if quick else 1.0)
    return config, replace(dataset_of(book), modalities=made_features(book.items))


def moved(part: Any, device: torch.device) -> Any:
    """A plain model, a matrix or a tree of both, with all tensors on the device."""
    if isinstance(part, Tensor):
        return part.detach().to(device).requires_grad_(part.requires_grad)
    if isinstance(part, (list, tuple)):
        return type(part)(moved(each, device) for each in part)
    if isinstance(part, TokenBatch):
        return TokenBatch(*(getattr(part, each.name).to(device) for each in fields(part)))
    if isinstance(part, SparseMatrix):
        return part.to(device)
    if isinstance(part, nn.Module):
        part.to(device)
        for child in part.modules():
            _move_attributes(child, device)
    elif isinstance(part, (MeanGraph, PlainLightGCN)):
        _move_attributes(part, device)
    return part


def _move_attributes(owner: Any, device: torch.device) -> None:
    held = (Tensor, SparseMatrix, MeanGraph)
    for name, value in vars(owner).items():
        several = isinstance(value, list) and value and isinstance(value[0], Tensor)
        if isinstance(value, held) or several:
            setattr(owner, name, moved(value, device))


def table_of(model: str, quick: bool) -> Any:
    """The events or triples of a model; None: it gets those of :func:`made_book`."""
    if model in ("sasrec", "tisasrec"):
        return (Synthetic(300, 100, 20) if quick else Synthetic(4000, 3000, LENGTH)).columns()
    if model == "conve":
        return facts(200, 5, 1000) if quick else facts(14_000, 200, 250_000)
    return None


def pair_batches(user: Tensor, item: Tensor, items: int, size: int, *, by_user: bool) -> list[Any]:
    """Users, positives and negatives of some batches."""
    drawn = PairBatches(user, item, items, size, by_user=by_user)
    return [drawn.draw(number) for number in range(max(1, min(BATCHES, drawn.steps - 1)))]


def plain_lightgcn(data: Any, size: int, device: torch.device) -> dict[str, Plain]:
    model = moved(PlainLightGCN(book_of(data)), device)
    pairs = training_pairs(data)
    chosen = torch.from_numpy(pairs.rows), torch.from_numpy(pairs.items)
    batches = pair_batches(*chosen, len(data.items), size, by_user=True)
    return {"pairwise": Plain([model.table], moved(batches, device), model.loss)}


def book_of(data: Any) -> BookGraph:
    """The pairs of the data; the facts are left out."""
    pairs, none = training_pairs(data), np.zeros(0, np.int64)
    sizes = len(data.users), len(data.items), len(data.items), 0
    return BookGraph(pairs.rows, pairs.items, none, none, none, *sizes)


def plain_kgat(data: Any, size: int, device: torch.device) -> dict[str, Plain]:
    model = PlainKGAT(data, [64])
    edges = EdgeBatches(model.head, model.relation, model.tail, *model.shape, 2 * size)
    drawn = [edges.draw() for _ in range(BATCHES)]
    pairs = training_pairs(data)
    chosen = torch.from_numpy(pairs.rows), torch.from_numpy(pairs.items)
    batches = pair_batches(*chosen, len(data.items), size, by_user=True)
    moved(model, device)
    mixing = [*model.first.parameters(), *model.second.parameters()]
    tables = [model.relations.weight, model.projections]
    nodes = model.nodes.weight
    return {
        "pairwise": Plain([nodes, *mixing], moved(batches, device), model.pair_loss),
        "translation": Plain([nodes, *tables], moved(drawn, device), model.translation_loss),
    }


def plain_modal(kind: Any) -> Callable[[Any, int, torch.device], dict[str, Plain]]:
    """Of MMGCN or DRAGON."""

    def make(data: Any, size: int, device: torch.device) -> dict[str, Plain]:
        model = moved(kind(data), device)
        pairs = training_pairs(data)
        chosen = torch.from_numpy(pairs.rows), torch.from_numpy(pairs.items)
        batches = pair_batches(*chosen, len(data.items), size, by_user=False)
        return {"pairwise": Plain(list(model.parameters()), moved(batches, device), model.loss)}

    return make


def plain_conve(data: Any, size: int, device: torch.device) -> dict[str, Plain]:
    train, entities, relations = data.of(TRAIN), len(data.entities), len(data.relations)
    ends = train.head, train.relation, train.tail
    entity, asked, offsets, answers = rows_of(*ends, entities, relations)
    order, batches = np.random.default_rng(0).permutation(len(entity)), []
    for number in range(BATCHES):
        rows = order[np.arange(number * size, (number + 1) * size) % len(order)]
        parts = entity[rows], asked[rows], places_of(rows, offsets, answers, entities)
        batches.append([torch.from_numpy(each) for each in parts])
    model = moved(PlainConvE(entities, 2 * relations), device).train()

    def loss(ids: Tensor, relation: Tensor, place: Tensor) -> None:
        backward(model, ids, relation, place, torch.float32)

    return {"completion": Plain(list(model.parameters()), moved(batches, device), loss)}


def plain_hgt(data: Any, size: int, device: torch.device) -> dict[str, Plain]:
    """Links are drawn, and messages chosen for them, on the host beforehand."""
    types, train = NodeTypes.of(data), data.of(TRAIN)
    ends = np.stack([types.source, types.target], 1)
    made = MadeGraph(types.sizes, ends, train.head, train.relation, train.tail)
    encoder = PlainHGT(made)
    step, batches = LinkStep(made, encoder, scored_links(made, size), 1), []
    for _ in range(BATCHES):
        links = step.draw_links()
        keep = torch.ones(len(train.head), dtype=torch.bool)
        wanted, place = step.nodes(links)
        arranged = encoder.arranged(keep.index_fill_(0, links.flatten(), False), wanted)
        batches.append(to_device((arranged, place), device))
    parameters, count = list(moved(step, device).parameters()), links.numel()

    def loss(arranged: Arranged, place: Tensor) -> Tensor:
        return step.scored_loss(encoder.encode(arranged), place) / count

    return {"links": Plain(parameters, batches, loss)}


def plain_sequences(kind: str) -> Callable[[Any, int, torch.device], dict[str, Plain]]:
    """Of SASRec or TiSASRec."""

    def make(data: Any, size: int, device: torch.device) -> dict[str, Plain]:
        histories = data.histories(TRAIN)
        offsets = np.concatenate([[0], np.cumsum(histories.lengths)])
        events = Sequences(offsets, histories.items + 1, len(data.items), histories.times)
        arrays, sampler = padded(events, LENGTH, drop=0), NegativeSampler(events)
        generator = np.random.default_rng(0)
        order, batches = generator.permutation(arrays.trained()), []
        for number in range(BATCHES):
            rows = order[np.arange(number * size, (number + 1) * size) % len(order)]
            users = np.repeat(rows, arrays.counts[rows])
            batches.append((TokenBatch.of(arrays, rows, sampler.draw(users, generator)),))
        model: nn.Module
        if kind == "sasrec":
            model = PlainSASRec(len(data.items), 64, 2, 1, LENGTH, 0.2, "ce")
        else:
            model = PlainTiSASRec(len(data.items), 64, 2, LENGTH, 0.2, 256, 5e-5)
        moved(model, device)
        return {"next_item": Plain(list(model.parameters()), moved(batches, device), model)}

    return make


PLAIN: dict[str, Callable[[Any, int, torch.device], dict[str, Plain]]] = {
    "sasrec": plain_sequences("sasrec"),
    "tisasrec": plain_sequences("tisasrec"),
    "conve": plain_conve,
    "lightgcn": plain_lightgcn,
    "kgat": plain_kgat,
    "mmgcn": plain_modal(PlainMMGCN),
    "dragon": plain_modal(PlainDRAGON),
    "hgt": plain_hgt,
}
