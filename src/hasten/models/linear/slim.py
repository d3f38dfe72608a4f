"""SLIM: sparse non-negative weights between items (Ning & Karypis 2011).

Column j of the weights minimizes ``½ ‖x_j - X w‖² + l2/2 ‖w‖² + l1 ‖w‖₁`` with w >= 0 and w_j = 0
(equation 3). Only ``G = XᵀX`` enters. As G and w are not negative, the gradient of a weight w_i = 0
is at least ``l1 - G_ij``: items that occur with j at most l1 times have a weight of 0 and are left
out of the problem, which is then solved exactly.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hasten.arrays import Int64, distinct, ragged_offsets, ragged_positions, ranges
from hasten.config import ModelOptions
from hasten.data.tables import Dataset
from hasten.models.linear.base import SparseItemModel, training_pairs
from hasten.models.linear.cooccurrence import cooccurrences
from hasten.models.linear.elastic_net import nonnegative_elastic_nets
from hasten.models.search_space import Range
from hasten.ops.graph.csr import CSR
from hasten.ops.graph.spmm import product

#: the most items of a dense matrix of co-occurrences (4 GiB)
_DENSE = 1 << 15
#: candidates that a column begins with, and takes up at a time, or as many as have weights
_ACTIVE = 64
#: elements of the matrices of columns that are solved together
_TOGETHER = 1 << 25


class SLIMOptions(ModelOptions):
    """Options of SLIM."""

    name: Literal["slim"] = "slim"
    l1: float = Field(1.0, ge=0, description="L1 penalty: more makes the weights sparser")
    l2: float = Field(100.0, ge=0, description="L2 penalty of the weights")
    tolerance: float = Field(
        1e-4, gt=0, description="largest change of a weight in the last sweep of the solver"
    )


class SLIM(SparseItemModel):
    """Weights from items to items by elastic nets, sparse."""

    name = "slim"
    summary = "sparse linear weights between items"
    Options = SLIMOptions
    search = {
        "model.l1": Range(0.05, 20.0, log=True),
        "model.l2": Range(5.0, 2000.0, log=True),
    }

    def fit(self, dataset: Dataset) -> None:
        """Solve the problems of all items."""
        items = self.sizes.items
        pairs = training_pairs(dataset)
        gram, counts = _cooccurrences(pairs, items)
        users = np.bincount(pairs.items, minlength=items)
        other = (counts > self.options.l1) & (gram.items != gram.rows)
        chosen = CSR(ragged_offsets(gram.rows[other], items), gram.items[other])
        goal, lengths = counts[other], chosen.lengths
        by_count = np.argsort(lengths, kind="stable")
        by_count = by_count[lengths[by_count] > 0]
        blocks: list[tuple[Int64, Int64, Tensor]] = []
        limit = _DENSE if items > _DENSE else len(goal)
        for start, stop in ranges(lengths[by_count], limit):
            columns = by_count[start:stop]
            among = distinct(chosen.take(columns).items)
            # candidates are mostly frequent items: side by side they stay in the cache
            among = among[np.argsort(-users[among], kind="stable")]
            place = np.full(items, -1)
            place[among] = np.arange(len(among))
            dense = _dense(gram, counts, among, place).to(self.device)
            work = np.maximum(np.minimum(lengths[columns], _ACTIVE) ** 2, len(among))
            for first, last in ranges(work, _TOGETHER):
                part = columns[first:last]
                entries, offsets = ragged_positions(chosen.offsets, part)
                row = np.repeat(np.arange(len(part)), np.diff(offsets))
                target = torch.zeros(len(part), len(among))
                target[row, place[chosen.items[entries]]] = torch.from_numpy(goal[entries])
                row, position, weight = self._solve(dense, target.to(self.device))
                blocks.append((among[position], part[row], weight))
        sources, targets, weights = zip(*blocks, strict=True) if blocks else ([], [], [])
        empty = np.empty(0, np.int64)
        self.keep(
            np.concatenate([empty, *sources]),
            np.concatenate([empty, *targets]),
            torch.cat([torch.empty(0), *weights]),
        )

    def _solve(self, dense: Tensor, target: Tensor) -> tuple[Int64, Int64, Tensor]:
        """Problem, item and value of each weight above 0.

        dense: [n, n] the co-occurrences of n items; target: [B, n] those with the item of each
        problem, 0 where a weight must be 0. A problem is solved for some candidates, and again for
        those with a weight and those whose weight would then change, until there are none.
        """
        options, diagonal = self.options, dense.diagonal()
        most = int((target > 0).sum(1).max())
        active = target.topk(min(most, _ACTIVE)).indices.sort(1).values
        complete = active.shape[1] == most
        rows = torch.arange(len(target), device=target.device)
        solved: list[tuple[Tensor, Tensor, Tensor]] = []
        while len(rows):
            width, row_targets = active.shape[1], target[rows]
            step = max(1, _TOGETHER // width**2)
            weights = torch.cat(
                [
                    nonnegative_elastic_nets(
                        dense[index[:, :, None], index[:, None]].permute(1, 2, 0).contiguous(),
                        goal.T.contiguous(),
                        *(options.l1, options.l2, options.tolerance),
                    )
                    for index, goal in zip(
                        torch.split(active, step),
                        torch.split(row_targets.gather(1, active), step),
                        strict=True,
                    )
                ],
                dim=1,
            ).T
            row, slot = torch.nonzero(weights, as_tuple=True)
            place, value = active[row, slot], weights[row, slot]
            unfinished = rows.new_zeros(0)
            if not complete:
                offsets = torch.searchsorted(row, torch.arange(len(rows) + 1, device=row.device))
                met = product(offsets.int(), place.int(), value, dense)
                change = (row_targets - options.l1 - met) / (diagonal + options.l2)
                change.scatter_(1, active, -torch.inf)
                late = (change > options.tolerance).sum(1)
                unfinished = torch.nonzero(late)[:, 0]
                if len(unfinished):  # keep the weights above 0, and take up the largest changes
                    change[row, place] = torch.inf
                    positive = (weights > 0).sum(1)
                    # at most twice as many: a problem is solved few times, however many it needs
                    active_counts = positive + torch.minimum(late, positive.clamp(min=_ACTIVE))
                    active = (
                        change[unfinished]
                        .topk(int(active_counts[unfinished].max()))
                        .indices.sort(1)
                        .values
                    )
            done = torch.ones(len(rows), dtype=torch.bool, device=rows.device)
            done[unfinished] = False
            solved.append((rows[row[done[row]]], place[done[row]], value[done[row]]))
            rows = rows[unfinished]
        row, place, value = (torch.cat(each).cpu() for each in zip(*solved, strict=True))
        return row.numpy(), place.numpy(), value


def _cooccurrences(pairs: CSR, items: int) -> tuple[CSR, NDArray[np.float32]]:
    """The items that occur together with each item, itself included, and how often (float32)."""
    rows, columns, counts = map(np.concatenate, zip(*cooccurrences(pairs, items), strict=True))
    order = np.argsort(rows, kind="stable")
    return CSR(ragged_offsets(rows, items), columns[order]), counts[order].astype(np.float32)


def _dense(gram: CSR, counts: NDArray[np.float32], among: Int64, place: Int64) -> Tensor:
    """[n, n] the co-occurrences of these items, which have these places; the others -1."""
    entries, offsets = ragged_positions(gram.offsets, among)
    row, column = np.repeat(np.arange(len(among)), np.diff(offsets)), place[gram.items[entries]]
    inside = column >= 0
    dense = np.zeros((len(among), len(among)), np.float32)
    dense[row[inside], column[inside]] = counts[entries][inside]
    return torch.from_numpy(dense)
