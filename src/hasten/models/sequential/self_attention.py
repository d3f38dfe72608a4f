"""A block of a self-attention model: attention and feed-forward network with residuals.

Equations 2-6 of Kang & McAuley (2018), with the attention function that the model passes. With
pre-LN, as in the paper's formula x + dropout(g(LN(x))), queries, keys and values are computed from
the normalized input. With ``norm=query``, as in the authors' code, only queries are computed from
the normalized input y, keys and values from x, and the residuals add to normalized inputs:
``z = LN(y + attention)``, then ``z + feed-forward(z)``. Keys have no bias, because its gradient
would be zero; values have none, because the output projection's bias replaces it.

Shapes: D width, T tokens of all sequences together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.sequential.attention_options import AttentionOptions
from hasten.models.sequential.base import initialize_linear
from hasten.models.sequential.residual import Residuals, connect
from hasten.ops.dense.dropout import dropout
from hasten.ops.dense.layer_norm import LayerNorm

#: from queries, keys and values, [T, D] each, to attention outputs [T, D]
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


class Block(nn.Module):
    """Attention and point-wise feed-forward, each with dropout, residual and layer norm."""

    def __init__(self, options: AttentionOptions, residuals: Residuals, number: int) -> None:
        super().__init__()
        width, inner = options.width, options.width * options.feedforward
        self.drop, self.norm, eps = options.dropout, options.norm, options.norm_eps
        self.attention_norm = LayerNorm(width, eps)
        self.query_key_value = nn.Parameter(torch.empty(3 * width, width))
        self.query_bias = nn.Parameter(torch.zeros(width))
        self.output = nn.Linear(width, width)
        self.feedforward_norm = LayerNorm(width, eps)
        self.inner = nn.Linear(width, inner)
        self.outer = nn.Linear(inner, width)
        for weight in self.query_key_value.view(3, width, width):
            nn.init.xavier_normal_(weight)
        initialize_linear(self.output, self.inner, self.outer)
        self.around_attention = residuals.connection(2 * number)
        self.around_feedforward = residuals.connection(2 * number + 1)

    def forward(self, state: Any, attention: Attention) -> Any:
        """The residual state after the block, for bucketed tokens."""

        def attend(x_TD: Tensor) -> Tensor:
            return self.attend(x_TD, attention)

        if self.norm == "query":
            y_TD = self.attention_norm(state)
            z_TD = self.feedforward_norm(y_TD + self.attend(state, attention, y_TD))
            return z_TD + self.transform(z_TD)
        pre = self.norm == "pre"
        attended = connect(self.around_attention, state, attend, self.attention_norm, pre=pre)
        return connect(
            self.around_feedforward, attended, self.transform, self.feedforward_norm, pre=pre
        )

    def attend(
        self, x_TD: Tensor, attention: Attention, of_queries: Tensor | None = None
    ) -> Tensor:
        """The attention sublayer, without residual and norm. of_queries: None: x."""
        width = len(self.query_bias)
        if of_queries is None:
            bias = F.pad(self.query_bias, (0, 2 * width))
            query, key, value = F.linear(x_TD, self.query_key_value, bias).chunk(3, dim=1)
        else:
            query = F.linear(of_queries, self.query_key_value[:width], self.query_bias)
            key, value = F.linear(x_TD, self.query_key_value[width:]).chunk(2, dim=1)
        out: Tensor = self.output(attention(query, key, value))
        return out

    def transform(self, x_TD: Tensor) -> Tensor:
        """The point-wise feed-forward network, with dropout after each of its layers."""
        # in this order ReLU and the next layer keep the same tensor
        hidden = torch.relu(dropout(self.inner(x_TD), self.drop, self.training))
        return dropout(self.outer(hidden), self.drop, self.training)
