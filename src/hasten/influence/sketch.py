"""Random projection of gradients in factors: an approximate tier, unbiased.

A gradient g of any length becomes K numbers whose products estimate ⟨g, g'⟩. A count sketch
(Charikar et al. 2002) adds every coordinate, with a random sign, to one of K numbers. That of an
outer product a bᵀ is the circular convolution of those of a and b (Pham & Pagh 2013, "Fast and
scalable polynomial kernels via explicit feature maps"), so that no gradient is written out here
either: sketches of all parts are added up as Fourier coefficients. Expected value exact (over
signs), variance about (|g|²|g'|² + ⟨g, g'⟩²) / K.

Coordinates are dealt out to the K numbers evenly, in a random order; signs and orders follow from
the seed, part by part.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.influence.body import spread
from hasten.influence.factors import Factors
from hasten.ops.random import Stream, bits, key, permutation


class Sketch:
    """Sketches of ``size`` numbers. rows, relations: how many there are of each."""

    def __init__(self, size: int, seed: int, rows: int, relations: int = 0) -> None:
        self.size, self.seed = size, seed
        self.lengths = {"rows": rows, "relations": relations}
        self._counts: dict[str, _CountSketch] = {}

    def __call__(self, factors: Factors) -> Tensor:
        """[n, K] of every term; inputs must be of all terms."""
        of, vectors = factors.of, factors.vectors
        # the bias is one more column of the table, read by a vector that ends in 1
        last = vectors.new_full((len(vectors), 1), float(factors.bias))
        columns = self._waves("columns", torch.cat([vectors, last], 1))
        total = torch.fft.rfft(self._residuals(factors)) * spread(columns, of)
        inputs = factors.inputs
        if inputs is not None:
            assert inputs.at is None
            nothing = inputs.heads.new_zeros(len(inputs.heads), 1)
            heads = self._waves("columns", torch.cat([inputs.heads, nothing], 1))
            total += torch.fft.rfft(self._units("rows", inputs.entity, vectors)) * heads
            relations = self._waves("relation columns", inputs.relations)
            total += torch.fft.rfft(self._units("relations", inputs.relation, vectors)) * relations
        for number, linear in enumerate(factors.linears):
            outer = spread(self._waves(f"inputs {number}", linear.inputs), of)
            total += outer * self._waves(f"outputs {number}", linear.slopes)
        found: Tensor = torch.fft.irfft(total, n=self.size)
        if factors.small is not None:
            found += self._count("small", factors.small)(factors.small)
        return found

    def _residuals(self, factors: Factors) -> Tensor:
        """[n, K] the sketch of ρ."""
        sketch = factors.vectors.new_zeros(len(factors), self.size)
        if factors.dense is not None:
            sketch += spread(self._count("rows", factors.dense)(factors.dense), factors.of)
        if factors.target is not None and factors.value is not None:
            units = self._units("rows", factors.target, sketch)
            sketch += units * factors.value[:, None]
        return sketch

    def _units(self, name: str, rows: Tensor, like: Tensor) -> Tensor:
        """[n, K] the sketches of unit vectors."""
        count = self._count(name, like)
        sketch = like.new_zeros(len(rows), self.size)
        sketch.scatter_(1, count.place[rows][:, None], count.sign[rows][:, None])
        return sketch

    def _waves(self, name: str, rows: Tensor) -> Tensor:
        """The Fourier coefficients of the sketches of these rows."""
        waves: Tensor = torch.fft.rfft(self._count(name, rows)(rows))
        return waves

    def _count(self, name: str, like: Tensor) -> _CountSketch:
        """The count sketch of a part; as long as the rows, where its length is not given."""
        if name not in self._counts:
            length = self.lengths.get(name, like.shape[1])
            base = key(self.seed, Stream.INFLUENCE, *name.encode())
            self._counts[name] = _CountSketch(length, self.size, base, like)
        return self._counts[name]


class _CountSketch:
    """Coordinates with random signs, dealt out to ``size`` numbers in a random order."""

    def __init__(self, length: int, size: int, base: int, like: Tensor) -> None:
        self.size = size
        order = permutation(length, key(base, 0))
        place = torch.empty_like(order)
        place[order] = torch.arange(length) % size
        signs = (bits(key(base, 1), torch.arange(length)) & 1) * 2 - 1
        self.order, self.place = order.to(like.device), place.to(like.device)
        self.sign = signs.to(like)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, K] of rows [n, length]."""
        dealt = (rows * self.sign).index_select(1, self.order)
        missing = -dealt.shape[1] % self.size
        return F.pad(dealt, (0, missing)).view(len(rows), -1, self.size).sum(1)
