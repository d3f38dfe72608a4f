"""The features of events as a part of the input of a sequential model.

The input of an event with the categories ``c`` and the standardized numbers ``z`` is

    x = √D · item + Σ_c C[c] + Σ_k z_k W_k

where ``C`` has a row for each value of each categorical column and one for its missing values, and
``W`` one for each numeric column, whose missing numbers are 0: the mean of the training events.
Both are one table (:class:`~hasten.data.event_features.EventEntries`). Features of the event that
is to be predicted are no input: they are known only once it has happened.
"""

from __future__ import annotations

from torch import Tensor

from hasten.ops.table import EmbeddingTable


class EventInputs(EmbeddingTable):
    """The table of categories and numbers [V, D]."""

    def forward(self, features: tuple[Tensor, Tensor]) -> Tensor:
        """[T, D] what the features of T events add to their inputs.

        features: int64 rows and float32 factors, both [T, C].
        """
        total = None
        for value, weight in zip(features[0].unbind(1), features[1].unbind(1), strict=True):
            term = self.rows(value) * weight[:, None].to(self.weight.dtype)
            total = term if total is None else total + term
        assert total is not None
        return total
