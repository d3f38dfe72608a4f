"""The plain ConvE: the formulation everyone starts from, in straightforward PyTorch.

Two-dimensional convolutions over a knowledge graph (Dettmers et al. 2018), written from the paper:
``Conv2d``, ``BatchNorm``, ``Dropout`` and ``Linear`` layers, scores against all entities, a dense
matrix of smoothed labels for every batch, binary cross-entropy, fused Adam. A row is a distinct
(entity, relation), reciprocal relations included, as on hasten's side; the label matrix is filled
from arrays, not by a loop, and counted in the time, because every step needs one.

    python -m bench.plain_conve --data fb15k-237 --steps 60 --threads 2
"""

from __future__ import annotations

import argparse

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
        head = self.entities(entity).view(-1, 1, HEIGHT, WIDTH)
        below = self.relations(relation).view(-1, 1, HEIGHT, WIDTH)
        x = self.input_dropout(self.input_norm(torch.cat([head, below], dim=2)))
        x = self.feature_dropout(torch.relu(self.feature_norm(self.convolution(x))))
        x = self.hidden_dropout(self.linear(x.flatten(1)))
        return torch.relu(self.hidden_norm(x))

    def forward(self, entity: Tensor, relation: Tensor) -> Tensor:
        return self.vectors(entity, relation) @ self.entities.weight.T + self.bias


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
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True)
    order = np.random.default_rng(options.seed).permutation(len(entity))
    size = options.batch_size

    def step(number: int) -> float:
        rows = order[number * size : (number + 1) * size]
        labels = torch.zeros(len(rows), entities)
        lengths = offsets[rows + 1] - offsets[rows]
        row = np.repeat(np.arange(len(rows)), lengths)
        first = np.repeat(offsets[rows] - np.concatenate([[0], np.cumsum(lengths)[:-1]]), lengths)
        item = answers[np.arange(len(row)) + first]
        labels[torch.from_numpy(row), torch.from_numpy(item)] = 1.0
        labels = (1 - SMOOTHING) * labels + SMOOTHING / entities
        optimiser.zero_grad()
        lower = options.precision == "bf16"
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=lower):
            scores = model(torch.from_numpy(entity[rows]), torch.from_numpy(asked[rows]))
        loss = F.binary_cross_entropy_with_logits(scores.float(), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        return float(loss.detach())

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
