"""MMGCN's published loss and ours trained in half precision on a device."""

from __future__ import annotations

from functools import partial
from statistics import fmean
from typing import Any

import torch

from experiments.loss_precision import published_loss, small_gallery, stable_loss, train

#: losses of other seeds ended this far apart, experiments/loss-precision.json
_APART = 0.6


def losses(device: torch.device, steps: int = 120) -> dict[str, Any]:
    """Ours stays finite in every precision and near fp32; the published one does not in fp16.

    On CUDA the published one is cast by autocast, as where it was seen; elsewhere by hand.
    """
    kind = None if device.type == "cuda" else torch.float16
    dataset = small_gallery()
    found: dict[str, dict[str, Any]] = {}
    for how in ("fp32", "fp16", "bf16"):
        found[f"ours, {how}"] = train(dataset, how, stable_loss, 0, steps, device)
    theirs = train(dataset, "fp16", partial(published_loss, kind=kind), 0, steps, device)
    ends = {
        name: fmean(run["losses"][-20:])
        for name, run in found.items()
        if run["first_step_not_finite"] is None
    }
    near = len(ends) == 3 and all(abs(end - ends["ours, fp32"]) < _APART for end in ends.values())
    found["published, fp16"] = theirs
    shown = {
        name: {key: value for key, value in run.items() if not isinstance(value, list)}
        for name, run in found.items()
    }
    return {
        "passed": near and theirs["first_step_not_finite"] is not None,
        "mean_of_the_last_20": ends,
        "runs": shown,
    }
