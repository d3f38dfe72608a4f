"""The plain padded SASRec: the formulation everyone starts from, in straightforward PyTorch.

Self-attentive sequential recommendation (Kang & McAuley 2018), written from the paper: left-padded
[B, L] batches, a causal mask added to materialised [B, H, L, L] scores, ``nn.Dropout``, pre-LN
blocks, binary cross-entropy with one uniform negative a position, Adam (0.9, 0.98). What its speed
does not depend on is kept out of the timed part: the sampler is vectorised and its time reported
apart.

    python -m bench.plain_sasrec --data beauty --length 50 --dropout 0.5 --epochs 1 --threads 2
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import Int64, Sequences, sequences
from bench.report import Stopwatch, print_report


class SelfAttention(nn.Module):
    """Scaled dot-product attention with the scores written out (equation 2)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        B, L, D = x.shape
        q, k, v = (
            part.view(B, L, self.heads, -1).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        scores = q @ k.transpose(-1, -2) / math.sqrt(D // self.heads) + mask
        weights = self.dropout(scores.softmax(dim=-1))
        out: Tensor = self.out((weights @ v).transpose(1, 2).reshape(B, L, D))
        return out


class FeedForward(nn.Module):
    """Two pointwise layers with ReLU (equation 4)."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.dropout(F.relu(self.first(x))))
        return out


class Block(nn.Module):
    """``x + Dropout(g(LayerNorm(x)))`` for both sublayers (section 3.3)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout)
        self.forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        out: Tensor = x + self.dropout(self.feed_forward(self.forward_norm(x)))
        return out


class PlainSASRec(nn.Module):
    """Items are 1..N, 0 is padding; a batch is int64 [B, L], padded on the left."""

    def __init__(
        self, catalogue: int, width: int, blocks: int, heads: int, length: int, dropout: float
    ) -> None:
        super().__init__()
        self.items = nn.Embedding(catalogue + 1, width, padding_idx=0)
        self.positions = nn.Embedding(length, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        causal = torch.full((length, length), float("-inf")).triu(1)
        self.register_buffer("causal", causal)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_normal_(parameter)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, sequence: Tensor) -> Tensor:
        """[B, L, D] what is known after each position."""
        real = (sequence != 0).unsqueeze(-1)
        x = self.items(sequence) * math.sqrt(self.items.embedding_dim)
        x = self.dropout(x + self.positions.weight[: sequence.shape[1]]) * real
        for block in self.blocks:
            x = block(x, self.causal) * real
        out: Tensor = self.norm(x)
        return out

    def loss(self, sequence: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Binary cross-entropy over the positions that have a target (equation 7)."""
        state = self(sequence)
        positive_logit = (state * self.items(positive)).sum(-1)
        negative_logit = (state * self.items(negative)).sum(-1)
        real = positive != 0
        return F.binary_cross_entropy_with_logits(
            positive_logit[real], torch.ones_like(positive_logit[real])
        ) + F.binary_cross_entropy_with_logits(
            negative_logit[real], torch.zeros_like(negative_logit[real])
        )


def padded(data: Sequences, length: int, drop: int) -> tuple[Int64, Int64]:
    """Inputs and next items [U, length], padded on the left, without the last ``drop`` events."""
    inputs = np.zeros((len(data), length), np.int64)
    targets = np.zeros_like(inputs)
    for row in range(len(data)):
        stop = data.offsets[row + 1] - drop
        history = data.items[max(data.offsets[row], stop - length - 1) : stop]
        if len(history) > 1:
            inputs[row, length + 1 - len(history) :] = history[:-1]
            targets[row, length + 1 - len(history) :] = history[1:]
    return inputs, targets


def sample_negatives(data: Sequences, targets: Int64, generator: np.random.Generator) -> Int64:
    """One uniform item a target that its user has never met; 0 where there is no target."""
    stride = data.catalogue + 1
    user = np.repeat(np.arange(len(data)), data.lengths)
    met = np.unique(user * stride + data.items)
    row, column = np.nonzero(targets)
    negative = np.zeros_like(targets)
    while len(row):
        drawn = generator.integers(1, stride, len(row))
        negative[row, column] = drawn
        keys = row * stride + drawn
        found = np.searchsorted(met, keys)
        again = met[np.minimum(found, len(met) - 1)] == keys
        row, column = row[again], column[again]
    return negative


@torch.no_grad()
def evaluate(model: PlainSASRec, data: Sequences, length: int) -> dict[str, float]:
    """NDCG@10 and HR@10 of every user's last item among the whole catalogue."""
    model.eval()
    rows = np.flatnonzero(data.lengths >= 3)
    history = np.zeros((len(rows), length), np.int64)
    for at, row in enumerate(rows):
        stop = data.offsets[row + 1] - 1
        known = data.items[max(data.offsets[row], stop - length) : stop]
        history[at, length - len(known) :] = known
    target = torch.from_numpy(data.items[data.offsets[rows + 1] - 1])
    ranks: list[NDArray[np.int64]] = []
    for start in range(0, len(rows), 256):
        state = model(torch.from_numpy(history[start : start + 256]))[:, -1]
        scores = state @ model.items.weight[1:].T
        true = scores.gather(1, target[start : start + 256, None] - 1)
        ranks.append((scores > true).sum(1).numpy())
    rank = np.concatenate(ranks)
    hit = rank < 10
    gain = np.where(hit, 1 / np.log2(rank + 2.0), 0.0)
    return {"ndcg@10": float(gain.mean()), "hr@10": float(hit.mean())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="beauty", choices=("beauty", "ml-1m"))
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="measure so many steps instead of epochs")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    data = sequences(options.data)
    inputs, targets = padded(data, options.length, drop=2)
    trained = np.flatnonzero(targets.any(axis=1))
    model = PlainSASRec(
        data.catalogue,
        options.width,
        options.blocks,
        options.heads,
        options.length,
        options.dropout,
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, betas=(0.9, 0.98))
    steps_per_epoch = math.ceil(len(trained) / options.batch_size)
    wanted = options.steps or options.epochs * steps_per_epoch
    loss = torch.tensor(float("nan"))
    done, sampling, clock = -options.warmup, 0.0, Stopwatch()
    paused = 0.0, 0.0
    while done < wanted:
        before = clock.seconds()
        started = time.perf_counter()
        negatives = sample_negatives(data, targets, generator)
        order = generator.permutation(trained)
        sampling = time.perf_counter() - started
        after = clock.seconds()
        paused = paused[0] + after[0] - before[0], paused[1] + after[1] - before[1]
        model.train()
        for start in range(0, len(order), options.batch_size):
            if done == 0:
                clock.restart()
                paused = 0.0, 0.0
            if done == wanted:
                break
            rows = order[start : start + options.batch_size]
            optimizer.zero_grad()
            loss = model.loss(
                torch.from_numpy(inputs[rows]),
                torch.from_numpy(targets[rows]),
                torch.from_numpy(negatives[rows]),
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            done += 1
    wall, cpu = clock.seconds()
    metric = evaluate(model, data, options.length) if options.evaluate else None
    print_report(
        wall=wall - paused[0],
        cpu=cpu - paused[1],
        steps=wanted,
        steps_per_epoch=steps_per_epoch,
        examples_per_epoch=int((targets != 0).sum()),
        versions={"torch": torch.__version__},
        threads=options.threads,
        sampling_seconds=sampling,
        loss=loss.item(),
        metric=metric,
    )


if __name__ == "__main__":
    main()
