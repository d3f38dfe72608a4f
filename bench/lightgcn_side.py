"""LightGCN on the pairs of Amazon-book: steps of 2,048 pairs, three layers of 64.

    python -m bench.lightgcn_side --how hasten --steps 10 --threads 2
    LIGHTGCN=DIR python -m bench.lightgcn_side --how published --steps 5

``plain`` propagates by torch's CSR product in Horner's form, both ways, with the last layer for the
nodes of the batch alone. ``published`` is an epoch of LightGCN-PyTorch, from the user's clone, cut
short: its own sampling and steps of so many pairs. All sides draw their batches in their time.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bench.book_graph import BookGraph, book_graph
from bench.clones import clone, clone_version
from bench.data import ROOT, data_folder
from bench.kgat_side import dataset_of
from bench.plain_batches import PairBatches
from bench.plain_graph import SparseMatrix, sum_of_powers
from bench.report import Stopwatch, print_report
from hasten.config import TrainingOptions
from hasten.models.collaborative.lightgcn import LightGCN, LightGCNOptions
from hasten.models.interface import Sizes
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")
_GRAPH = "s_pre_adj_mat.npz"
WIDTH, LAYERS, L2, LR = 64, 3, 1e-4, 1e-3
#: takes so many steps, from this number, and returns the last loss
Steps = Callable[[int, int], float]


def hasten_steps(data: BookGraph, batch: int) -> Steps:
    options, dataset = LightGCNOptions(), dataset_of(data)
    model = LightGCN(options, Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    (phase,) = model.phases(dataset, training)
    step = OptimizerStep(phase, 0, training, Precision("fp32", CPU), DataParallelRank(), CPU)

    def take(first: int, count: int) -> float:
        for index in range(first, first + count):
            loss = step(phase.plan(0, 0, index), LR)["loss"]
        return float(loss)

    return take


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
        self.matrix = SparseMatrix(row, column, values, (count, count))

    def loss(self, user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        nodes = torch.cat([user, positive + self.users, negative + self.users])
        wanted, index = torch.unique(nodes, return_inverse=True)
        inner = sum_of_powers(self.matrix, self.table, LAYERS - 1)
        own = self.table[wanted]
        mean = (own + self.matrix.rows(wanted, inner)) / (LAYERS + 1)
        u, i, j = mean[index].chunk(3)
        loss = F.softplus((u * (j - i)).sum(1)).mean()
        return loss + L2 * own[index].square().sum() / 2 / len(user)


def plain_steps(data: BookGraph, batch: int) -> Steps:
    model = PlainLightGCN(data)
    optimizer = torch.optim.Adam([model.table], LR, fused=True)
    user, item = torch.from_numpy(data.user), torch.from_numpy(data.item)
    batches = PairBatches(user, item, data.items, batch, by_user=True)

    def take(first: int, count: int) -> float:
        for index in range(first, first + count):
            optimizer.zero_grad()
            loss = model.loss(*batches.draw(index))
            torch.autograd.backward(loss)
            optimizer.step()
        return loss.item()

    return take


def published_steps(folder: Path, batch: int) -> Steps:
    """An epoch of the clone's own code, with fewer pairs; nothing of it is changed."""
    data = ROOT / "build" / "bench-data" / "lightgcn-amazon-book"
    data.mkdir(parents=True, exist_ok=True)  # it writes its graph there
    for name in ("train.txt", "test.txt"):  # it cannot read a user without items
        lines = (data_folder() / "cf_amazon-book_noKG" / name).read_text().splitlines()
        kept = [line.strip() for line in lines if len(line.split()) > 1]
        (data / name).write_text("\n".join(kept) + "\n")
    if not (data / _GRAPH).exists():  # its own way takes more than 20 GB
        write_graph(data / _GRAPH)
    sys.path.insert(0, str(folder / "code"))
    sys.argv = ["main.py", "--tensorboard", "0", "--dataset", "amazon-book"]
    sys.argv += ["--bpr_batch", str(batch), "--recdim", str(WIDTH), "--layer", str(LAYERS)]
    sys.argv += ["--decay", str(L2), "--lr", str(LR)]
    code: Any = [importlib.import_module(name) for name in ("world", "dataloader", "model")]
    world, loader, models = code
    training, procedure = importlib.import_module("utils"), importlib.import_module("Procedure")
    dataset = loader.Loader(path=str(data))
    model = models.LightGCN(world.config, dataset)
    loss = training.BPRLoss(model, world.config)

    def take(first: int, count: int) -> float:
        dataset.traindataSize = count * batch
        found = procedure.BPR_train_original(dataset, model, loss, first)
        return float(found.partition("loss")[2].partition("-")[0])

    return take


def write_graph(path: Path) -> None:
    """The normalized graph, users first, in the file that the clone keeps it in."""
    sparse: Any = importlib.import_module("scipy.sparse")
    plain = PlainLightGCN(book_graph()).matrix.matrix
    arrays = (plain.values(), plain.col_indices(), plain.crow_indices())
    found = sparse.csr_matrix(tuple(array.numpy() for array in arrays), shape=tuple(plain.shape))
    sparse.save_npz(path.with_suffix(".part.npz"), found)
    path.with_suffix(".part.npz").replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain", "published"))
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=10, help="steps that are measured")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the users")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    data = book_graph(options.scale)
    versions = {"torch": str(torch.__version__)}
    with contextlib.redirect_stdout(sys.stderr):  # the clone prints what it does
        if options.how == "published":
            folder = clone("LIGHTGCN", "https://github.com/gusye1234/LightGCN-PyTorch")
            versions["LightGCN-PyTorch"] = clone_version(folder)
            steps = published_steps(folder, options.batch_size)
        else:
            make = hasten_steps if options.how == "hasten" else plain_steps
            steps = make(data, options.batch_size)
        steps(0, 1)  # warms up
        clock = Stopwatch()
        loss = steps(1, options.steps)
        wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=-(-len(data.user) // options.batch_size),
        examples_per_epoch=len(data.user),
        versions=versions,
        threads=options.threads,
        loss=loss,
    )


if __name__ == "__main__":
    main()
