"""ComplEx in plain PyTorch, as fast as it gets with PyTorch's own functions.

Complex embeddings (Trouillon et al. 2016) with N3 (Lacroix et al. 2018) and the prediction of
relations (Chen et al. 2021), written from the papers. A row is a distinct (entity, relation) with
all of its answers, reciprocal relations included, as on hasten's side, and the loss is a softmax
over all entities (``--negatives 0``) or over the answers and a sample that all rows of a batch
share. The rows of the table that a step reads are gathered once, and their gradient is added to the
table's; with a sample ``--rows`` keeps Adam's moments of these rows up to date instead of those of
the whole table, as ``torch.optim.SparseAdam`` does: other rows keep theirs.

    python -m bench.plain_complex --data fb15k-237 --negatives 2048 --steps 60 --threads 2
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import Int64, triples
from bench.plain_conve import rows_of
from bench.report import Stopwatch, print_report

BATCH, WIDTH = 256, 800
DROPOUT, N3, RELATIONS = 0.2, 0.03, 2.0


def product(head: Tensor, relation: Tensor) -> Tensor:
    """[B, D] complex products; a row holds real parts, then imaginary parts."""
    h_re, h_im = head.chunk(2, 1)
    r_re, r_im = relation.chunk(2, 1)
    return torch.cat([h_re * r_re - h_im * r_im, h_re * r_im + h_im * r_re], 1)


def conjugate(rows: Tensor) -> Tensor:
    real, imaginary = rows.chunk(2, 1)
    return torch.cat([real, -imaginary], 1)


def cubes(rows: Tensor) -> Tensor:
    """[B] sums of the cubed moduli."""
    real, imaginary = rows.chunk(2, 1)
    return (real.square() + imaginary.square()).pow(1.5).sum(1)


def row_loss(logits: Tensor, scores: Tensor, row: Tensor) -> Tensor:
    """The sum of cross-entropies of the answers of each row.

    logits: [B, S] of entities that are no answers. scores, row: [P], of the answers.
    """
    high = logits.detach().amax(1).scatter_reduce(0, row, scores.detach(), "amax")
    answers = torch.zeros_like(high).index_add(0, row, (scores - high[row]).exp())
    total = ((logits - high[:, None]).exp().sum(1) + answers).log() + high
    return (torch.bincount(row, minlength=len(total)) * total).sum() - scores.sum()


class Batches:
    """The rows of an epoch, their answers, and a sample for each batch."""

    def __init__(self, data: str, negatives: int) -> None:
        (head, relation, tail), self.entities, self.relations = triples(data)
        found = rows_of(head, relation, tail, self.entities, self.relations)
        self.entity, self.asked, self.offsets, self.answers = found
        self.shares = np.bincount(self.answers, minlength=self.entities) / len(self.answers)
        self.negatives, self.generator = negatives, np.random.default_rng(0)
        self.order = self.generator.permutation(len(self.entity))

    def sample(self, answers: Int64) -> tuple[Int64, np.ndarray]:
        """Distinct entities, half of them from the batch, and the logarithms of their weights."""
        if not self.negatives:
            return np.arange(self.entities), np.zeros(self.entities, np.float32)
        half = self.negatives // 2
        drawn = self.generator.integers(0, self.entities, half)
        own = self.generator.permutation(answers)[:half]
        items, times = np.unique(np.concatenate([drawn, own]), return_counts=True)
        expected = half / self.entities + len(own) * self.shares[items]
        return items, np.log(times / expected).astype(np.float32)

    def __getitem__(self, number: int) -> tuple[Tensor, ...]:
        """The rows that are read; entities, answers and sample as places among them; the rest."""
        ids = self.order[np.arange(number * BATCH, (number + 1) * BATCH) % len(self.order)]
        lengths = self.offsets[ids + 1] - self.offsets[ids]
        row = np.repeat(np.arange(BATCH), lengths)
        within = np.arange(len(row)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        answers = self.answers[np.repeat(self.offsets[ids], lengths) + within]
        items, weights = self.sample(answers)
        column = np.minimum(np.searchsorted(items, answers), len(items) - 1)
        known = items[column] == answers
        masked = row[known] * len(items) + column[known]
        read, place = np.unique(
            np.concatenate([self.entity[ids], answers, items]), return_inverse=True
        )
        places = np.split(place, [BATCH, BATCH + len(answers)])
        arrays = (read, *places, self.asked[ids], row, masked, weights)
        return tuple(map(torch.from_numpy, arrays))


class PlainComplEx:
    """Both tables, their optimizers, and a step."""

    def __init__(self, entities: int, relations: int, lr: float, by_rows: bool) -> None:
        self.table = nn.Parameter(nn.init.xavier_normal_(torch.empty(entities, WIDTH)))
        self.asked = nn.Parameter(nn.init.xavier_normal_(torch.empty(2 * relations, WIDTH)))
        self.bias = nn.Parameter(torch.zeros(entities))
        self.by_rows, self.lr = by_rows, lr
        dense = [self.asked, self.bias] if by_rows else [self.table, self.asked, self.bias]
        self.optimizer = torch.optim.Adam(dense, lr=lr, fused=True)
        if by_rows:
            self.first, self.second = torch.zeros(2, entities, WIDTH).unbind()
            self.steps = 0

    def loss(self, given: Tensor, candidates: Tensor, batch: tuple[Tensor, ...]) -> Tensor:
        """given: [B + P, D] of the entities and of the answers. candidates: [S, D]."""
        read, _, answer, item, asked, row, masked, weights = batch
        head, tail = torch.split(given, [BATCH, len(answer)])
        relation, bias = self.asked.index_select(0, asked), self.bias.index_select(0, read)
        query = F.dropout(product(head, relation), DROPOUT)
        logits = torch.addmm(bias.index_select(0, item) + weights, query, candidates.T)
        logits.view(-1).index_fill_(0, masked, -torch.inf)
        scores = (query.index_select(0, row) * tail).sum(1) + bias.index_select(0, answer)
        loss = row_loss(logits, scores, row)
        count = torch.bincount(row, minlength=BATCH)
        cubed = (count * (cubes(head) + cubes(relation))).sum() + cubes(tail).sum()
        vectors = F.dropout(product(conjugate(head).index_select(0, row), tail), DROPOUT)
        predicted = F.cross_entropy(vectors @ self.asked.T, asked[row], reduction="sum")
        return (loss + N3 * cubed + RELATIONS * predicted) / BATCH

    def step(self, batch: tuple[Tensor, ...]) -> float:
        read, entity, answer, item = batch[:4]
        self.optimizer.zero_grad()
        if self.by_rows:
            rows = self.table.detach().index_select(0, read).requires_grad_()
            given = rows.index_select(0, torch.cat([entity, answer, item]))
            given, candidates = torch.split(given, [BATCH + len(answer), len(item)])
        else:  # the gradient of the gathered rows is added to the table's
            ids = read.index_select(0, torch.cat([entity, answer]))
            given = self.table.detach().index_select(0, ids).requires_grad_()
            candidates = self.table
            if len(item) < len(self.table):
                candidates = self.table.index_select(0, read.index_select(0, item))
        loss = self.loss(given, candidates, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self.by_rows:
            assert rows.grad is not None
            self.update(rows.detach(), rows.grad, read)
        else:
            assert self.table.grad is not None
            assert given.grad is not None
            self.table.grad.index_add_(0, ids, given.grad)
        self.optimizer.step()
        return float(loss.detach())

    @torch.no_grad()
    def update(self, rows: Tensor, gradient: Tensor, read: Tensor) -> None:
        """A step of Adam for these rows of the table."""
        self.steps += 1
        state = [kept.index_select(0, read) for kept in (self.first, self.second)]
        count = torch.tensor(float(self.steps))
        torch._fused_adam_(
            [rows], [gradient], [state[0]], [state[1]], [], [count], lr=self.lr, beta1=0.9,
            beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
        for kept, new in zip((self.table, self.first, self.second), (rows, *state), strict=True):
            kept.index_copy_(0, read, new)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="fb15k-237")
    parser.add_argument("--negatives", type=int, default=0)
    parser.add_argument("--rows", action="store_true", help="update the rows of a step alone")
    parser.add_argument("--steps", type=int, default=60, help="of the epoch, measured")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    batches = Batches(options.data, options.negatives)
    model = PlainComplEx(batches.entities, batches.relations, 3e-3, options.rows)
    for number in range(options.warm_up):
        model.step(batches[number])
    watch = Stopwatch()
    for number in range(options.warm_up, options.warm_up + options.steps):
        loss = model.step(batches[number])
    wall, cpu = watch.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=-(-len(batches.order) // BATCH),
        examples_per_epoch=len(batches.order),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss,
    )


if __name__ == "__main__":
    main()
