"""The scores of recommenders as modules of tensors alone, for torch.export and ONNX.

Their inputs are integer tensors with -1 as padding at the end of each row: ``history`` [B, L] item
indices, oldest first; ``times`` [B, L] Unix seconds, for models that read them; ``user`` [B] user
indices; ``exclude`` [B, E] item indices that must not be returned. Their outputs: ``vectors``
[B, D], for models with vectors, ``items`` [B, k] indices and ``scores`` [B, k], best first.

Shapes: B queries, L length, D width, H heads, N items, S span of intervals.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.linear.ease import EASE
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.ops.buckets import Bucket


def best(scores: Tensor, exclude: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Items and scores [B, k], without the excluded items."""
    count = scores.shape[1]
    place = torch.where(exclude >= 0, exclude, count)  # padding goes to a further column
    hidden = F.pad(scores, (0, 1)).scatter(1, place, -math.inf)[:, :count]
    values, items = hidden.topk(k, dim=1)
    return items, values


class RecommenderGraph(nn.Module):
    """Returns the k best items."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ("vectors", "items", "scores")

    def __init__(self, k: int) -> None:
        super().__init__()
        self.k = k


class UserGraph(RecommenderGraph):
    """Known users by their vectors."""

    inputs = ("user", "exclude")

    def __init__(self, users: Tensor, items: Tensor, k: int) -> None:
        super().__init__(k)
        self.users, self.items = nn.Buffer(users), nn.Buffer(items)

    def forward(self, user: Tensor, exclude: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        vectors = self.users.index_select(0, user)
        return vectors, *best(vectors @ self.items.T, exclude, self.k)


class ItemWeightGraph(RecommenderGraph):
    """EASE: sums of weights over the distinct items of a history."""

    inputs = ("history", "exclude")
    outputs = ("items", "scores")

    def __init__(self, model: EASE, k: int) -> None:
        super().__init__(k)
        self.weights = nn.Buffer(model.weights)

    def forward(self, history: Tensor, exclude: Tensor) -> tuple[Tensor, Tensor]:
        count = self.weights.shape[0]
        place = torch.where(history >= 0, history, count)
        held = self.weights.new_zeros(history.shape[0], count + 1).scatter(1, place, 1.0)
        return best(held[:, :count] @ self.weights, exclude, self.k)


class SASRecGraph(RecommenderGraph):
    """SASRec on histories of at most ``max_length`` items."""

    inputs: tuple[str, ...] = ("history", "exclude")

    def __init__(self, model: SASRec | TiSASRec, k: int) -> None:
        super().__init__(k)
        self.model = model.eval()

    def forward(self, history: Tensor, exclude: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (batch, length), model = history.shape, self.model
        buckets = [Bucket(0, batch, length)]
        states = model.hidden(self.rows(history), self.positions(history), None, buckets)
        return self.ranked(states, history, exclude)

    def rows(self, history: Tensor) -> Tensor:
        """[B L, D] item embeddings; padding follows the items and is hidden by the causal mask."""
        return self.model.items.rows(history.clamp(min=0).reshape(-1))

    def positions(self, history: Tensor) -> Tensor:
        """[B L] distances to the last item."""
        place = torch.arange(history.shape[1], device=history.device)
        return (self.lengths(history)[:, None] - 1 - place).clamp(min=0).reshape(-1)

    def lengths(self, history: Tensor) -> Tensor:
        return (history >= 0).sum(1)

    def ranked(
        self, states: Tensor, history: Tensor, exclude: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The state of the last item is the vector; zeros for an empty history."""
        lengths = self.lengths(history)
        items = self.model.items.block(0, len(self.model.items))
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, states.shape[1])
        laid_out = states.view(history.shape[0], history.shape[1], states.shape[1])
        vectors = laid_out.gather(1, last)[:, 0] * (lengths > 0)[:, None]
        return vectors, *best(vectors @ items.T, exclude, self.k)


class TiSASRecGraph(SASRecGraph):
    """TiSASRec; the attention over intervals is written out for one rectangle of sequences."""

    inputs = ("history", "times", "exclude")

    def forward(  # type: ignore[override]
        self, history: Tensor, times: Tensor, exclude: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        model, (batch, length) = self.model, history.shape
        assert isinstance(model, TiSASRec)
        options = model.options
        heads, size = options.heads, options.width // options.heads
        x = self.rows(history) * math.sqrt(options.width)
        positions = self.positions(history)
        keys, values = model.key_positions.rows(positions), model.value_positions.rows(positions)
        unit = self.unit_times(history, times)
        apart = (unit[:, :, None] - unit[:, None, :]).abs().clamp(max=options.span)
        pairs = apart[:, None].expand(-1, heads, -1, -1)  # [B, H, L, L]
        of_keys, of_values = (
            table.weight.view(options.span + 1, heads, size).transpose(0, 1)  # [H, S + 1, D / H]
            for table in (model.key_intervals, model.value_intervals)
        )
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            q, k, v = (
                each.view(batch, length, heads, size).transpose(1, 2)
                for each in (query / math.sqrt(size), key + keys, value + values)
            )
            logits = q @ k.transpose(2, 3) + (q @ of_keys.transpose(1, 2)).gather(3, pairs)
            weights = torch.softmax(logits.masked_fill(future, -math.inf), dim=-1)
            bins = weights.new_zeros(batch, heads, length, options.span + 1)
            bins = bins.scatter_add(3, pairs, weights)
            return (weights @ v + bins @ of_values).transpose(1, 2).reshape(-1, options.width)

        return self.ranked(model.through_blocks(x, attention), history, exclude)

    @staticmethod
    def unit_times(history: Tensor, times: Tensor) -> Tensor:
        """[B, L] times from 1 in units of the smallest gap, as ``personal_times`` counts them."""
        real, never = history >= 0, torch.iinfo(torch.int64).max
        later = torch.arange(history.shape[1], device=history.device) > 0
        gaps = times - times.roll(1, 1)
        unit = torch.where((gaps > 0) & real & later, gaps, never).amin(1, keepdim=True)
        unit = torch.where(unit == never, 1, unit)
        since = (times - times[:, :1]).double() / unit.double()
        return torch.where(real, since.round().to(torch.int64) + 1, 1)
