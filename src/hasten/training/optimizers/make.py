"""Choose the optimizer of a phase."""

from __future__ import annotations

from hasten.config import TrainingOptions
from hasten.objectives.base import Phase
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.optimizers.skipping_adam import SkippingAdam, respects_found_inf


def make_optimizer(phase: Phase, options: TrainingOptions, *, scaled: bool) -> PhaseAdam:
    """:class:`RowAdam` if it gives the same result at less cost, else :class:`PhaseAdam`.

    scaled: gradients are scaled (fp16), which only the latter supports.
    """
    parameters = list(phase.parameters())
    if phase.table is not None and not scaled and RowAdam.suits(phase.table, options):
        return RowAdam(parameters, options, phase.table)
    device = parameters[0].device
    kind = PhaseAdam if device.type != "mps" or respects_found_inf(device) else SkippingAdam
    return kind(parameters, options)
