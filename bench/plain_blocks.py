"""What plain SASRec and TiSASRec share: the block, the batch and the training loop.

All layers but attention work on the tokens of all sequences together, without padding. Attention
pads on the right, so that the causal mask hides the padding too, and only to the longest sequence
of the batch. Adam is PyTorch's fused one.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.data import Int64, Sequences, sequences
from bench.padded import NegativeSampler, Padded, padded
from bench.plain_dropout import Dropout
from bench.report import Stopwatch, print_report

#: from queries, keys and values, [S, D] each, to attention outputs [S, D]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Pre-LN attention and feed-forward network with residuals (Kang & McAuley 2018)."""

    def __init__(self, width: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.forward_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, inner),
            nn.ReLU(),
            Dropout(dropout),
            nn.Linear(inner, width),
            Dropout(dropout),
        )

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        """[S, D] tokens after the block."""
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, dim=-1)
        x = x + self.out(attention(*parts))
        out: Tensor = x + self.feed_forward(self.forward_norm(x))
        return out


@dataclass(frozen=True)
class TokenBatch:
    """The S tokens of B sequences, one sequence after the other.

    ages: [S] distance to the end of the sequence. places: [S] flat places in [B, L]. times: [B, L]
    personalized. targets, negatives: [S].
    """

    tokens: Tensor
    ages: Tensor
    places: Tensor
    times: Tensor
    targets: Tensor
    negatives: Tensor

    @classmethod
    def of(cls, data: Padded, rows: Int64, negatives: Int64) -> TokenBatch:
        """The batch of these users; their items count from 1 in the arrays, from 0 in the batch."""
        counts = data.counts[rows]
        longest = counts.max()
        ages = counts[:, None] - 1 - np.arange(longest)
        real = ages >= 0
        arrays = (
            data.inputs[rows, :longest][real] - 1,
            ages[real],
            np.flatnonzero(real),
            data.times[rows, :longest],
            data.targets[rows, :longest][real] - 1,
            negatives - 1,
        )
        return cls(*(torch.from_numpy(array) for array in arrays))

    def padded(self, x: Tensor) -> Tensor:
        """[B, L, C] from [S, C], zeros for padding."""
        rows, length = self.times.shape
        flat = x.new_zeros(rows * length, x.shape[1]).index_copy(0, self.places, x)
        return flat.view(rows, length, -1)

    def real(self, x: Tensor) -> Tensor:
        """[S, C] from [B, L, C]."""
        return x.flatten(0, 1).index_select(0, self.places)


def next_item_loss(states: Tensor, items: Tensor, batch: TokenBatch, loss: str) -> Tensor:
    """Mean cross-entropy over all items, or binary with a negative each, of [S, D] states."""
    if loss == "ce":
        return F.cross_entropy(states @ items.T, batch.targets)
    rows = F.embedding(torch.stack([batch.targets, batch.negatives], 1), items)
    positive, negative = torch.linalg.vecdot(states[:, None], rows).unbind(1)
    return F.softplus(-positive).mean() + F.softplus(negative).mean()


def initialize(model: nn.Module) -> None:
    """Xavier-normal matrices."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.xavier_normal_(parameter)


def training_options(about: str) -> argparse.ArgumentParser:
    """The options of every plain sequential model."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", default="beauty", choices=("beauty", "ml-1m"))
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.5)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, help="measure so many steps instead of epochs")
    parser.add_argument("--warmup", type=int, default=5, help="steps before the clock starts")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def train(
    options: argparse.Namespace,
    build: Callable[[int], nn.Module],
    judge: Callable[[nn.Module, Sequences], Any] | None = None,
    *,
    sampled: bool = True,
) -> None:
    """Train and print the report.

    build: the model for a number of items; its output for a batch is the loss. judge: what the
    report holds as ``metric``. sampled: draw negatives.
    """
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    generator = np.random.default_rng(options.seed)
    data = sequences(options.data)
    arrays, sampler = padded(data, options.length, drop=2), NegativeSampler(data)
    trained = arrays.trained()
    model = build(data.catalog).train()
    optimizer = torch.optim.Adam(model.parameters(), options.lr, betas=(0.9, 0.98), fused=True)
    steps_per_epoch = math.ceil(len(trained) / options.batch_size)
    wanted = options.steps or options.epochs * steps_per_epoch
    clock, loss, done = Stopwatch(), torch.tensor(math.nan), -options.warmup
    while done < wanted:
        order = generator.permutation(trained)
        for start in range(0, len(order), options.batch_size):
            if done == 0:
                clock.restart()
            if done == wanted:
                break
            rows = order[start : start + options.batch_size]
            optimizer.zero_grad()
            users = np.repeat(rows, arrays.counts[rows] if sampled else 0)
            negatives = sampler.draw(users, generator)
            loss = model(TokenBatch.of(arrays, rows, negatives))
            loss.backward()
            optimizer.step()
            done += 1
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=wanted,
        steps_per_epoch=steps_per_epoch,
        examples_per_epoch=int(arrays.counts.sum()),
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=loss.item(),
        metric=judge(model, data) if judge else None,
    )
