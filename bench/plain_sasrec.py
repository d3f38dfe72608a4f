"""Plain SASRec: all positions at once, PyTorch's own operations.

Self-attentive sequential recommendation (Kang & McAuley 2018), written from the paper: pre-LN
blocks, and cross-entropy over all items, or binary cross-entropy with one uniform negative a
position. Attention is that of padded sequences, written out: with dropout,
``scaled_dot_product_attention`` does the same on a CPU, with slower dropout.

    python -m bench.plain_sasrec --data beauty --length 50 --dropout 0.5 --threads 2
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bench.data import Sequences
from bench.padded import padded
from bench.plain_blocks import (
    Block,
    TokenBatch,
    initialize,
    next_item_loss,
    train,
    training_options,
)
from bench.plain_dropout import Dropout
from bench.plain_interval_attention import future_mask


class PlainSASRec(nn.Module):
    """Called with a batch, it returns the loss: ce or bce."""

    def __init__(
        self,
        catalog: int,
        width: int,
        blocks: int,
        heads: int,
        length: int,
        dropout: float,
        loss: str = "bce",
        feedforward: int = 1,
    ) -> None:
        super().__init__()
        self.items = nn.Embedding(catalog, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(width, feedforward * width, dropout) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)
        self.heads, self.loss = heads, loss
        initialize(self)

    def states(self, batch: TokenBatch) -> Tensor:
        """[S, D] states after each token."""
        x = self.items(batch.tokens) * math.sqrt(self.items.embedding_dim)
        x = self.dropout(x + self.positions(batch.ages))
        future = future_mask(batch.times.shape[1], x.device).to(x.dtype)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            scale = 1 / math.sqrt(query.shape[1] // self.heads)
            parts = (batch.padded(x) for x in (query, key, value))
            q, k, v = (torch.cat(x.chunk(self.heads, dim=2)) for x in parts)
            weights = torch.baddbmm(future, q, k.mT, alpha=scale).softmax(dim=-1)
            out = self.dropout(weights) @ v
            return batch.real(torch.cat(out.chunk(self.heads), dim=2))

        for block in self.blocks:
            x = block(x, attention)
        out: Tensor = self.norm(x)
        return out

    def forward(self, batch: TokenBatch) -> Tensor:
        return next_item_loss(self.states(batch), self.items.weight, batch, self.loss)


@torch.no_grad()
def evaluate(model: nn.Module, data: Sequences, length: int) -> dict[str, float]:
    """NDCG@10 and HR@10 of every user's last item among the whole catalog."""
    assert isinstance(model, PlainSASRec)
    model.eval()
    arrays = padded(data, length, drop=0)
    rows = np.flatnonzero(data.lengths >= 3)
    ranks: list[NDArray[np.int64]] = []
    for part in np.array_split(rows, math.ceil(len(rows) / 256)):
        last = np.cumsum(arrays.counts[part]) - 1
        states = model.states(TokenBatch.of(arrays, part, np.empty(0, np.int64)))
        scores = states[torch.from_numpy(last)] @ model.items.weight.T
        target = torch.from_numpy(data.items[data.offsets[part + 1] - 1] - 1)
        ranks.append((scores > scores.gather(1, target[:, None])).sum(1).numpy())
    rank = np.concatenate(ranks)
    hit = rank < 10
    gain = np.where(hit, 1 / np.log2(rank + 2.0), 0.0)
    return {"ndcg@10": float(gain.mean()), "hr@10": float(hit.mean())}


def main() -> None:
    parser = training_options(__doc__.splitlines()[0])
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--feedforward", type=int, default=1, help="inner width, in widths")
    parser.add_argument("--loss", default="bce", choices=("bce", "ce"))
    parser.add_argument("--evaluate", action="store_true")
    options = parser.parse_args()
    names = ("width", "blocks", "heads", "length", "dropout", "loss", "feedforward")
    chosen = {name: getattr(options, name) for name in names}
    train(
        options,
        lambda catalog: PlainSASRec(catalog, **chosen),
        (lambda model, data: evaluate(model, data, options.length)) if options.evaluate else None,
        sampled=options.loss == "bce",
    )


if __name__ == "__main__":
    main()
