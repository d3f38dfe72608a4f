"""Losses over all rows of a table, which may be divided over processes.

For a sharded table each process scores the queries of all processes against the rows that it holds
(vocabulary-parallel; Shoeybi et al. 2019, "Megatron-LM", section 3). Queries and targets are sent
to all processes, and the gradients of the queries are summed where they came from: 8 D bytes for
a query in float32, for any number of rows. A softmax also merges the sums of exponentials, 8 bytes
for a query. The gradients of rows stay where the rows are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hasten.ops.losses.catalog_loss import catalog_cross_entropy
from hasten.ops.losses.catalog_targets import CatalogTargets, LabelPairs
from hasten.ops.losses.one_to_many_loss import one_to_many_of_pairs
from hasten.ops.sharded_table import Concatenation, Shard, ShardedTable
from hasten.ops.table import Table, gathered_rows


def table_cross_entropy(
    x: Tensor, table: Table, targets: CatalogTargets | Tensor, bias: Tensor | None = None
) -> Tensor:
    """:func:`.catalog_cross_entropy` of [T, D] queries against all rows of a table.

    If the table is sharded: the sum over those targets of all processes whose rows this one holds.
    All processes must call it, those without queries too. bias: [N], or of the rows of this
    process.
    """
    if not isinstance(table, ShardedTable):
        return catalog_cross_entropy(x, [table.block(0, len(table))], targets, bias)
    if isinstance(targets, Tensor):
        targets = CatalogTargets.build(targets, None, len(x))
    shard, single = table.shard, targets.query is None
    query = torch.arange(len(x), device=x.device) if targets.query is None else targets.query
    queries, pairs = shard.together(len(x), len(query))
    query, item = _pairs_of_all(query, targets.item, queries, pairs)
    # the largest count stays 1, as only the residuals of fp16 need it, which has no sharded tables
    counts = None if single else query.new_zeros(queries.total)
    if counts is not None:
        counts.index_add_(0, query, torch.ones_like(query))
    query, item, weight = _held(query, item, shard)
    on_host = query.numpy() if weight is None else None
    own = CatalogTargets(item, query, counts, on_host, weight=weight)
    x, bias = _of_all(x, queries, table), _of_shard(bias, shard)
    return catalog_cross_entropy(x, [table.weight], own, bias, shard=shard)


def table_one_to_many(
    x: Tensor,
    table: Table,
    pairs: LabelPairs,
    bias: Tensor | None = None,
    smoothing: float = 0.0,
    scale: float = 1.0,
) -> Tensor:
    """:func:`.one_to_many_of_pairs` of [B, D] queries and all rows of a table.

    If the table is sharded: the sum over all queries of all processes and the rows of this one. All
    processes must call it, those without queries too. bias: [N], or of the rows of this process.
    """
    if not isinstance(table, ShardedTable):
        block = table.block(0, len(table))
        return one_to_many_of_pairs(x, [block], pairs, bias, smoothing, scale)
    shard = table.shard
    queries, labels = shard.together(len(x), len(pairs.row))
    query, item, weight = _held(*_pairs_of_all(pairs.row, pairs.item, queries, labels), shard)
    built = LabelPairs.build(query, item) if weight is None else None
    own, bias = built or LabelPairs(query, item, None, weight), _of_shard(bias, shard)
    x = _of_all(x, queries, table)
    return one_to_many_of_pairs(x, [table.weight], own, bias, smoothing, scale, total=len(table))


def _pairs_of_all(
    query: Tensor, item: Tensor, queries: Concatenation, pairs: Concatenation
) -> tuple[Tensor, Tensor]:
    """int64 [P] the queries and rows of the pairs of all processes."""
    pairs_of_all = pairs.gather(torch.stack([query + queries.first, item], dim=1))
    return pairs_of_all[:, 0].contiguous(), pairs_of_all[:, 1].contiguous()


def _held(query: Tensor, item: Tensor, shard: Shard) -> tuple[Tensor, Tensor, Tensor | None]:
    """The pairs whose rows this process holds, numbered from its first row, and their weights.

    On a device all pairs, because to select some would wait for it: those that others hold have the
    weight 0 and the first row.
    """
    held = (item >= shard.first) & (item < shard.stop)
    if item.device.type == "cpu":
        return query[held], item[held] - shard.first, None
    return query, (item - shard.first) * held, held.float()


def _of_shard(bias: Tensor | None, shard: Shard) -> Tensor | None:
    """The biases of the rows of a shard, from those of all rows or of these."""
    whole = bias is not None and len(bias) == shard.total
    return bias[shard.first : shard.stop] if bias is not None and whole else bias


def _of_all(x: Tensor, queries: Concatenation, table: ShardedTable) -> Tensor:
    """[T, D] the queries of all processes, in the type of the table."""
    gathered: Tensor = _Gather.apply(x.to(table.weight.dtype), queries)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, queries: Concatenation) -> Tensor:
        ctx.queries = queries
        return queries.gather(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.queries.sum_back(grad), None


def answers_above_mean(
    x: Tensor,
    table: Table,
    answer: Tensor,
    query: Tensor | None,
    bias: Tensor,
    weight: Tensor | None,
) -> Tensor:
    """The sum over answers of (score of the answer - mean score of the whole table).

    Label smoothing s of a softmax gives each answer the weight 1 - s + s / N and every other row
    s / N (Szegedy et al. 2016). This adds s times the sum to the cross-entropy. answer: int64 [A];
    query: int64 [A], the row of x of each answer, None if each row has one answer; bias: [N];
    weight: [A] of the answers, None for 1. The table must not be sharded.
    """
    rows = table.block(0, len(table))
    above_mean = gathered_rows(rows, answer) - rows.mean(0)
    products = above_mean * (x if query is None else x.index_select(0, query))
    biases = bias[answer] - bias.mean()
    if weight is not None:
        products, biases = products * weight[:, None], biases * weight
    return products.sum() + biases.sum()
