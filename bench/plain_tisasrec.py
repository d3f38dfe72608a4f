"""The plain TiSASRec: time embeddings of all pairs of events as [B, L, L, D] tensors.

Time interval aware self-attention (Li et al. 2020), written from the paper: left-padded [B, L]
batches, an embedding looked up for the interval of every pair for keys and for values, dropout on
each, a causal mask added to materialised [B, H, L, L] scores, pre-LN blocks, binary cross-entropy
with one uniform negative a position, squared embeddings beside it, Adam (0.9, 0.98). Negatives and
personalised times are made beforehand and not counted; the intervals of a batch are.

    python -m bench.plain_tisasrec --data ml-1m --length 200 --dropout 0.2 --steps 2 --threads 2
"""

from __future__ import annotations

import argparse
import math

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import Int64, Sequences, sequences
from bench.plain_sasrec import FeedForward, padded, sample_negatives
from bench.report import Stopwatch, print_report


class TimeAttention(nn.Module):
    """Equations 5 to 8, with the keys and values of every pair written out."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
        """pairs: [B, L, L, D] what the position and the time add to the keys and the values."""
        B, L, D = x.shape
        q, k, v = (
            part.view(B, L, self.heads, -1).transpose(1, 2)
            for part in self.query_key_value(x).chunk(3, dim=-1)
        )
        more_k, more_v = (
            part.view(B, L, L, self.heads, -1).permute(0, 3, 1, 2, 4) for part in pairs
        )
        scores = q @ k.transpose(-1, -2) + (more_k @ q.unsqueeze(-1)).squeeze(-1)
        weights = self.dropout((scores / math.sqrt(D // self.heads) + mask).softmax(dim=-1))
        attended = weights @ v + (weights.unsqueeze(-2) @ more_v).squeeze(-2)
        out: Tensor = self.out(attended.transpose(1, 2).reshape(B, L, D))
        return out


class Block(nn.Module):
    """``x + g(LayerNorm(x))`` for both sublayers."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = TimeAttention(width, heads, dropout)
        self.forward_norm = nn.LayerNorm(width)
        self.feed_forward = FeedForward(width, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor, pairs: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask, pairs)
        out: Tensor = x + self.dropout(self.feed_forward(self.forward_norm(x)))
        return out


class PlainTiSASRec(nn.Module):
    """Items are 1..N, 0 is padding; a batch is int64 [B, L], padded on the left."""

    def __init__(
        self,
        catalogue: int,
        width: int,
        blocks: int,
        heads: int,
        length: int,
        dropout: float,
        span: int,
    ) -> None:
        super().__init__()
        self.span = span
        self.items = nn.Embedding(catalogue + 1, width, padding_idx=0)
        self.positions = nn.ModuleList(nn.Embedding(length, width) for _ in range(2))
        self.intervals = nn.ModuleList(nn.Embedding(span + 1, width) for _ in range(2))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        causal = torch.full((length, length), float("-inf")).triu(1)
        self.causal: Tensor
        self.register_buffer("causal", causal)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_normal_(parameter)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, sequence: Tensor, times: Tensor) -> Tensor:
        """[B, L, D] what is known after each position; times: personalised, [B, L]."""
        real = (sequence != 0).unsqueeze(-1)
        x = self.dropout(self.items(sequence) * math.sqrt(self.items.embedding_dim)) * real
        apart = (times[:, :, None] - times[:, None, :]).abs().clamp(max=self.span)
        place = torch.arange(sequence.shape[1]).expand_as(sequence)
        keys, values = (
            self.dropout(interval(apart)) + self.dropout(position(place))[:, None]
            for interval, position in zip(self.intervals, self.positions, strict=True)
        )
        # finite, so that a query that is padding itself stays finite too
        mask = self.causal + ~real.view(real.shape[0], 1, 1, -1) * -1e9
        for block in self.blocks:
            x = block(x, mask, (keys, values)) * real
        out: Tensor = self.norm(x)
        return out

    def loss(
        self, sequence: Tensor, times: Tensor, positive: Tensor, negative: Tensor, l2: float
    ) -> Tensor:
        """Binary cross-entropy over the positions that have a target, and the embeddings' norm."""
        state = self(sequence, times)
        positive_logit = (state * self.items(positive)).sum(-1)
        negative_logit = (state * self.items(negative)).sum(-1)
        real = positive != 0
        tables = [self.items, *self.positions, *self.intervals]
        squares = torch.stack([table.weight.square().sum() for table in tables]).sum()
        return (
            F.binary_cross_entropy_with_logits(
                positive_logit[real], torch.ones_like(positive_logit[real])
            )
            + F.binary_cross_entropy_with_logits(
                negative_logit[real], torch.zeros_like(negative_logit[real])
            )
            + l2 * squares
        )


def padded_times(data: Sequences, length: int, drop: int) -> Int64:
    """[U, length] times of the inputs in each user's smallest gap, padded on the left by 0."""
    found = np.zeros((len(data), length), np.int64)
    for row in range(len(data)):
        stop = data.offsets[row + 1] - drop - 1
        times = data.times[max(data.offsets[row], stop - length) : max(stop, data.offsets[row])]
        gaps = np.diff(times)
        unit = gaps[gaps > 0].min(initial=np.iinfo(np.int64).max) if gaps.any() else 1
        if len(times):
            found[row, length - len(times) :] = np.rint((times - times.min()) / unit) + 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-1m", choices=("beauty", "ml-1m"))
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--span", type=int, default=256)
    parser.add_argument("--l2", type=float, default=5e-5)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=2, help="steps that are measured")
    parser.add_argument("--warmup", type=int, default=1, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    data = sequences(options.data)
    inputs, targets = padded(data, options.length, drop=2)
    times = padded_times(data, options.length, drop=2)
    negatives = sample_negatives(data, targets, generator)
    order = generator.permutation(np.flatnonzero(targets.any(axis=1)))
    model = PlainTiSASRec(
        data.catalogue,
        options.width,
        options.blocks,
        options.heads,
        options.length,
        options.dropout,
        options.span,
    ).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr, betas=(0.9, 0.98))
    loss = torch.tensor(float("nan"))
    clock = Stopwatch()
    for step in range(options.warmup + options.steps):
        if step == options.warmup:
            clock.restart()
        rows = np.take(
            order, range(step * options.batch_size, (step + 1) * options.batch_size), mode="wrap"
        )
        optimizer.zero_grad()
        loss = model.loss(
            torch.from_numpy(inputs[rows]),
            torch.from_numpy(times[rows]),
            torch.from_numpy(targets[rows]),
            torch.from_numpy(negatives[rows]),
            options.l2,
        )
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=math.ceil(len(order) / options.batch_size),
        examples_per_epoch=int((targets != 0).sum()),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss.item(),
    )


if __name__ == "__main__":
    main()
