"""Choose the optimizer of a phase."""

from __future__ import annotations

from hasten.config import TrainingOptions
from hasten.objectives.base import Phase
from hasten.ops.sharded_table import JoinedRows
from hasten.training.optimizers.adam import PhaseAdam
from hasten.training.optimizers.device_row_adam import DeviceJoinedRowAdam, DeviceRowAdam
from hasten.training.optimizers.joined_row_adam import JoinedRowAdam
from hasten.training.optimizers.row_adam import RowAdam
from hasten.training.optimizers.sharded_adam import ShardedAdam
from hasten.training.optimizers.sharded_row_adam import (
    ShardedDeviceJoinedRowAdam,
    ShardedDeviceRowAdam,
    ShardedJoinedRowAdam,
    ShardedRowAdam,
)
from hasten.training.optimizers.skipping_adam import SkippingAdam, respects_found_inf


def make_optimizer(phase: Phase, options: TrainingOptions, *, scaled: bool) -> PhaseAdam:
    """:class:`RowAdam` if it gives the same result at less cost, else :class:`PhaseAdam`.

    scaled: gradients are scaled (fp16), which only the latter supports. A table that is sharded
    over processes has :class:`ShardedRowAdam`, or :class:`ShardedAdam` if all rows have gradients.
    """
    parameters = list(phase.parameters())
    if phase.table is not None and phase.table.shard is not None:
        given = parameters, options, phase.table
        on_host = phase.table.on_device is None
        if isinstance(phase.table.shard, JoinedRows):
            joined = ShardedJoinedRowAdam if on_host else ShardedDeviceJoinedRowAdam
            return joined(*given, phase.table.shard)
        if phase.table.whole:
            return ShardedAdam(*given, phase.table.shard)
        return (ShardedRowAdam if on_host else ShardedDeviceRowAdam)(*given, phase.table.shard)
    device = parameters[0].device
    if phase.table is not None and not scaled and device.type in ("cpu", "cuda"):
        one, several = (
            (RowAdam, JoinedRowAdam)
            if device.type == "cpu"
            else (DeviceRowAdam, DeviceJoinedRowAdam)
        )
        if one.suits(phase.table, options):
            return (several if phase.table.others else one)(parameters, options, phase.table)
    dense = PhaseAdam if device.type != "mps" or respects_found_inf(device) else SkippingAdam
    return dense(parameters, options)
