"""A small data set with features, and MMGCN and DRAGON as their equations read, densely."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.data.tables import (
    TEST,
    TRAIN,
    VALID,
    Dataset,
    Interactions,
    Modality,
    Source,
    Vocabulary,
)
from hasten.models.multimodal.dragon import DRAGON
from hasten.models.multimodal.mmgcn import MMGCN
from hasten.scoring import RecommenderQueries

USERS, ITEMS = 7, 9
#: items of each user; user 6 has only a test item, item 8 no training event
HELD = ((0, 1, 2, 3), (1, 2, 4), (0, 4, 5), (5,), (2, 6), (3, 6, 7, 0))


def modal_dataset(widths: tuple[int, ...] = (5, 4), repeated: bool = True) -> Dataset:
    """Features drawn from a seed; names image, text, audio; a pair may come twice."""
    rows = [(u, i, TRAIN) for u, held in enumerate(HELD) for i in held]
    rows += [(0, 1, TRAIN)] if repeated else []
    rows += [(0, 5, VALID), (1, 8, VALID), (2, 1, TEST), (6, 3, TEST)]
    rows.sort(key=lambda row: row[0])
    user, item, part = (np.array(column) for column in zip(*rows, strict=True))
    generator = np.random.default_rng(1)
    modalities = tuple(
        Modality.of(name, generator.standard_normal((ITEMS, width)).astype(np.float32))
        for name, width in zip(("image", "text", "audio"), widths, strict=False)
    )
    return Dataset(
        "small", Vocabulary(pa.array(range(USERS))), Vocabulary(pa.array(range(ITEMS))),
        Interactions(user, item), part.astype(np.int8), "given", Source("made"),
        modalities=modalities,
    )  # fmt: skip


def write_features(folder: Path, items: int, widths: tuple[int, ...] = (6, 4)) -> dict[str, str]:
    """Files of features of which the first places items on a ring."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(3)
    found = {}
    for name, width in zip(("image", "text"), widths, strict=True):
        values = generator.standard_normal((items, width))
        angle = 2 * np.pi * np.arange(items) / items
        values[:, 0], values[:, 1] = 3 * np.cos(angle), 3 * np.sin(angle)
        np.save(folder / f"{name}_feat.npy", values.astype(np.float32))
        found[name] = str(folder / f"{name}_feat.npy")
    return found


def adjacency() -> Tensor:
    """float64 [N + U, N + U] of the distinct training pairs, items first."""
    a = torch.zeros(ITEMS + USERS, ITEMS + USERS, dtype=torch.float64)
    for user, held in enumerate(HELD):
        for item in held:
            a[item, ITEMS + user] = a[ITEMS + user, item] = 1.0
    return a


def naive_mmgcn(model: MMGCN, dataset: Dataset) -> Tensor:
    """[N + U, D] by the equations, densely."""
    a = adjacency()
    mean = a / a.sum(1, keepdim=True).clamp(min=1)
    found = []
    for channel, modality in zip(model.channels, dataset.modalities, strict=True):
        f = torch.from_numpy(modality.values).double()
        if channel.project is not None:
            f = f @ channel.project.weight.T + channel.project.bias
        x = torch.cat([f, channel.users])
        x = x / x.norm(dim=1, keepdim=True).clamp(min=1e-12)
        for layer in channel.layers:
            h = F.leaky_relu(mean @ x @ layer.spread.T, 0.01)
            own = F.leaky_relu(x @ layer.own.weight.T + layer.own.bias, 0.01) + model.ids
            x = F.leaky_relu(torch.cat([h, own], 1) @ layer.mix.weight.T + layer.mix.bias, 0.01)
        found.append(x)
    return torch.stack(found).mean(0)


def naive_dragon(model: DRAGON, dataset: Dataset) -> Tensor:
    """[N + U, M D] by the equations, densely, graphs included."""
    options = model.options
    a = adjacency()
    root = a.sum(1).clamp(min=1).sqrt()
    s = a / root[:, None] / root[None]
    parts = []
    for channel, modality in zip(model.channels, dataset.modalities, strict=True):
        f = torch.from_numpy(modality.values).double()
        z = F.leaky_relu(f @ channel.first.weight.T + channel.first.bias, 0.01)
        z = z @ channel.second.weight.T + channel.second.bias
        x = torch.cat([z, channel.users])
        x = x / x.norm(dim=1, keepdim=True)
        powers = [x]
        for _ in range(options.layers):
            powers.append(s @ powers[-1])
        parts.append(sum(powers))
    items = torch.cat([part[:ITEMS] for part in parts], 1)
    for _ in range(options.mm_layers):
        items = items + naive_item_graph(model, dataset) @ items
    users = torch.cat([model.shares[:, [m]] * part[ITEMS:] for m, part in enumerate(parts)], 1)
    return torch.cat([items, users + naive_user_graph(options.companions) @ users])


def naive_item_graph(model: DRAGON, dataset: Dataset) -> Tensor:
    count, first = len(dataset.modalities), model.options.first_weight
    weights = [first] + [(1 - first) / max(1, count - 1)] * (count - 1) if count > 1 else [1.0]
    k = min(model.options.neighbours, ITEMS)
    total = torch.zeros(ITEMS, ITEMS, dtype=torch.float64)
    for modality, weight in zip(dataset.modalities, weights, strict=True):
        f = torch.from_numpy(modality.values)
        alike = F.cosine_similarity(f[:, None], f[None], dim=2)
        for i in range(ITEMS):
            for j in alike[i].topk(k).indices.tolist():
                total[i, j] += weight / k
    return total


def naive_user_graph(k: int) -> Tensor:
    total = torch.zeros(USERS, USERS, dtype=torch.float64)
    sets = [set(held) for held in HELD] + [set()]
    for u, mine in enumerate(sets):
        shared = [(len(mine & theirs), -len(theirs), -v) for v, theirs in enumerate(sets) if v != u]
        best = [pair for pair in sorted(shared, reverse=True) if pair[0] > 0][:k]
        if best:
            weights = torch.softmax(torch.tensor([float(c) for c, _, _ in best]).double(), 0)
            for (_, _, v), weight in zip(best, weights.tolist(), strict=True):
                total[u, -v] = weight
    return total


def loss_of(phase, batch, parts=1):
    encoded = phase.encode(batch)
    terms = list(phase.regularizers(encoded, batch))
    for part in range(parts):
        terms += phase.terms(encoded, batch, batch.micro_batch_ids(part, parts))
    return sum(t.numerator * t.weight / t.denominator for t in terms)


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_same_loss(model, ours, naive):
    """Equal losses, with equal gradients of all parameters."""
    torch.testing.assert_close(ours, naive, rtol=1e-10, atol=0)
    mine, theirs = gradients(model, ours), gradients(model, naive)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-8, atol=1e-12, msg=name)


def judged(dataset, model, expected):
    """The scores of four users, which are those of the expected vectors."""
    queries = RecommenderQueries(np.arange(4), dataset.histories(TRAIN))
    with torch.inference_mode():
        scores = model.scorer(queries).block(0, ITEMS)
    torch.testing.assert_close(scores, expected[ITEMS : ITEMS + 4] @ expected[:ITEMS].T)
    return scores
