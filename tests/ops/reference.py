"""The plain definitions that the fast operations are tested against."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional as F

from hasten.arrays import Int64
from hasten.ops.dense.normalized_rows import MIN_NORM
from hasten.ops.dtypes import accumulation_dtype
from hasten.ops.graph.best_paths import PathGraph, WeighedPath
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import SparseGraph
from hasten.ops.graph.typed_edges import TypedEdges
from hasten.ops.ranking.rank_all import RankCounts
from hasten.ops.ranking.scorer import Scorer


def edge_attention_reference(
    edges: TypedEdges,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention: Tensor,
    message: Tensor,
    keep: Tensor | None = None,
) -> Tensor:
    """The same with a map, a logit and a message for every edge, one destination at a time."""
    heads, width = attention.shape[1:3]
    source = torch.cat([each.sources[each.column] for each in edges.relations])
    relation = torch.cat([torch.full_like(each.column, each.number) for each in edges.relations])
    q, k, v = (t.view(-1, heads, width) for t in (query, key, value))
    keys = torch.einsum("ehd,ehdf->ehf", k[source], attention[relation])
    values = torch.einsum("ehd,ehdf->ehf", v[source], message[relation])
    logits = (q[edges.target] * keys).sum(-1)
    rows = []
    for node in range(edges.shape[0]):
        mine = edges.target == node
        if keep is not None:
            mine &= keep
        alpha = torch.softmax(logits[mine], 0)
        rows.append((alpha[..., None] * values[mine]).sum(0).reshape(-1))
    return torch.stack(rows)


def relation_attention_reference(
    head: Tensor, relation: Tensor, tail: Tensor, nodes: Tensor, relations: Tensor, weights: Tensor
) -> Tensor:
    """The same, one edge after the other."""
    found = [
        (nodes[t] @ weights[r]) @ torch.tanh(nodes[h] @ weights[r] + relations[r])
        for h, r, t in zip(head.tolist(), relation.tolist(), tail.tolist(), strict=True)
    ]
    return torch.stack(found)


def convolution_reference(
    images: Tensor, filters: Tensor, gain: Tensor, shift: Tensor, eps: float, keep: Tensor | None
) -> Tensor:
    """The same as torch has it: conv2d, batch_norm, relu, product with the mask."""
    kernel = round(filters.shape[1] ** 0.5)
    y = F.conv2d(images[:, None], filters.view(-1, 1, kernel, kernel))
    y = torch.relu(F.batch_norm(y, None, None, gain, shift, training=True, eps=eps))
    if keep is not None:
        y = y * keep[:, :, None, None]
    return y.flatten(1)


def normalized_rows_reference(*tables: Sequence[Tensor]) -> Tensor:
    """The same by ``cat`` and ``normalize``."""
    whole = [torch.cat([part.to(accumulation_dtype(part)) for part in parts]) for parts in tables]
    return torch.cat([F.normalize(table, dim=1, eps=MIN_NORM) for table in whole], dim=1)


def best_paths_reference(
    graph: PathGraph, source: int, target: int, edges: int
) -> list[WeighedPath]:
    """The same by trying all paths."""
    found: list[WeighedPath] = []

    def walk(node: int, path: tuple[int, ...], nodes: tuple[int, ...], weight: float) -> None:
        if node == target and path:
            found.append(WeighedPath(path, weight))
            return
        if len(path) == edges:
            return
        for edge in range(int(graph.offsets[node]), int(graph.offsets[node + 1])):
            tail = int(graph.tail[edge])
            more = weight * float(graph.weight[edge])
            if tail not in nodes and more > 0:
                walk(tail, (*path, edge), (*nodes, tail), more)

    walk(source, (), (source,), 1.0)
    return sorted(found, key=lambda path: (-path.weight, path.edges))


def nearest_reference(x: Tensor, k: int) -> list[set[int]]:
    """The same with all N × N cosines at once; rows must not be zero."""
    alike = F.cosine_similarity(x[:, None], x[None], dim=2)
    alike.fill_diagonal_(2.0)
    return [set(row.topk(min(k, len(x))).indices.tolist()) for row in alike]


def segment_softmax_reference(logits: Tensor, offsets: Tensor) -> Tensor:
    """The same, one row after the other."""
    bounds = offsets.tolist()
    rows = [torch.softmax(logits[start:stop], 0) for start, stop in pairwise(bounds)]
    return torch.cat(rows) if rows else logits


def spmm_reference(graph: SparseGraph, values: Tensor, x: Tensor) -> Tensor:
    """The same with a dense matrix."""
    dense = x.new_zeros(graph.shape)
    index = (graph.rows, graph.columns.long())
    return dense.index_put(index, values.to(x.dtype), accumulate=True) @ x


def one_to_many_loss_reference(
    x: Tensor,
    blocks: Sequence[Tensor],
    row: Tensor,
    item: Tensor,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """The same, with the matrix of labels."""
    scores = x @ torch.cat(list(blocks)).T
    if bias is not None:
        scores = scores + bias
    labels = torch.zeros_like(scores)
    labels[row, item] = 1.0
    labels = (1 - smoothing) * labels + smoothing / scores.shape[1]
    return scale * F.binary_cross_entropy_with_logits(scores, labels, reduction="sum")


def sampled_softmax_reference(
    x: Tensor, rows: Tensor, targets: Tensor, sampled: Tensor, log_weights: Tensor, masked: Tensor
) -> Tensor:
    """The same, one target after the other."""
    left_out, total = set(masked.tolist()), x.new_zeros(())
    for number, (state, target) in enumerate(zip(x, rows[targets], strict=True)):
        kept = [j for j in range(len(sampled)) if number * len(sampled) + j not in left_out]
        others = rows[sampled[kept]] @ state + log_weights[kept]
        total = total - torch.log_softmax(torch.cat([(target @ state)[None], others]), 0)[0]
    return total


def sampled_loss_reference(
    x: Tensor, table: Tensor, positive: Tensor, negative: Tensor, beta: float = 1.0
) -> Tensor:
    """The same from the definition, on all N scores (for tests, in float64)."""
    scores = x @ table.T
    chosen = torch.sigmoid(scores.gather(1, positive[:, None])).pow(beta).log().sum()
    rejected = (1 - torch.sigmoid(scores.gather(1, negative))).log().sum()
    return -(chosen + rejected)


def translation_loss_reference(
    rows: Tensor, place: Tensor, relation: Tensor, weights: Tensor, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """The same with a matrix for every edge."""
    kind = torch.repeat_interleave(torch.tensor(sizes, device=rows.device))
    moved = torch.einsum("bnd,bdk->bnk", rows[place].view(-1, 3, rows.shape[1]), weights[kind])
    head, tail, other = moved.unbind(1)
    near = (head + relation - tail).square().sum(1)
    far = (head + relation - other).square().sum(1)
    norms = (moved.square().sum() + relation.square().sum()) / 2
    return F.softplus(near - far).sum(), norms


@torch.no_grad()
def rank_all_reference(
    scorer: Scorer, queries: int, count: int, targets: CSR, excluded: CSR | None = None
) -> RankCounts:
    """:func:`rank_all` as its definition reads: one pair and one candidate after the other."""
    scores = scorer.block(0, count).to(torch.float32).tolist()
    higher, equal = [], []
    for row in range(queries):
        out: set[int] = set()
        if excluded is not None:
            out = set(excluded.row(row).tolist())
        for target in targets.row(row).tolist():
            own = scores[row][target]
            rivals = [scores[row][j] for j in range(count) if j != target and j not in out]
            higher.append(sum(not rival <= own for rival in rivals))
            equal.append(sum(rival == own for rival in rivals))
    return RankCounts.of(
        torch.tensor(higher, dtype=torch.int64), torch.tensor(equal, dtype=torch.int64)
    )


@torch.no_grad()
def topk_all_reference(
    scorer: Scorer,
    queries: int,
    count: int,
    k: int,
    excluded: CSR | None = None,
    allowed: Int64 | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`topk_all` as its definition reads: sort every row's candidates."""
    scores = scorer.block(0, count).to(torch.float32).tolist()
    ids = torch.full((queries, k), -1)
    best = torch.full((queries, k), -torch.inf)
    for row in range(queries):
        free = set(range(count) if allowed is None else allowed.tolist())
        if excluded is not None:
            free -= set(excluded.row(row).tolist())
        candidates = [(-scores[row][item], item) for item in free if scores[row][item] > -torch.inf]
        for place, (score, item) in enumerate(sorted(candidates)[:k]):
            ids[row, place], best[row, place] = item, -score
    return ids, best
