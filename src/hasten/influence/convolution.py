"""The backward pass through ConvE's encoder, term by term, in evaluation mode.

With the batch norms folded in, the patches p [K + 1, P] of an image (the last row is ones) and the
folded filters w̃ [C, K + 1] give

    f = relu(w̃ p),   h = W f,   ĥ = (h - m) k,   x = relu(gain ĥ + shift)

and from the gradient of x: u = its product with 1[x > 0], which is that of the shift, u ∘ ĥ
that of the gain, δ = u ∘ gain ∘ k that of h. W has the rank-1 gradient δ fᵀ. With
y = (Wᵀ δ) ∘ 1[f > 0] the folded filters have y pᵀ, from which filters, gains and shifts of the
channels follow, and the patches have w̃ᵀ y.

Shapes: m queries, n terms, C channels, P positions, K taps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.influence.encoders import EncoderGradients
from hasten.influence.factors import Arithmetic, Linear, per_term
from hasten.models.knowledge_graph.conve import EPS, ConvE
from hasten.models.knowledge_graph.patch_convolution import images_of, patches_of
from hasten.ops.dense.group_moments import normalize


@dataclass(frozen=True)
class _State:
    """patches: [m, K + 1, P]; features: [m, C P]; normal: [m, D] ĥ; open: [m, D] where x > 0."""

    patches: Tensor
    features: Tensor
    normal: Tensor
    open: Tensor


class ConvEEncoder:
    """ConvE's network: methods as of :class:`hasten.influence.encoders.BilinearEncoder`."""

    def __init__(self, model: ConvE, arithmetic: Arithmetic) -> None:
        self.model, self.arithmetic = model, arithmetic

    def floats(self) -> tuple[int, int, int]:
        options, positions = self.model.options, self.model.places
        taps, features = options.kernel**2 + 1, positions * options.channels
        query = 2 * features + 3 * taps * positions
        term = 2 * features + 4 * taps * positions
        factors = features + options.channels * (taps + 1) + 5 * options.width
        return query, term, factors

    def forward(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, _State]:
        model = self.model
        image = model.image(model.entities.rows(entity), relation)
        moments = model.image_moments
        image = normalize(image, moments.mean, moments.variance, EPS)
        patches = patches_of(image, model.options.kernel)
        features = torch.relu(self.folded() @ patches).flatten(1)
        hidden = self.arithmetic.product(features, model.hidden.weight.T)
        moments = model.hidden_moments
        normal = normalize(hidden, moments.mean, moments.variance, EPS)
        vectors = torch.relu(normal * model.hidden_gain + model.hidden_shift)
        return vectors, _State(patches, features, normal, vectors > 0)

    def folded(self) -> Tensor:
        """[C, K + 1] the filters with their batch norm."""
        moments = self.model.feature_moments
        return self.model.folded(moments.mean, moments.variance)

    def backward(
        self, state: _State, grads: Tensor, query: Tensor | None, terms: Tensor | None
    ) -> EncoderGradients:
        model = self.model
        kernel, channels = model.options.kernel, model.options.channels
        shifts = grads * per_term(state.open, query)
        gains = shifts * per_term(state.normal, query)
        hidden = shifts * (model.hidden_gain * torch.rsqrt(model.hidden_moments.variance + EPS))
        inner = self.arithmetic.cached_product(hidden, model.hidden.weight)
        features = per_term(state.features, query)
        torch.ops.aten.threshold_backward.grad_input(inner, features, 0, grad_input=inner)
        inner = inner.view(len(grads), channels, model.places)
        folded = torch.bmm(inner, per_term(state.patches, query).transpose(1, 2))
        windows = torch.matmul(self.folded().T, per_term(inner, terms))
        small = torch.cat([*self._of_channels(folded), gains, shifts], dim=1)
        image = images_of(windows, 2 * model.height, model.columns, kernel)
        image *= torch.rsqrt(model.image_moments.variance + EPS)
        heads, relations = image.flatten(1).chunk(2, dim=1)
        return EncoderGradients(heads, relations, [Linear(state.features, hidden)], small)

    def _of_channels(self, folded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Filters [n, C K], gains [n, C] and shifts [n, C], from the folded filters' gradients."""
        model = self.model
        moments = model.feature_moments
        inverse_std = torch.rsqrt(moments.variance + EPS)
        scale = model.feature_gain * inverse_std
        filters, shifts = folded[:, :, :-1], folded[:, :, -1]
        gains = ((filters * model.filters).sum(2) - shifts * moments.mean) * inverse_std
        return (filters * scale[:, None]).flatten(1), gains, shifts
