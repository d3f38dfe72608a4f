"""Why MMGCN's published loss ends in NaN in half precision, and what the same loss does here.

    python -m experiments.loss_precision [--steps N]

Trains MMGCN on a small made data set with one and the same batches, weights and learning rate, by
each way of computing ``-log sigmoid(positive - negative)`` from the vectors of users and items:

- ``published``: scores stacked to pairs, times the constant matrix [[1], [-1]], then sigmoid, log
  and mean, all in float16. On CUDA autocast does the cast; here it is written out, because
  autocast on the CPU leaves the product in what the sum gave;
- ``published + 1e-8``: with the constant that is often added before the logarithm;
- hasten's: ``softplus(negative - positive)`` of float32 sums, the model in fp32, fp16 or bf16.

Writes ``experiments/loss-precision.json`` and, from it, ``docs/experiments/loss-precision.svg``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from bench.machine import ROOT, describe_machine
from hasten.config import TrainingOptions
from hasten.data.tables import Dataset
from hasten.models.interface import Sizes
from hasten.models.multimodal.mmgcn import MMGCN, MMGCNOptions
from hasten.objectives.multimodal import MultimodalPhase, bpr_loss
from hasten.ops.transfer import to_device
from hasten.training.precision import Precision

CPU = torch.device("cpu")
RESULT = ROOT / "experiments" / "loss-precision.json"
PLOT = ROOT / "docs" / "experiments" / "loss-precision.svg"
BATCH, RATE = 256, 0.1
Loss = Callable[[Tensor, Tensor, Tensor], Tensor]


def published_loss(
    user: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    kind: torch.dtype | None,
    epsilon: float = 0.0,
) -> Tensor:
    """The mean as it is written there, from the scores on in this precision; None: autocast's."""
    users = torch.stack([user, user], 1).view(-1, user.shape[1])
    items = torch.stack([positive, negative], 1).view(-1, user.shape[1])
    score = (users * items).sum(1).view(-1, 2)
    score = score if kind is None else score.to(kind)
    weight = torch.tensor([[1.0], [-1.0]], dtype=score.dtype, device=score.device)
    return -torch.mean(torch.log(torch.sigmoid(torch.matmul(score, weight)) + epsilon))


def stable_loss(user: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """The mean of the loss that hasten trains with."""
    return bpr_loss(user, positive, negative).mean()


def _published(kind: torch.dtype, epsilon: float = 0.0) -> Loss:
    return lambda u, i, j: published_loss(u, i, j, kind=kind, epsilon=epsilon)


#: name -> precision of the model, the loss, the seed of the weights
VARIANTS: dict[str, tuple[Any, Loss, int]] = {
    "hasten, fp32": ("fp32", stable_loss, 0),
    "hasten, fp32, seed 1": ("fp32", stable_loss, 1),
    "hasten, fp32, seed 2": ("fp32", stable_loss, 2),
    "hasten, fp16": ("fp16", stable_loss, 0),
    "hasten, bf16": ("bf16", stable_loss, 0),
    "published, fp16": ("fp16", _published(torch.float16), 0),
    "published + 1e-8, fp16": ("fp16", _published(torch.float16, 1e-8), 0),
    "published, fp32": ("fp32", _published(torch.float32), 0),
}


def small_gallery() -> Dataset:
    """The sample, smaller."""
    from dataclasses import replace

    from hasten.config import InteractionOptions
    from hasten.data.interactions.load import load_dataset
    from hasten.data.samples.features import make_gallery
    from hasten.data.tables import Modality

    made = make_gallery(150, 300, 1500)
    dataset = load_dataset(InteractionOptions(split="ratio", ratio_order="random"), 0, made.table)
    rows = np.asarray(dataset.items.labels)
    found = tuple(Modality.of(name, values[rows]) for name, values in made.features.items())
    return replace(dataset, modalities=found)


def build(dataset: Dataset, seed: int) -> tuple[MMGCN, MultimodalPhase]:
    torch.manual_seed(seed)
    options = MMGCNOptions(width=16, latent=24, ids="trainable", l2=0.0)
    model = MMGCN(options, Sizes.of(dataset))
    training = TrainingOptions(batch_size=BATCH)
    (phase,) = model.phases(dataset, training)
    assert isinstance(phase, MultimodalPhase)
    return model, phase


def train(
    dataset: Dataset,
    how: Any,
    loss_of: Loss,
    seed: int,
    steps: int,
    device: torch.device = CPU,
    rate: float = RATE,
) -> dict[str, Any]:
    """Losses and largest margins step by step, as a plain loop with autocast and a scaler."""
    model, phase = build(dataset, seed)
    model.to(device)
    precision = Precision(how, device)
    optimiser = torch.optim.Adam(model.parameters(), rate)
    losses, margins, seconds = [], [], []
    first: int | None = None
    skipped = 0
    for number in range(steps):
        batch = phase.plan(0, number // phase.steps(), number % phase.steps())
        begin = _seconds(device)
        optimiser.zero_grad()
        with precision.autocast():
            encoded = phase.encode(batch)
            pairs = to_device(phase.pairs(batch, batch.ids), device)
            vectors = model.pair_vectors(encoded, pairs)
            loss = loss_of(*vectors)
        precision.backward([loss], [1.0])
        finite = all(
            bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None
        )
        if precision.scaler is not None:
            precision.scaler.step(optimiser)
            precision.scaler.update()
            skipped += not finite
        else:
            optimiser.step()
        seconds.append(_seconds(device) - begin)
        user, positive, negative = (v.detach().double() for v in vectors)
        margin = (user * (positive - negative)).sum(1)
        losses.append(float(F.softplus(-margin).mean()))
        margins.append(float(margin.min()))
        if first is None and not torch.isfinite(loss):
            first = number
    return {
        "losses": [round(x, 5) if np.isfinite(x) else None for x in losses],
        "smallest_margins": [round(x, 2) if np.isfinite(x) else None for x in margins],
        "first_step_not_finite": first,
        "steps_skipped_by_the_scaler": skipped,
        f"{'' if device.type == 'cuda' else 'cpu_'}ms_a_step": round(
            1000 * float(np.median(seconds)), 1
        ),
        # what autograd keeps of the mixtures is half as large in 16 bits
        "bytes_between_layers": _activation_bytes(model, phase, precision),
    }


def _seconds(device: torch.device) -> float:
    """Of this process on the CPU; on the clock, once all is done, on a device."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _activation_bytes(model: MMGCN, phase: MultimodalPhase, precision: Precision) -> int:
    """Bytes that autograd keeps from the forward to the backward pass, parameters left out."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in own:
            kept[place] = tensor.untyped_storage().nbytes()
        return tensor

    batch = phase.plan(0, 0, 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t), precision.autocast():
        encoded = phase.encode(batch)
    del encoded
    return sum(kept.values())


def draw(record: dict[str, Any], path: Path) -> None:
    """The plot of what :func:`main` recorded."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    with mpl.rc_context({"svg.hashsalt": "hasten", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(7, 4))
        _lines(record, axes)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)


def _lines(record: dict[str, Any], axes: Any) -> None:
    plain = {"color": "0.75", "linewidth": 1}
    for name, found in record["variants"].items():
        values = [np.nan if x is None else x for x in found["losses"]]
        style = dict(plain) if "seed" in name else {"linewidth": 1.4}
        end = found["first_step_not_finite"]
        if end is not None:
            axes.plot(end, values[end], "x", color="black", markersize=8)
            if not name.startswith("published, fp32"):
                values = values[: end + 1]
        label = name if end is None else f"{name}: not finite at step {end}"
        axes.plot(values, label=label, **style)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("loss")
    axes.set_ylim(0, 3)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dataset = small_gallery()
    variants = {}
    for name, (how, loss_of, seed) in VARIANTS.items():
        variants[name] = train(dataset, how, loss_of, seed, options.steps)
        shown = {k: v for k, v in variants[name].items() if not isinstance(v, list)}
        print(name, shown, flush=True)
    record = {
        "steps": options.steps,
        "batch_size": BATCH,
        "learning_rate": RATE,
        "machine": describe_machine(),
        "versions": {"torch": torch.__version__},
        "variants": variants,
    }
    RESULT.write_text(json.dumps(record) + "\n")
    draw(record, PLOT)


if __name__ == "__main__":
    main()
