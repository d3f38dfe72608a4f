"""Row-wise Adam that treats several tables, such as those of users and items, as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from hasten.config import TrainingOptions
from hasten.objectives.base import Batch
from hasten.ops.table_rows import TableRows
from hasten.training.optimizers.row_adam import ROW_FIELDS, RowAdam


class JoinedRowAdam(RowAdam):
    """:class:`.RowAdam` of the tables of one :class:`.TableRows`, the only parameters of a phase.

    Their memory becomes consecutive, in place, so that one tensor [N, D] holds all rows. States are
    saved table by table, as those of Adam.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], options: TrainingOptions, table: TableRows
    ) -> None:
        self.tables = [table.weight, *table.others]
        assert all(a is b for a, b in zip(parameters, self.tables, strict=True)), "other parameters"
        joined = nn.Parameter(torch.cat([weight.detach() for weight in self.tables]))
        for weight, part in zip(self.tables, self._split(joined.detach()), strict=True):
            weight.data = part
        super().__init__([joined], options, replace(table, weight=joined, others=()))

    def _split(self, rows: Tensor) -> Sequence[Tensor]:
        """The rows of each table."""
        return torch.split(rows, [len(weight) for weight in self.tables])

    def gather_rows(self, batch: Batch) -> Tensor:
        same_memory = self.tables[0].data_ptr() == self.weight.data_ptr()
        assert same_memory, "the tables were moved to other memory"
        return super().gather_rows(batch)

    def tensors(self) -> tuple[dict[str, Tensor], dict[nn.Parameter, Tensor]]:
        joined, weights = super().tensors()
        state: dict[str, Tensor] = {}
        for key, value in joined.items():
            field = key.partition(".")[2]
            parts = self._split(value) if field in ROW_FIELDS else [value] * len(self.tables)
            state.update({f"{number}.{field}": part for number, part in enumerate(parts)})
        (weight,) = weights.values()
        return state, dict(zip(self.tables, self._split(weight), strict=True))

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        joined: dict[str, Tensor] = {}
        for key, value in tensors.items():
            number, field = key.split(".", 1)
            if number == "0":
                parts = [tensors[f"{n}.{field}"] for n in range(len(self.tables))]
                joined[key] = torch.cat(parts) if field in ROW_FIELDS else value
        super().load(joined)
