"""Sum the gradients of the rows that a step reads over processes, not the whole table's gradient.

Elsewhere the gradient is zero on all processes. Each knows the rows that its own examples read; an
all-gather of their ids makes them known to all. The order of summation is that of any all-reduce of
so many numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from hasten.objectives.base import Batch
from hasten.ops.table_rows import TableRows

#: least rows of a table for each that a step reads; with fewer the whole gradient is summed
MIN_TABLE_TO_TOUCHED_RATIO = 3


def touched_rows(
    table: TableRows | None,
    parameters: Sequence[Tensor],
    batch: Batch,
    union: Callable[[Tensor], Tensor],
) -> dict[int, Tensor]:
    """The rows with a gradient, int64 [S], by the number of the parameter; {} if they are many.

    union: of the ids of all processes. Optimizers that update rows have put the rows themselves
    among the parameters.
    """
    if table is None or table.shard is not None:
        return {}
    numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
    if id(table.weight) not in numbers:
        return {}
    rows_by_parameter, first = {}, 0
    ids = table.read(batch).to(table.weight.device, non_blocking=True)
    if table.reads_local and batch.local_micro_batches is not None:
        ids = union(ids)
    for weight in table.weights:
        stop = first + len(weight)
        start, end = torch.searchsorted(ids, ids.new_tensor([first, stop])).tolist()
        if MIN_TABLE_TO_TOUCHED_RATIO * (end - start) <= len(weight):
            rows_by_parameter[numbers[id(weight)]] = ids[start:end] - first
        first = stop
    return rows_by_parameter


def put_rows(parameter: Tensor, ids: Tensor, summed: Tensor) -> None:
    """Replace the rows of the gradient by their sums [S, D]."""
    whole = parameter.grad
    # None: a share without examples; one NaN for all elements: a step that ran out of memory
    if whole is None or not whole.is_contiguous():
        whole = parameter.grad = torch.zeros_like(parameter)
    whole.index_copy_(0, ids, summed)
