"""LightGCN on the pairs of Amazon-book: a step of 2,048 pairs, three layers of 64.

    python -m bench.lightgcn_side --how hasten --steps 10 --threads 2

The plain side is the usual formulation: three products of a sparse COO matrix with all nodes, their
mean by a stack, fused Adam; its batches are drawn outside the time, ours within.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.book_graph import BookGraph, book_graph
from bench.kgat_side import dataset_of
from bench.report import Stopwatch, print_report
from hasten.config import TrainingOptions
from hasten.models.collaborative.lightgcn import LightGCN, LightGCNOptions
from hasten.models.interface import Sizes
from hasten.training.precision import Precision
from hasten.training.step import DataShard, OptimizerStep

CPU = torch.device("cpu")
WIDTH, LAYERS, L2, LR = 64, 3, 1e-4, 1e-3


def hasten_step(data: BookGraph, batch: int) -> Callable[[int], float]:
    options, dataset = LightGCNOptions(), dataset_of(data)
    model = LightGCN(options, Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    (phase,) = model.phases(dataset, training)
    step = OptimizerStep(phase, 0, training, Precision("fp32", CPU), DataShard(), CPU)
    return lambda index: float(step(phase.plan(0, 0, index), LR)["loss"])


class PlainLightGCN:
    """Users [0, U) and items after them."""

    def __init__(self, data: BookGraph) -> None:
        count = data.users + data.items
        self.users = data.users
        self.table = torch.nn.init.xavier_normal_(torch.empty(count, WIDTH)).requires_grad_()
        user, item = torch.from_numpy(data.user), torch.from_numpy(data.item) + data.users
        row, column = torch.cat([user, item]), torch.cat([item, user])
        degree = torch.bincount(row, minlength=count).float()
        values = (degree[row] * degree[column]).rsqrt()
        self.matrix = torch.sparse_coo_tensor(
            torch.stack([row, column]), values, (count, count)
        ).coalesce()

    def loss(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        layers = [self.table]
        for _ in range(LAYERS):
            layers.append(torch.sparse.mm(self.matrix, layers[-1]))
        mean = torch.stack(layers, 1).mean(1)
        nodes = (user, positive + self.users, negative + self.users)
        u, i, j = (mean[of] for of in nodes)
        norms = torch.stack([self.table[of].square().sum() for of in nodes]).sum() / 2
        loss = F.softplus((u * j).sum(1) - (u * i).sum(1)).mean()
        return loss + L2 * norms / len(user)


def plain_step(data: BookGraph, batch: int) -> Callable[[int], float]:
    model = PlainLightGCN(data)
    optimiser = torch.optim.Adam([model.table], LR, fused=True)
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(data.user)))
    user, item = torch.from_numpy(data.user), torch.from_numpy(data.item)

    def step(index: int) -> float:
        optimiser.zero_grad()
        of = order[index * batch : (index + 1) * batch]
        loss = model.loss(user[of], item[of], torch.randint(data.items, of.shape))
        torch.autograd.backward(loss)
        optimiser.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain"))
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the users")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = book_graph(options.scale)
    step = (hasten_step if options.how == "hasten" else plain_step)(data, options.batch_size)
    clock, losses = Stopwatch(), []
    for index in range(options.steps + 1):
        if index == 1:  # the first one warms up
            clock.restart()
        losses.append(step(index))
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=-(-len(data.user) // options.batch_size),
        examples_per_epoch=len(data.user),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=losses[-1],
    )


if __name__ == "__main__":
    main()
