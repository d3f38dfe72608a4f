"""Embedding diagnostics: detect collapse, and compare embeddings with random vectors.

Computed on a sample of nodes:

- ``mean_cosine``: mean cosine of distinct pairs (0 for random vectors, 1 for one vector);
- ``components_90``: number of principal components that explain 90 % of the variance;
- ``effective_rank``: exp of the entropy of the explained variance (Roy & Vetterli 2007);
- ``within``, ``across``: mean cosine of pairs of the same type and of different types;
- ``within_type``: mean cosine of pairs of each type;
- ``hubness``: skewness of the 10-occurrence counts of nearest neighbors (Radovanovic 2010).

Random vectors pass these checks: they have a low cosine, a high rank and many components. To detect
them, use :attr:`EmbeddingDiagnostics.like_random` and the ranking of held-out links.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.data.graph.node_types import NodeTypes
from hasten.ops.random import Stream, bits, key

SAMPLE = 2048
_NEIGHBORS = 10
#: thresholds of the mean cosine (MPS batched HGT guide)
WARN, BAD, COLLAPSED = 0.7, 0.9, 0.95
MAX_COSINE, MIN_COMPONENTS = 0.5, 15


@dataclass(frozen=True)
class EmbeddingDiagnostics:
    """Diagnostics of a sample of ``nodes`` vectors of ``width`` numbers."""

    nodes: int
    width: int
    mean_cosine: float
    components_90: int
    effective_rank: float
    within: float
    across: float
    hubness: float
    within_type: dict[str, float]

    @property
    def collapsed(self) -> bool:
        """Whether nearly all vectors have the same direction or value."""
        return not (self.mean_cosine < COLLAPSED and self.effective_rank >= 2)

    @property
    def warning(self) -> str | None:
        """A description of the problem, if there is one."""
        figures = f"mean cosine {self.mean_cosine:.3f}, effective rank {self.effective_rank:.1f}"
        if self.collapsed:
            return f"the embeddings have collapsed: {figures}"
        if self.mean_cosine >= BAD:
            return f"the embeddings are close to collapse: {figures}"
        if self.mean_cosine >= WARN:
            return f"the embeddings are much alike: {figures}"
        return None

    @property
    def like_random(self) -> bool:
        """Whether the types are separated no better than by random vectors."""
        return not self.within - self.across > 3 / max(1, self.nodes) ** 0.5 / 2

    @property
    def figures(self) -> dict[str, float]:
        """All finite figures by name, for the metrics log."""
        figures = {
            name: float(value) for name, value in asdict(self).items() if name != "within_type"
        }
        figures |= {f"within {name}": value for name, value in self.within_type.items()}
        return {name: value for name, value in figures.items() if value == value}  # noqa: PLR0124

    def problems(
        self,
        max_cosine: float = MAX_COSINE,
        components: int = MIN_COMPONENTS,
        typed: bool = True,
    ) -> list[str]:
        """The criteria that the embeddings fail. typed: whether types must be told apart."""
        problems = []
        if not self.mean_cosine < max_cosine:
            problems.append(f"mean cosine {self.mean_cosine:.3f} is not below {max_cosine:g}")
        if self.components_90 < components:
            problems.append(
                f"{self.components_90} principal components hold 90 % of the variance, "
                f"fewer than {components}"
            )
        if self.collapsed:
            problems.append(f"collapsed (effective rank {self.effective_rank:.1f})")
        if typed and len(self.within_type) > 1 and self.like_random:
            problems.append(
                f"types are not told apart: cosine {self.within:.3f} within, "
                f"{self.across:.3f} across types, as of random vectors"
            )
        return problems

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diagnose_nodes(vectors: Tensor, types: NodeTypes, seed: int = 0) -> EmbeddingDiagnostics:
    """Diagnostics of [N, D] node embeddings, computed on a sample."""
    return diagnose(*sample_nodes(vectors, types.code, seed), types.names)


def sample_nodes(
    vectors: Tensor, code: Int64, seed: int, sample: int = SAMPLE
) -> tuple[Tensor, Int64]:
    """Sample rows and their types, stratified by type with at least a few rows of each."""
    count = len(vectors)
    if count <= sample:
        return vectors, code
    random = bits(key(seed, Stream.SAMPLE, 60), torch.arange(count)).numpy()
    order = np.lexsort((random, code))
    sizes = np.bincount(code)
    begin = np.cumsum(sizes) - sizes
    sample_sizes = np.minimum(sizes, np.maximum(sample * sizes // count, min(50, sample)))
    rows = np.sort(order[np.arange(count) - begin[code[order]] < sample_sizes[code[order]]])
    return vectors[torch.from_numpy(rows).to(vectors.device)], code[rows]


@torch.no_grad()
def diagnose(vectors: Tensor, code: Int64, names: tuple[str, ...]) -> EmbeddingDiagnostics:
    """Diagnostics of [S, D] vectors. code: int64 [S], their types; names: of the types."""
    x = vectors.detach().to("cpu", torch.float32)
    unit = F.normalize(x)
    count = len(x)
    cosine = unit @ unit.T
    same = torch.from_numpy(code[:, None] == code[None, :])
    other = ~torch.eye(count, dtype=torch.bool)

    def mean(mask: Tensor) -> float:
        return float(cosine[mask].double().mean()) if bool(mask.any()) else float("nan")

    share = _explained_variance(x)
    within_type = {}
    for number, name in enumerate(names):
        rows = torch.from_numpy(np.flatnonzero(code == number))
        if len(rows) > 1:
            part = cosine[rows][:, rows]
            total = float(part.sum(dtype=torch.float64) - part.diagonal().sum(dtype=torch.float64))
            within_type[name] = total / (len(rows) * (len(rows) - 1))
    return EmbeddingDiagnostics(
        nodes=count,
        width=x.shape[1],
        mean_cosine=mean(other),
        components_90=int((share.cumsum(0) < 0.9).sum()) + 1 if len(share) else 0,
        effective_rank=float(torch.exp(-(share * share.clamp(min=1e-12).log()).sum())),
        within=mean(same & other),
        across=mean(~same),
        hubness=_hubness(cosine),
        within_type=within_type,
    )


def _explained_variance(x: Tensor) -> Tensor:
    """The share of variance of each principal component, descending."""
    centered = (x - x.mean(0)).double()
    gram = centered.T @ centered if x.shape[1] <= len(x) else centered @ centered.T
    values: Tensor = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)
    scale = float(x.double().square().sum())
    if not float(values.sum()) > 1e-12 * max(scale, 1e-30):
        return torch.ones(1, dtype=values.dtype)
    share: Tensor = values / values.sum()
    return share


def _hubness(cosine: Tensor) -> float:
    count = len(cosine)
    nearest = min(_NEIGHBORS, count - 1)
    if nearest < 1:
        return float("nan")
    scores = cosine.clone().fill_diagonal_(-torch.inf)
    neighbors = scores.topk(nearest, 1).indices.reshape(-1)
    times = torch.bincount(neighbors, minlength=count).double()
    deviation = times - times.mean()
    spread = deviation.square().mean().sqrt()
    return float((deviation**3).mean() / spread**3) if float(spread) > 0 else 0.0
