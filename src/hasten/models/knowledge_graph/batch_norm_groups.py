"""Groups of queries that share BatchNorm statistics (ghost batch norm)."""

from __future__ import annotations

from hasten.config import TrainingOptions
from hasten.errors import ConfigurationError


def check_groups(training: TrainingOptions, group: int) -> None:
    """Raise ConfigurationError if the batch or micro-batch does not fit groups of this size."""
    if training.batch_size < 2:
        raise ConfigurationError(
            "training.batch_size=1: BatchNorm cannot estimate a variance from one query; "
            "give at least 2"
        )
    groups = -(-training.batch_size // group)
    if training.accumulate > groups:
        raise ConfigurationError(
            f"training.accumulate={training.accumulate}: a batch of {training.batch_size} is "
            f"{groups} group(s) of {group} queries that share BatchNorm statistics and "
            "are not divided; give a larger batch, or a smaller model.group"
        )


def group_sizes(count: int, group: int) -> list[int]:
    """Sizes of the BatchNorm groups. A single query at the end joins the group before it."""
    sizes = [group] * (count // group)
    remainder = count % group
    if remainder == 1 and sizes:
        sizes[-1] += 1
    elif remainder:
        sizes.append(remainder)
    return sizes
