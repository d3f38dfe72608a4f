"""Random projection of factored gradients: approximate, unbiased inner products.

A gradient g of any length becomes K numbers whose products estimate ⟨g, g'⟩. A count sketch
(Charikar et al. 2002) adds every coordinate, with a random sign, to one of K numbers. That of an
outer product a bᵀ is the circular convolution of those of a and b (Pham & Pagh 2013, "Fast and
scalable polynomial kernels via explicit feature maps"), so no gradient is
materialized: the sketches of all parts are added as Fourier coefficients. The expected value over
signs is exact, the variance about (|g|²|g'|² + ⟨g, g'⟩²) / K.

Every number receives equally many coordinates, in a random order. Signs and orders follow from the
seed and the name of the part.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.influence.factors import Factors, per_term
from hasten.ops.random import Stream, bits, key, permutation


class Sketch:
    """Sketches of ``size`` numbers. rows, relations: the sizes of the tables."""

    def __init__(self, size: int, seed: int, rows: int, relations: int = 0) -> None:
        self.size, self.seed = size, seed
        self.lengths = {"rows": rows, "relations": relations}
        self._counts: dict[str, _CountSketch] = {}

    def __call__(self, factors: Factors) -> Tensor:
        """[n, K] for every term; row gradients must be those of all terms."""
        query, vectors = factors.query, factors.vectors
        # the bias is one more column of the table, read by a vector that ends in 1
        last = vectors.new_full((len(vectors), 1), float(factors.bias))
        columns = self._fourier("columns", torch.cat([vectors, last], 1))
        total = torch.fft.rfft(self._residuals(factors)) * per_term(columns, query)
        rows = factors.rows
        if rows is not None:
            assert rows.terms is None
            no_bias = rows.head_grads.new_zeros(len(rows.head_grads), 1)
            heads = self._fourier("columns", torch.cat([rows.head_grads, no_bias], 1))
            total += torch.fft.rfft(self._units("rows", rows.entity, vectors)) * heads
            relations = self._fourier("relation columns", rows.relation_grads)
            total += torch.fft.rfft(self._units("relations", rows.relation, vectors)) * relations
        for number, linear in enumerate(factors.linears):
            outer = per_term(self._fourier(f"inputs {number}", linear.inputs), query)
            total += outer * self._fourier(f"outputs {number}", linear.output_grads)
        sketch: Tensor = torch.fft.irfft(total, n=self.size)
        if factors.small is not None:
            sketch += self._count("small", factors.small)(factors.small)
        return sketch

    def _residuals(self, factors: Factors) -> Tensor:
        """[n, K] the sketch of ρ."""
        sketch = factors.vectors.new_zeros(len(factors), self.size)
        if factors.dense is not None:
            sketch += per_term(self._count("rows", factors.dense)(factors.dense), factors.query)
        if factors.target is not None and factors.value is not None:
            units = self._units("rows", factors.target, sketch)
            sketch += units * factors.value[:, None]
        return sketch

    def _units(self, name: str, rows: Tensor, like: Tensor) -> Tensor:
        """[n, K] the sketches of unit vectors."""
        count = self._count(name, like)
        sketch = like.new_zeros(len(rows), self.size)
        sketch.scatter_(1, count.bucket[rows][:, None], count.sign[rows][:, None])
        return sketch

    def _fourier(self, name: str, rows: Tensor) -> Tensor:
        """The Fourier coefficients of the sketches of these rows."""
        spectrum: Tensor = torch.fft.rfft(self._count(name, rows)(rows))
        return spectrum

    def _count(self, name: str, like: Tensor) -> _CountSketch:
        """The count sketch of a part, of the given length or else that of the rows."""
        if name not in self._counts:
            length = self.lengths.get(name, like.shape[1])
            base = key(self.seed, Stream.INFLUENCE, *name.encode())
            self._counts[name] = _CountSketch(length, self.size, base, like)
        return self._counts[name]


class _CountSketch:
    """Coordinates with random signs, assigned to ``size`` buckets in a random order."""

    def __init__(self, length: int, size: int, base: int, like: Tensor) -> None:
        self.size = size
        order = permutation(length, key(base, 0))
        bucket = torch.empty_like(order)
        bucket[order] = torch.arange(length) % size
        signs = (bits(key(base, 1), torch.arange(length)) & 1) * 2 - 1
        self.order, self.bucket = order.to(like.device), bucket.to(like.device)
        self.sign = signs.to(like)

    def __call__(self, rows: Tensor) -> Tensor:
        """[n, K] of rows [n, length]."""
        signed = (rows * self.sign).index_select(1, self.order)
        missing = -signed.shape[1] % self.size
        return F.pad(signed, (0, missing)).view(len(rows), -1, self.size).sum(1)
