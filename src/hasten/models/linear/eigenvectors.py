"""The leading eigenvectors of a symmetric operator, by a block Lanczos iteration."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

_BLOCK: Final = 32


def leading_eigenvectors(
    apply: Callable[[Tensor], Tensor],
    size: int,
    count: int,
    device: torch.device,
    tolerance: float = 1e-3,
) -> Tensor:
    """[N, count] orthonormal eigenvectors of the largest eigenvalues, in descending order.

    apply: a symmetric positive semidefinite N×N operator on [N, b]. Every new block is orthogonal
    to all before. Ends when the residuals are below ``tolerance`` times the largest eigenvalue, or
    the basis spans the space. Always the same result: the first block is drawn with a fixed seed.
    """
    generator = torch.Generator().manual_seed(0)
    count = min(count, size)
    basis = images = new = torch.empty(size, 0, device=device)
    small = torch.empty(0, 0, device=device)
    while True:
        block = min(_BLOCK, size - basis.shape[1])
        new = _orthogonal(new[:, :block], basis, block, generator)
        image = apply(new)
        basis, images = torch.cat([basis, new], 1), torch.cat([images, image], 1)
        added = basis.T @ image
        small = torch.cat([torch.cat([small, added[:-block]], 1), added.T])
        new = image
        dimensions = basis.shape[1]
        if dimensions < size and (dimensions < 2 * count or dimensions // _BLOCK % 4):
            continue
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        values, vectors = values[-count:].flip(0), vectors[:, -count:].flip(1)
        eigenvectors: Tensor = basis @ vectors
        errors = torch.linalg.vector_norm(images @ vectors - eigenvectors * values, dim=0)
        if dimensions == size or float(errors.max()) <= tolerance * float(values[0]):
            return eigenvectors


def _orthogonal(new: Tensor, basis: Tensor, width: int, generator: torch.Generator) -> Tensor:
    """[N, width] an orthonormal basis of ``new``, orthogonal to ``basis``; filled up at random."""
    for _ in range(2):
        new = new - basis @ (basis.T @ new)
    scale = float(torch.linalg.vector_norm(new, dim=0).max()) if new.shape[1] else 0.0
    if new.shape[1]:
        new, triangle = torch.linalg.qr(new)
        new = new[:, triangle.diagonal().abs() > max(1e-5 * scale, 1e-6)]
    missing = width - new.shape[1]
    random = torch.randn(len(basis), missing, generator=generator)
    new = torch.cat([new, random.to(new.device)], 1)
    for _ in range(2):
        new = torch.linalg.qr(new - basis @ (basis.T @ new)).Q
    return new
