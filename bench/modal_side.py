"""MMGCN and DRAGON at the size of Amazon-Baby, TikTok or Music4All: optimiser steps.

    python -m bench.modal_side --how hasten --model mmgcn --data baby --steps 5 --threads 2

A "step" of the report is one optimiser step, an "epoch" all training pairs. The plain side is given
its batches for free; hasten's draws them in its time. What an epoch spends on drawing, and what
an evaluation of the validation part costs, with few metrics and with many, is timed apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import torch

from bench.baby_features import modal_dataset
from bench.plain_dragon import PlainDRAGON
from bench.plain_mmgcn import PlainMMGCN
from bench.report import Stopwatch, print_report
from hasten.config import EvaluationOptions, ModelOptions, TrainingOptions
from hasten.data.tables import TRAIN, VALID, Dataset
from hasten.evaluation.protocols import ranking_task
from hasten.evaluation.ranker import evaluate
from hasten.models.interface import Model, Sizes
from hasten.models.multimodal.dragon import DRAGON, DRAGONOptions
from hasten.models.multimodal.mmgcn import MMGCN, MMGCNOptions
from hasten.objectives.multimodal import MultimodalPhase
from hasten.runs.allocator import tune_process
from hasten.training.compile import compile_step
from hasten.training.precision import Precision
from hasten.training.step import DataShard, OptimizerStep

CPU = torch.device("cpu")
#: what the MMGCN guide has judged, and what it starts from
METRICS = {
    "evaluation": ("recall@20", "ndcg@20"),
    "evaluation_of_all": tuple(
        f"{name}@{k}" for name in ("recall", "ndcg", "precision", "map") for k in (5, 10, 20, 50)
    ),
}
RATES = {"mmgcn": 1e-3, "dragon": 1e-4}


def hasten_step(
    dataset: Dataset, model: str, batch: int, precision: str, ids: str, compiled: bool
) -> tuple[Callable[[int], float], dict[str, Callable[[], object]], dict[str, Any]]:
    """A step; what an epoch spends on drawing its batches, and two evaluations; what compiling did.

    compiled: as ``--compile auto``, kept only where it is faster.
    """
    made: MMGCN | DRAGON
    options: ModelOptions
    if model == "mmgcn":
        options = MMGCNOptions(ids="frozen" if ids == "frozen" else "trainable")
        made = MMGCN(options, Sizes.of(dataset))
    else:
        options = DRAGONOptions()
        made = DRAGON(options, Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    (phase,) = made.phases(dataset, training)
    assert isinstance(phase, MultimodalPhase)
    made.train()
    how = Precision("bf16" if precision == "bf16" else "fp32", CPU)
    step = OptimizerStep(phase, 0, training, how, DataShard(), CPU)
    report = compile_step(step, "auto", 0).to_json() if compiled else {}
    rate, steps = RATES[model], phase.steps()

    def draw() -> None:
        """As the steps do: once to encode, once for the loss."""
        for index in range(steps):
            drawn = phase.plan(0, 1, index)
            for _ in range(2):
                phase.pairs(drawn, drawn.ids)

    beside: dict[str, Callable[[], object]] = {"sampling": draw}
    if VALID in dataset.part:
        task = ranking_task(dataset, VALID, EvaluationOptions(mask_history=True), 0)
        for name, metrics in METRICS.items():
            beside[name] = partial(evaluate, cast(Model, made), task, metrics, device=CPU)

    def one(index: int) -> float:
        return float(step(phase.plan(0, index // steps, index % steps), rate)["loss"])

    return one, beside, report


def plain_step(
    dataset: Dataset, model: str, batch: int, precision: str, ids: str
) -> Callable[[int], float]:
    made = PlainMMGCN(dataset) if model == "mmgcn" else PlainDRAGON(dataset)
    if ids == "frozen" and isinstance(made, PlainMMGCN):
        for name, parameter in made.named_parameters():
            parameter.requires_grad_("ids" not in name and "users" not in name)
    trained = [p for p in made.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trained, RATES[model], fused=True)
    kept = dataset.part == TRAIN
    user = torch.from_numpy(dataset.interactions.user[kept])
    item = torch.from_numpy(dataset.interactions.item[kept])
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(user)))

    def step(index: int) -> float:
        begin = index * batch % max(1, len(order) - batch)
        of = order[begin : begin + batch]
        other = torch.randint(len(dataset.items), of.shape)
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = made.loss(user[of], item[of], other)
        torch.autograd.backward(loss)
        optimiser.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain"))
    parser.add_argument("--model", default="mmgcn", choices=("mmgcn", "dragon"))
    parser.add_argument("--data", default="baby", choices=("baby", "tiktok", "music4all"))
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured")
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--ids", default="trainable", choices=("trainable", "frozen"))
    parser.add_argument("--compile", action="store_true", help="hasten's side, if it is faster")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dataset = modal_dataset(options.data)
    chosen = (options.model, options.batch_size, options.precision, options.ids)
    beside: dict[str, Callable[[], object]] = {}
    more: dict[str, Any] = {}
    if options.how == "hasten":
        step, beside, report = hasten_step(dataset, *chosen, options.compile)
        more = {"compile": report} if report else {}
    else:
        step = plain_step(dataset, *chosen)
    clock, losses = Stopwatch(), []
    for index in range(options.steps + 1):
        if index == 1:  # the first one warms up, and makes what is constant
            clock.restart()
        losses.append(step(index))
    wall, cpu = clock.seconds()
    for name, once in beside.items():
        clock.restart()
        once()
        more[f"{name}_seconds"], more[f"{name}_cpu_seconds"] = clock.seconds()
    pairs = int((dataset.part == TRAIN).sum())
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=-(-pairs // options.batch_size),
        examples_per_epoch=pairs,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=losses[-1],
        **more,
    )


if __name__ == "__main__":
    main()
