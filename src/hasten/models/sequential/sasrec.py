"""SASRec: self-attentive sequential recommendation (Kang & McAuley 2018).

The embedded tokens ``x = √D · item + position`` go through dropout, then through blocks (causal
self-attention and a point-wise feed-forward network, each with a residual), then through a final
layer norm; the score of an item is ``x · item`` (equations 2-6 of the paper). Differences from the
paper: positions are counted from the end of the sequence, so the most recent item always has
position 0; padding is not attended to unless ``padding=keys``. :mod:`.self_attention` lists the
differences within a block. Losses: cross-entropy over all items or over sampled items, BCE (the
paper's) and gBCE.

Models with self-attention derive from :class:`.AttentionModel` and define ``hidden``; other
sequential models derive from :class:`.base.SequentialModel` and define ``encode``: see GRU4Rec in
docs/extending.md.

Shapes: B sequences, L length, D width, H heads, T tokens of all sequences together, N items.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator
from torch import Tensor

from hasten.models.interface import Sizes
from hasten.models.sequential.attention_model import AttentionModel
from hasten.models.sequential.attention_options import AttentionOptions
from hasten.ops.attention.causal_attention import causal_attention
from hasten.ops.attention.padding_keys import attention_with_padding_keys
from hasten.ops.buckets import Bucket
from hasten.ops.dense.dropout import dropout
from hasten.ops.table import EmbeddingTable


class SASRecOptions(AttentionOptions):
    """Options of SASRec: :class:`AttentionOptions` and the padding of short histories."""

    name: Literal["sasrec"] = "sasrec"
    padding: Literal["masked", "keys"] = Field(
        "masked",
        description="masked: padding is not attended to; keys: short histories are padded to "
        "max_length with zero vectors that are attended to, as in implementations without a "
        "key mask",
    )

    # padding=keys needs padding whose keys and values are zero. With norm=query or post, keys and
    # values are linear maps of the input, without a bias, so zeros give zeros. With norm=pre the
    # input is normalized first, and LN(0) is the bias of the layer norm
    @model_validator(mode="after")
    def _check_padding(self) -> SASRecOptions:
        if self.padding == "keys" and self.norm == "pre":
            raise ValueError(
                "padding=keys needs norm=query or post: with norm=pre, padding is normalized and "
                "its keys are not zero"
            )
        return self


class SASRec(AttentionModel):
    """SASRec: item and position embeddings, and blocks of self-attention.

    The item embeddings, batches, losses and scores are those of :class:`.base.SequentialModel`.
    """

    name = "sasrec"
    summary = "self-attention over a user's sequence (Kang & McAuley 2018)"
    Options = SASRecOptions

    options: SASRecOptions

    def __init__(self, options: SASRecOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.positions = EmbeddingTable(options.max_length, options.width)
        # after the embeddings: the initial weights depend on the order in which modules are created
        self.build_blocks()

    def hidden(
        self,
        items_TD: Tensor,
        positions_T: Tensor,
        times_T: Tensor | None,
        buckets: Sequence[Bucket],
        features_TD: Tensor | None = None,
    ) -> Tensor:
        """[T, D] hidden states; :meth:`.AttentionModel.encode` calls this.

        items_TD: item embeddings of the tokens. positions_T: their positions, 0 for the most recent
        item. times_T: not used. buckets: groups of sequences with one length each.
        features_TD: the summed embeddings of the tokens' event features.
        """
        options = self.options
        x_TD = items_TD * math.sqrt(options.width) + self.positions.rows(positions_T)
        if features_TD is not None:
            x_TD = x_TD + features_TD
        x_TD = dropout(x_TD, options.dropout, self.training)

        def attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            if options.padding == "keys":
                rate = options.dropout if self.training else 0.0
                return attention_with_padding_keys(
                    query, key, value, positions_T, buckets, options.heads, options.max_length, rate
                )
            return causal_attention(
                query, key, value, buckets, options.heads, options.dropout, self.training
            )

        return self.apply_blocks(x_TD, attention)
