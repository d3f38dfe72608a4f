"""The LiGR block: self-attention and SwiGLU with gated residuals.

    x = x + σ(G x + g) ⊙ dropout(attention(LN(x)))
    x = x + σ(G' x + g') ⊙ dropout(W₃ dropout(SiLU(W₁ y + b₁) ⊙ (W₂ y + b₂)) + b₃),   y = LN(x)

The layer of "From Features to Transformers" (arXiv 2502.03417) as eSASRec uses it (Tikhonovich et
al. 2025), with biases in the feed-forward network. With hyper-connections, x within a sublayer is
what the sublayer reads from the streams.

Shapes: D width, T tokens of all sequences together.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hasten.models.sequential.attention_options import AttentionOptions
from hasten.models.sequential.base import initialize_linear
from hasten.models.sequential.residual import Residuals
from hasten.models.sequential.self_attention import Attention, Block
from hasten.ops.dense.dropout import dropout


class LiGRBlock(Block):
    """A pre-LN block whose sublayers are multiplied by sigmoids of linear maps of their inputs."""

    def __init__(self, options: AttentionOptions, residuals: Residuals, number: int) -> None:
        super().__init__(options, residuals, number)
        width, inner = options.width, options.width * options.feedforward
        self.inner = nn.Linear(width, 2 * inner)  # W₁ and W₂
        self.attention_gate = nn.Linear(width, width)
        self.feedforward_gate = nn.Linear(width, width)
        initialize_linear(self.inner, self.attention_gate, self.feedforward_gate)
        for weight in self.inner.weight.view(2, inner, width):
            nn.init.xavier_normal_(weight)

    def forward(self, state: Any, attention: Attention) -> Any:
        def attend(x_TD: Tensor) -> Tensor:
            out = self.attend(self.attention_norm(x_TD), attention)
            gate = torch.sigmoid(self.attention_gate(x_TD))
            return gate * dropout(out, self.drop, self.training)

        def transform(x_TD: Tensor) -> Tensor:
            out = self.transform(self.feedforward_norm(x_TD))
            return torch.sigmoid(self.feedforward_gate(x_TD)) * out

        return self.around_feedforward(self.around_attention(state, attend), transform)

    def transform(self, x_TD: Tensor) -> Tensor:
        """SwiGLU (Shazeer 2020), with dropout after each of its layers."""
        swish, linear = self.inner(x_TD).chunk(2, dim=1)
        hidden = dropout(F.silu(swish) * linear, self.drop, self.training)
        return dropout(self.outer(hidden), self.drop, self.training)
