"""ConvE backwards, term by term, by running moments and without dropout.

With the batch norms folded in, an image's windows p [K + 1, P] (the last row is ones) and the
folded filters w̃ [C, K + 1] give

    f = relu(w̃ p),   h = W f,   ĥ = (h - m) k,   x = relu(gain ĥ + shift)

and from the gradient of x: u = its product with 1[x > 0], which is that of the shift, u ∘ ĥ
that of the gain, δ = u ∘ gain ∘ k that of h. W has the rank-1 gradient δ fᵀ. With
y = (Wᵀ δ) ∘ 1[f > 0] the folded filters have y pᵀ, from which filters, gains and shifts of the
channels follow, and the windows w̃ᵀ y.

Shapes: m questions, n terms, C channels, P places, K taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hasten.influence.body import Backward, spread
from hasten.influence.factors import Arithmetic, Linear
from hasten.models.knowledge_graph.conve import EPS, ConvE
from hasten.models.knowledge_graph.patch_convolution import (
    images_of,
    patches_of,
    rectified_products,
)
from hasten.ops.dense.group_moments import normalise

#: channels whose gradients are held at once: 2 MB of them stay in a CPU's cache
_BLOCK = 8


@dataclass(frozen=True)
class _State:
    """patches: [m, K + 1, P]; features: [m, C P]; normal: [m, D] ĥ; open: [m, D] where x > 0."""

    patches: Tensor
    features: Tensor
    normal: Tensor
    open: Tensor


class ConvEBody:
    """The network of ConvE."""

    def __init__(self, model: ConvE, arithmetic: Arithmetic) -> None:
        self.model, self.mm, self.again = model, arithmetic.product, arithmetic.again
        self._held: tuple[int, list[Tensor]] | None = None

    def floats(self) -> tuple[int, int]:
        model, taps = self.model, self.model.options.kernel**2 + 1
        features = model.places * model.options.channels
        block = 2 * model.places * min(_BLOCK, model.options.channels)
        return 2 * features + 3 * taps * model.places, block + 4 * taps * model.places

    def kept(self) -> int:
        options, taps = self.model.options, self.model.options.kernel**2
        small = options.channels * (taps + 2) + 2 * options.width
        return self.model.places * options.channels + 3 * options.width + small

    def forward(self, entity: Tensor, relation: Tensor) -> tuple[Tensor, _State]:
        model = self.model
        image = model.image(model.entities.rows(entity), relation)
        moments = model.image_moments
        image = normalise(image, moments.mean, moments.variance, EPS)
        patches = patches_of(image, model.options.kernel)
        features = rectified_products(patches, self.folded(), None)
        hidden = self.mm(features, model.hidden.weight.T)
        moments = model.hidden_moments
        normal = normalise(hidden, moments.mean, moments.variance, EPS)
        vectors = torch.relu(normal * model.hidden_gain + model.hidden_shift)
        return vectors, _State(patches, features, normal, vectors > 0)

    def folded(self) -> Tensor:
        """[C, K + 1] the filters with their batch norm."""
        moments = self.model.feature_moments
        return self.model.folded(moments.mean, moments.variance)

    def backward(
        self, state: _State, slopes: Tensor, of: Tensor | None, at: Tensor | None
    ) -> Backward:
        model = self.model
        kernel, channels = model.options.kernel, model.options.channels
        shifts = slopes * spread(state.open, of)
        gains = shifts * spread(state.normal, of)
        hidden = shifts * (model.hidden_gain * torch.rsqrt(model.hidden_moments.variance + EPS))
        patches, filters = spread(state.patches, of), self.folded()
        folded = slopes.new_empty(len(slopes), channels, kernel**2 + 1)
        wanted = len(slopes) if at is None else len(at)
        windows = patches.new_zeros(wanted, *patches.shape[1:])
        weights = self._weights()
        for number, start in enumerate(range(0, channels, _BLOCK)):
            block = slice(start, start + _BLOCK)
            columns = slice(start * model.places, (start + _BLOCK) * model.places)
            inner = self.again(hidden, weights[number])
            features = spread(state.features[:, columns], of)
            torch.ops.aten.threshold_backward.grad_input(inner, features, 0, grad_input=inner)
            inner = inner.view(len(slopes), -1, model.places)
            folded[:, block] = torch.bmm(inner, patches.transpose(1, 2))
            chosen = spread(inner, at)
            windows.baddbmm_(filters[block].T.expand(wanted, -1, -1), chosen)
        small = torch.cat([*self._of_channels(folded), gains, shifts], dim=1)
        image = images_of(windows, 2 * model.height, model.columns, kernel)
        image *= torch.rsqrt(model.image_moments.variance + EPS)
        heads, relations = image.flatten(1).chunk(2, dim=1)
        return Backward(heads, relations, [Linear(state.features, hidden)], small)

    def _weights(self) -> Sequence[Tensor]:
        """The linear layer's weight [D, C P] by blocks of channels, each in memory of its own."""
        weight = self.model.hidden.weight
        if self._held is None or self._held[0] != weight._version:  # a checkpoint was loaded
            parts = torch.split(weight, _BLOCK * self.model.places, dim=1)
            self._held = weight._version, [part.contiguous() for part in parts]
        return self._held[1]

    def _of_channels(self, folded: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Filters [n, C K], gains [n, C] and shifts [n, C], from the folded filters' gradients."""
        model = self.model
        moments = model.feature_moments
        spread_of = torch.rsqrt(moments.variance + EPS)
        scale = model.feature_gain * spread_of
        filters, shifts = folded[:, :, :-1], folded[:, :, -1]
        gains = ((filters * model.filters).sum(2) - shifts * moments.mean) * spread_of
        return (filters * scale[:, None]).flatten(1), gains, shifts
