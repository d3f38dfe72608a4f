"""Health of embeddings: have they collapsed, and do they tell more than random vectors do?

Of a sample of nodes:

- ``mean_cosine``: mean cosine of distinct pairs (0 for random vectors, 1 for one vector);
- ``components_90``: principal components that hold 90 % of the variance;
- ``effective_rank``: exp of the entropy of the variance's shares (Roy & Vetterli 2007);
- ``within``, ``across``: mean cosine of pairs of one type, of two types; ``within_type``: of each;
- ``hubness``: skewness of how often a node is among the 10 nearest of others (Radovanovic 2010).

None of them tells good embeddings from random ones, which have a low cosine, a high rank and many
components: that is what :attr:`Health.like_random` and the ranking of held-out links are for.
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
_NEIGHBOURS = 10
#: mean cosines from which embeddings are suspicious, bad, collapsed (the guide's)
WARN, BAD, COLLAPSED = 0.7, 0.9, 0.95
MAX_COSINE, MIN_COMPONENTS = 0.5, 15


@dataclass(frozen=True)
class Health:
    """The figures of a sample of nodes. nodes: how many; width: of the vectors."""

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
        """Whether nearly all vectors point the same way, or hardly vary at all."""
        return not (self.mean_cosine < COLLAPSED and self.effective_rank >= 2)

    @property
    def warning(self) -> str | None:
        """What is wrong, in words."""
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
        """Whether types are told apart no better than random vectors do."""
        return not self.within - self.across > 3 / max(1, self.nodes) ** 0.5 / 2

    @property
    def figures(self) -> dict[str, float]:
        """The figures as numbers with names, for records; without those that are none."""
        found = {
            name: float(value) for name, value in asdict(self).items() if name != "within_type"
        }
        found |= {f"within {name}": value for name, value in self.within_type.items()}
        return {name: value for name, value in found.items() if value == value}  # noqa: PLR0124

    def problems(
        self, max_cosine: float = MAX_COSINE, components: int = MIN_COMPONENTS
    ) -> list[str]:
        """The criteria that are not met."""
        found = []
        if not self.mean_cosine < max_cosine:
            found.append(f"mean cosine {self.mean_cosine:.3f} is not below {max_cosine:g}")
        if self.components_90 < components:
            found.append(
                f"{self.components_90} principal components hold 90 % of the variance, "
                f"fewer than {components}"
            )
        if self.collapsed:
            found.append(f"collapsed (effective rank {self.effective_rank:.1f})")
        if len(self.within_type) > 1 and self.like_random:
            found.append(
                f"types are not told apart: cosine {self.within:.3f} within, "
                f"{self.across:.3f} across types, as of random vectors"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def health_of(vectors: Tensor, types: NodeTypes, seed: int = 0, sample: int = SAMPLE) -> Health:
    """The figures of [N, D] vectors, nodes of a type standing together."""
    return health(*sample_of(vectors, types.code, seed, sample), types.names)


def sample_of(
    vectors: Tensor, code: Int64, seed: int, sample: int = SAMPLE
) -> tuple[Tensor, Int64]:
    """Some of the rows, drawn by the seed, and their types; small types keep at least a few."""
    count = len(vectors)
    if count <= sample:
        return vectors, code
    chance = bits(key(seed, Stream.SAMPLE, 60), torch.arange(count)).numpy()
    order = np.lexsort((chance, code))
    sizes = np.bincount(code)
    begin = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    wanted = np.minimum(sizes, np.maximum(sample * sizes // count, min(50, sample)))
    picked = [order[b : b + w] for b, w in zip(begin, wanted, strict=True)]
    rows = np.sort(np.concatenate(picked))
    return vectors[torch.from_numpy(rows).to(vectors.device)], code[rows]


@torch.no_grad()
def health(vectors: Tensor, code: Int64, names: tuple[str, ...]) -> Health:
    """The figures of these rows. code: int64 [S], the type of each."""
    x = vectors.detach().to("cpu", torch.float32)
    unit = F.normalize(x)
    count = len(x)
    cosine = unit @ unit.T
    same = torch.from_numpy(code[:, None] == code[None, :])
    other = ~torch.eye(count, dtype=torch.bool)

    def mean(mask: Tensor) -> float:
        return float(cosine[mask].double().mean()) if bool(mask.any()) else float("nan")

    share = _variance(x)
    within_type = {}
    for number, name in enumerate(names):
        rows = torch.from_numpy(np.flatnonzero(code == number))
        if len(rows) > 1:
            part = cosine[rows][:, rows]
            total = float(part.sum(dtype=torch.float64) - part.diagonal().sum(dtype=torch.float64))
            within_type[name] = total / (len(rows) * (len(rows) - 1))
    return Health(
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


def _variance(x: Tensor) -> Tensor:
    """The share of every principal component, descending; empty where nothing varies."""
    centred = (x - x.mean(0)).double()
    gram = centred.T @ centred if x.shape[1] <= len(x) else centred @ centred.T
    values: Tensor = torch.linalg.eigvalsh(gram).flip(0).clamp(min=0)
    scale = float(x.double().square().sum())
    if not float(values.sum()) > 1e-12 * max(scale, 1e-30):
        return torch.ones(1, dtype=values.dtype)
    share: Tensor = values / values.sum()
    return share


def _hubness(cosine: Tensor) -> float:
    count = len(cosine)
    nearest = min(_NEIGHBOURS, count - 1)
    if nearest < 1:
        return float("nan")
    scores = cosine.clone().fill_diagonal_(-torch.inf)
    found = scores.topk(nearest, 1).indices.reshape(-1)
    times = torch.bincount(found, minlength=count).double()
    deviation = times - times.mean()
    spread = deviation.square().mean().sqrt()
    return float((deviation**3).mean() / spread**3) if float(spread) > 0 else 0.0
