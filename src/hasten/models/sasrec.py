"""SASRec: self-attentive sequential recommendation (Kang & McAuley 2018).

Tokens ``x = √D · item + position``, dropout, then blocks of causal self-attention and a point-wise
feed-forward network with residuals, a final layer norm, and the score ``x · item``. Equations 2-6
of the paper, with these differences: queries, keys and values all come from the normalised input
under pre-LN (the paper normalises queries alone); keys have no bias (its gradient is zero);
positions are counted from the end of the sequence, so that a short and a long history share them;
padding is never computed. Losses: full-catalogue cross-entropy, BCE (the paper's) and gBCE.

Shapes: B sequences, L length, D width, H heads, T tokens of all sequences together, N items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hasten.config import ModelOptions, RunConfig
from hasten.data.tables import TRAIN, Dataset
from hasten.models.seam import Catalogue, FactorScorer, RecommenderQueries, Scorer, Sizes
from hasten.ops.buckets import SLACK_CPU, SLACK_DEVICE, Bucket, bucket_positions, make_buckets
from hasten.ops.catalogue_loss import catalogue_cross_entropy
from hasten.ops.causal_attention import causal_attention
from hasten.ops.dropout import dropout
from hasten.ops.sampled_loss import gbce_beta, sampled_loss, sampled_loss_from_table
from hasten.ops.table import EmbeddingTable, Table
from hasten.training.next_item import NextItemBatch, NextItemPhase
from hasten.training.phase import Phase

#: sampled rows up to which inputs, targets and negatives are gathered together
FEW_ROWS = 1 << 17


class SASRecOptions(ModelOptions):
    """Options of SASRec; the paper's values in brackets."""

    name: Literal["sasrec"] = "sasrec"
    width: int = Field(64, ge=1, description="D, the width of everything [50]")
    blocks: int = Field(2, ge=1, description="attention and feed-forward blocks [2]")
    heads: int = Field(1, ge=1, description="attention heads; must divide the width [1]")
    max_length: int = Field(50, ge=1, description="most recent items that are seen [50, ml-1m 200]")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.5, description="[0.5, ml-1m 0.2]")
    feedforward: int = Field(1, ge=1, description="inner width of the FFN in multiples of D [1]")
    norm: Literal["pre", "post"] = Field("pre", description="layer norm before or after [pre]")
    loss: Literal["ce", "bce", "gbce"] = Field("ce", description="[bce]")
    negatives: int = Field(1, ge=1, description="sampled negatives per position, bce and gbce [1]")
    calibration: float = Field(0.75, ge=0, le=1, description="gBCE's t")

    @model_validator(mode="after")
    def _heads_divide(self) -> SASRecOptions:
        if self.width % self.heads:
            raise ValueError(f"heads ({self.heads}) must divide width ({self.width})")
        return self


class Block(nn.Module):
    """Causal self-attention and feed-forward, each with dropout, residual and layer norm."""

    def __init__(self, options: SASRecOptions) -> None:
        super().__init__()
        width, inner = options.width, options.width * options.feedforward
        self.heads, self.drop, self.pre = options.heads, options.dropout, options.norm == "pre"
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Parameter(torch.empty(3 * width, width))
        self.query_bias = nn.Parameter(torch.zeros(width))
        self.output = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        for weight in self.query_key_value.view(3, width, width):
            nn.init.xavier_normal_(weight)
        for linear in (self.output, self.inner, self.outer):
            nn.init.xavier_normal_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x_TD: Tensor, buckets: Sequence[Bucket]) -> Tensor:
        if self.pre:
            x_TD = x_TD + self.attend(self.attention_norm(x_TD), buckets)
            return x_TD + self.transform(self.feedforward_norm(x_TD))
        x_TD = self.attention_norm(x_TD + self.attend(x_TD, buckets))
        normalised: Tensor = self.feedforward_norm(x_TD + self.transform(x_TD))
        return normalised

    def attend(self, x_TD: Tensor, buckets: Sequence[Bucket]) -> Tensor:
        """Attention within each sequence; every bucket is a rectangle of the flat tokens."""
        width = x_TD.shape[1]
        bias = nn.functional.pad(self.query_bias, (0, 2 * width))
        packed = nn.functional.linear(x_TD, self.query_key_value, bias)
        attended = causal_attention(packed, buckets, self.heads, self.drop, self.training)
        out: Tensor = self.output(attended)
        return out

    def transform(self, x_TD: Tensor) -> Tensor:
        """The point-wise feed-forward network."""
        hidden = dropout(torch.relu(self.inner(x_TD)), self.drop, self.training)
        return dropout(self.outer(hidden), self.drop, self.training)


class SASRec(nn.Module):
    """The model: an item table, a position table and blocks."""

    name: ClassVar[str] = "sasrec"
    summary: ClassVar[str] = "self-attention over a user's sequence (Kang & McAuley 2018)"
    Options: ClassVar[type[SASRecOptions]] = SASRecOptions
    defaults: ClassVar[Mapping[str, Any]] = {"betas": (0.9, 0.98), "clip_norm": 5.0}
    sample: ClassVar[str] = "sequences"
    scores_new_users: ClassVar[bool] = True

    def __init__(self, options: SASRecOptions, sizes: Sizes) -> None:
        super().__init__()
        self.options = options
        self.items: Table = EmbeddingTable(sizes.items, options.width)
        self.positions = EmbeddingTable(options.max_length, options.width)
        self.blocks = nn.ModuleList(Block(options) for _ in range(options.blocks))
        self.final_norm = nn.LayerNorm(options.width)
        self.recompute = False
        self.hidden: Callable[[Tensor, Tensor, Sequence[Bucket]], Tensor] = self._hidden

    def _hidden(self, rows_TD: Tensor, places_T: Tensor, buckets: Sequence[Bucket]) -> Tensor:
        """[T, D] states of flat tokens, from their item rows and distances to the end."""
        options = self.options
        x_TD = rows_TD * math.sqrt(options.width) + self.positions.rows(places_T)
        x_TD = dropout(x_TD, options.dropout, self.training)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x_TD = checkpoint(block, x_TD, buckets, use_reentrant=False)
            else:
                x_TD = block(x_TD, buckets)
        out: Tensor = self.final_norm(x_TD)
        return out

    def phases(self, dataset: Dataset, config: RunConfig) -> Sequence[Phase]:
        """One phase: predict the next item at every position of the training sequences."""
        self.recompute = config.training.recompute
        return [
            NextItemPhase(
                self,
                dataset.histories(TRAIN),
                items=len(dataset.items),
                batch_size=config.training.batch_size,
                max_length=self.options.max_length,
                negatives=0 if self.options.loss == "ce" else self.options.negatives,
            )
        ]

    def next_item_loss(self, batch: NextItemBatch) -> Tensor:
        """Summed loss of the batch's targets."""
        if batch.negatives is None:
            x_TD = self.hidden(self.items.rows(batch.tokens), batch.places, batch.buckets)
            table = self.items.block(0, len(self.items))
            return catalogue_cross_entropy(batch.at_targets(x_TD), [table], batch.targets)
        beta = 1.0
        if self.options.loss == "gbce":
            beta = gbce_beta(self.options.negatives, len(self.items), self.options.calibration)
        ids = torch.cat([batch.targets[:, None], batch.negatives], dim=1)
        if ids.numel() > FEW_ROWS:
            x_TD = self.hidden(self.items.rows(batch.tokens), batch.places, batch.buckets)
            return sampled_loss_from_table(batch.at_targets(x_TD), self.items, ids, beta)
        # one gather for inputs, targets and negatives: one scatter in the backward pass
        every = self.items.rows(torch.cat([batch.tokens, ids.view(-1)]))
        rows_TD, sampled = torch.split(every, [len(batch.tokens), ids.numel()])
        x_TD = self.hidden(rows_TD, batch.places, batch.buckets)
        return sampled_loss(batch.at_targets(x_TD), sampled.view(*ids.shape, -1), beta)

    def compile_with(self, wrap: Callable[[Any], Any]) -> None:
        """Compile what a step calls: the encoder of the flat tokens."""
        self.hidden = wrap(self._hidden)

    def scorer(self, queries: RecommenderQueries) -> Scorer:
        """Scores from the state at the last item of each history (zeros for an empty one)."""
        vectors = self.query_vectors(queries)
        return FactorScorer(vectors, Catalogue(self.items))

    def query_vectors(self, queries: RecommenderQueries) -> Tensor:
        """[Q, D] float32, in the order of the queries."""
        history, limit = queries.history, self.options.max_length
        lengths = np.minimum(history.lengths, limit)
        order = np.argsort(-lengths, kind="stable")
        order = order[lengths[order] > 0]
        device = next(self.parameters()).device
        vectors = torch.zeros(len(queries), self.options.width, device=device)
        if len(order) == 0:
            return vectors
        lengths = lengths[order]
        buckets = make_buckets(lengths, SLACK_CPU if device.type == "cpu" else SLACK_DEVICE)
        real = bucket_positions(lengths, buckets)
        ends = np.cumsum(lengths)
        places = np.repeat(ends, lengths) - 1 - np.arange(ends[-1])
        tokens = np.zeros(buckets[-1].stop, np.int64)
        tokens[real] = history.items[np.repeat(history.offsets[order + 1], lengths) - 1 - places]
        flat_places = np.zeros(len(tokens), np.int64)
        flat_places[real] = places
        rows = self.items.rows(torch.from_numpy(tokens).to(device))
        x_TD = self._hidden(rows, torch.from_numpy(flat_places).to(device), buckets)
        last = torch.from_numpy(real[ends - 1]).to(device)
        vectors[torch.from_numpy(order).to(device)] = x_TD[last].float()
        return vectors
