"""Plain TiSASRec: all positions at once, PyTorch's own operations.

Time interval aware self-attention (Li et al. 2020), written from the paper: the interval scores are
gathered from the products of queries and table, the weights summed by interval with
``scatter_add``; pre-LN blocks, binary cross-entropy with one uniform negative a position, squared
embeddings beside it. Personalized times are made beforehand; the intervals of a batch are counted.

    python -m bench.plain_tisasrec --data ml-1m --length 200 --dropout 0.2 --threads 2
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from bench.plain_blocks import (
    Block,
    TokenBatch,
    initialize,
    next_item_loss,
    train,
    training_options,
)
from bench.plain_dropout import Dropout
from bench.plain_interval_attention import gathered, intervals


class PlainTiSASRec(nn.Module):
    """One head. Called with a batch, it returns the loss."""

    def __init__(
        self,
        catalog: int,
        width: int,
        blocks: int,
        length: int,
        dropout: float,
        span: int,
        l2: float,
    ) -> None:
        super().__init__()
        self.items = nn.Embedding(catalog, width)
        self.positions = nn.ModuleList(nn.Embedding(length, width) for _ in range(2))
        self.intervals = nn.ModuleList(nn.Embedding(span + 1, width) for _ in range(2))
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, width, dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.span, self.l2 = span, l2
        initialize(self)

    def states(self, batch: TokenBatch) -> Tensor:
        """[S, D] states after each token."""
        x = self.dropout(self.items(batch.tokens) * math.sqrt(self.items.embedding_dim))
        length = batch.times.shape[1]
        row, column = batch.places // length, batch.places % length
        times = batch.times.view(-1)[batch.places]
        apart = intervals(times, batch.times[row], self.span)  # [S, L]
        key = torch.arange(length, device=column.device)
        future = torch.where(key > column[:, None], -math.inf, 0.0)
        of_keys, of_values = (self.dropout(position(batch.ages)) for position in self.positions)
        key_table, value_table = (self.dropout(table.weight) for table in self.intervals)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return gathered(
                query,
                batch.padded(key + of_keys),
                batch.padded(value + of_values),
                key_table,
                value_table,
                apart,
                future,
                self.dropout,
                batch.padded,
                batch.real,
            )

        for block in self.blocks:
            x = block(x, attention)
        out: Tensor = self.norm(x)
        return out

    def forward(self, batch: TokenBatch) -> Tensor:
        tables = [self.items, *self.positions, *self.intervals]
        squares = torch.stack([table.weight.square().sum() for table in tables]).sum()
        loss = next_item_loss(self.states(batch), self.items.weight, batch, "bce")
        return loss + self.l2 * squares


def main() -> None:
    parser = training_options(__doc__.splitlines()[0])
    parser.add_argument("--span", type=int, default=256)
    parser.add_argument("--l2", type=float, default=5e-5)
    options = parser.parse_args()
    names = ("width", "blocks", "length", "dropout", "span", "l2")
    chosen = {name: getattr(options, name) for name in names}
    train(options, lambda catalog: PlainTiSASRec(catalog, **chosen))


if __name__ == "__main__":
    main()
