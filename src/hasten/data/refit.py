"""Add the validation part to the training part (refit on train + validation)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hasten.data.tables import TRAIN, VALID, AnyDataset, KnowledgeGraph
from hasten.errors import DataError


def require_validation(dataset: AnyDataset) -> None:
    """Raise DataError if there is no validation part."""
    if not (dataset.part == VALID).any():
        raise DataError(f"{dataset.name}: data.refit=true, but there is no validation part")


def refitted(dataset: AnyDataset) -> AnyDataset:
    """The dataset with its validation part moved into the training part; test stays as it is.

    Raises:
        DataError: there is no validation part.
    """
    require_validation(dataset)
    moved = dataset.part == VALID
    part = np.where(moved, TRAIN, dataset.part).astype(np.int8)
    note = f"{int(moved.sum()):,} of validation are trained on (data.refit)"
    source = dataset.source.plus([note], train=int(np.sum(part == TRAIN)), valid=0)
    split = f"{dataset.split}, refitted on train and validation"
    if isinstance(dataset, KnowledgeGraph):
        misses = dataset.rank_last & ~moved
        return replace(dataset, part=part, split=split, source=source, rank_last=misses)
    return replace(dataset, part=part, split=split, source=source)
