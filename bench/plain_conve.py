"""ConvE in plain PyTorch, as fast as it gets with the layers of ``torch.nn``.

Two-dimensional convolutions over a knowledge graph (Dettmers et al. 2018), written from the paper:
``Conv2d``, ``BatchNorm``, ``Dropout`` and ``Linear`` layers, scores against all entities, binary
cross-entropy of smoothed labels, fused Adam. A row is a distinct (entity, relation), reciprocal
relations included, as on hasten's side. The loss has no matrix of labels: their sum, the sum of the
scores and the scores of the answers are all it needs, and its gradient is ``sigmoid(s) - y``. The
gradient of the gathered rows is added to the table's instead of being a table of its own.

    python -m bench.plain_conve --data fb15k-237 --steps 60 --threads 2
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import Int64, triples
from bench.report import Stopwatch, print_report

HEIGHT, WIDTH = 20, 10
SMOOTHING = 0.1


class PlainConvE(nn.Module):
    """The layers of figure 1, D = 200."""

    def __init__(self, entities: int, relations: int, channels: int = 32) -> None:
        super().__init__()
        size = HEIGHT * WIDTH
        self.entities = nn.Embedding(entities, size)
        self.relations = nn.Embedding(relations, size)
        nn.init.xavier_normal_(self.entities.weight)
        nn.init.xavier_normal_(self.relations.weight)
        self.input_norm, self.input_dropout = nn.BatchNorm2d(1), nn.Dropout(0.2)
        self.convolution = nn.Conv2d(1, channels, 3)
        self.feature_norm, self.feature_dropout = nn.BatchNorm2d(channels), nn.Dropout2d(0.2)
        self.linear = nn.Linear(channels * (2 * HEIGHT - 2) * (WIDTH - 2), size)
        self.hidden_dropout, self.hidden_norm = nn.Dropout(0.3), nn.BatchNorm1d(size)
        self.bias = nn.Parameter(torch.zeros(entities))

    def vectors(self, entity: Tensor, relation: Tensor) -> Tensor:
        return self.encode(self.entities(entity), relation)

    def encode(self, rows: Tensor, relation: Tensor) -> Tensor:
        """[B, D] from the rows of entities [B, D]."""
        head = rows.view(-1, 1, HEIGHT, WIDTH)
        below = self.relations(relation).view(-1, 1, HEIGHT, WIDTH)
        x = self.input_dropout(self.input_norm(torch.cat([head, below], dim=2)))
        x = self.feature_dropout(torch.relu(self.feature_norm(self.convolution(x))))
        x = self.hidden_dropout(self.linear(x.flatten(1)))
        return torch.relu(self.hidden_norm(x))

    def forward(self, rows: Tensor, relation: Tensor) -> Tensor:
        return torch.addmm(self.bias, self.encode(rows, relation), self.entities.weight.T)


class OneToN(torch.autograd.Function):
    """Mean binary cross-entropy of scores [B, N] and smoothed labels."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, place: Tensor, smoothing: float) -> Tensor:
        """place: int64, the answers' distinct positions in the flat scores."""
        floor = smoothing / scores.shape[1]
        grad = torch.sigmoid(scores).sub_(floor)
        grad.view(-1).index_add_(0, place, grad.new_full(place.shape, smoothing - 1))
        ctx.save_for_backward(grad)
        loss = F.softplus(scores).sum() - floor * scores.sum()
        return (loss - (1 - smoothing) * scores.view(-1)[place].sum()) / scores.numel()

    @staticmethod
    def backward(ctx: Any, upper: Tensor) -> tuple[Tensor, None, None]:
        (grad,) = ctx.saved_tensors
        return grad.mul_(upper / grad.numel()), None, None


def backward(model: PlainConvE, ids: Tensor, relation: Tensor, place: Tensor, dtype: Any) -> Tensor:
    """Add the gradients of the questions (ids, relation) [B]; returns their mean loss.

    place: the answers, as of :class:`OneToN`. dtype: of the layers, under autocast.
    """
    table = model.entities.weight
    given = table.detach().index_select(0, ids).requires_grad_()
    with torch.autocast(ids.device.type, dtype=dtype, enabled=dtype != torch.float32):
        scores = model(given, relation)
    loss: Tensor = OneToN.apply(scores.float(), place, SMOOTHING)  # type: ignore[no-untyped-call]
    loss.backward()  # type: ignore[no-untyped-call]
    assert table.grad is not None
    assert given.grad is not None
    table.grad.index_add_(0, ids, given.grad)
    return loss.detach()


def places_of(rows: Int64, offsets: Int64, answers: Int64, entities: int) -> Int64:
    """The answers of these questions as positions in the flat scores [B, N]."""
    lengths = offsets[rows + 1] - offsets[rows]
    first = np.repeat(offsets[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
    place: Int64 = np.repeat(np.arange(len(rows)) * entities, lengths)
    place += answers[np.arange(len(first)) + first]
    return place


def rows_of(head: Int64, relation: Int64, tail: Int64, entities: int, relations: int):  # type: ignore[no-untyped-def]
    """The distinct questions of both directions, and the answers of each as ragged rows."""
    entity = np.concatenate([head, tail])
    asked = np.concatenate([relation, relation + relations]) * entities + entity
    answer = np.concatenate([tail, head])
    order = np.argsort(asked, kind="stable")
    found, starts = np.unique(asked[order], return_index=True)
    offsets = np.append(starts, len(order))
    return found % entities, found // entities, offsets, answer[order]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fb15k-237")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--steps", type=int, default=60, help="of the epoch, measured")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    (head, relation, tail), entities, relations = triples(options.data)
    entity, asked, offsets, answers = rows_of(head, relation, tail, entities, relations)
    model = PlainConvE(entities, 2 * relations)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    order = np.random.default_rng(options.seed).permutation(len(entity))
    size = options.batch_size

    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32

    def step(number: int) -> float:
        rows = order[np.arange(number * size, (number + 1) * size) % len(order)]
        parts = entity[rows], asked[rows], places_of(rows, offsets, answers, entities)
        optimizer.zero_grad()
        ids, relations_asked, place = map(torch.from_numpy, parts)
        loss = backward(model, ids, relations_asked, place, dtype)
        optimizer.step()
        return float(loss)

    model.train()
    for number in range(options.warm_up):
        step(number)
    watch = Stopwatch()
    for number in range(options.warm_up, options.warm_up + options.steps):
        loss = step(number)
    wall, cpu = watch.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=-(-len(entity) // size),
        examples_per_epoch=len(entity),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss * entities,
    )


if __name__ == "__main__":
    main()
