"""MMGCN and DRAGON on TikTok, or at the size of Amazon-Baby or Music4All: optimizer steps.

    python -m bench.modal_side --how hasten --model mmgcn --data tiktok --steps 20 --threads 2

A "step" of the report is one optimizer step, its batch drawn in its time; an "epoch" is all
training pairs. What an epoch of hasten spends on drawing, and what an evaluation of the validation
part costs, with few metrics and with many, is timed apart.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch

from bench.baby_features import modal_dataset
from bench.data import plain_file
from bench.plain_batches import PairBatches
from bench.plain_dragon import PlainDRAGON
from bench.plain_mmgcn import PlainMMGCN
from bench.report import Stopwatch, print_report
from hasten.config import EvaluationOptions, FeatureOptions, TrainingOptions
from hasten.data.interactions.load_features import load_features
from hasten.data.tables import TRAIN, VALID, Dataset
from hasten.evaluation.protocols import ranking_task
from hasten.evaluation.ranker import evaluate
from hasten.models.interface import Model, Sizes
from hasten.models.multimodal.dragon import DRAGON, DRAGONOptions
from hasten.models.multimodal.mmgcn import MMGCN, MMGCNOptions
from hasten.models.multimodal.modal_data import training_pairs
from hasten.objectives.multimodal import MultimodalPhase
from hasten.runs.allocator import configure_process
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep

CPU = torch.device("cpu")
#: what the MMGCN guide has judged, and what it starts from
METRICS = {
    "evaluation": ("recall@20", "ndcg@20"),
    "evaluation_of_all": tuple(
        f"{name}@{k}" for name in ("recall", "ndcg", "precision", "map") for k in (5, 10, 20, 50)
    ),
}
RATES = {"mmgcn": 1e-3, "dragon": 1e-4}


def dataset_named(name: str) -> Dataset:
    """TikTok as it is; the others with features from a seed."""
    if name == "tiktok":
        return load_features(FeatureOptions(path=str(plain_file(name))), 0)
    return modal_dataset(name)


def hasten_step(
    dataset: Dataset, model: str, batch: int, ids: str
) -> tuple[Callable[[int], float], dict[str, Callable[[], object]]]:
    """A step; what an epoch spends on drawing its batches, and two evaluations."""
    made: MMGCN | DRAGON
    if model == "mmgcn":
        options = MMGCNOptions(ids="frozen" if ids == "frozen" else "trainable")
        made = MMGCN(options, Sizes.of(dataset))
    else:
        made = DRAGON(DRAGONOptions(), Sizes.of(dataset))
    training = TrainingOptions(batch_size=batch)
    (phase,) = made.phases(dataset, training)
    assert isinstance(phase, MultimodalPhase)
    made.train()
    step = OptimizerStep(phase, 0, training, Precision("fp32", CPU), DataParallelRank(), CPU)
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

    return one, beside


def plain_step(dataset: Dataset, model: str, batch: int, ids: str) -> Callable[[int], float]:
    plain: PlainMMGCN | PlainDRAGON
    plain = (
        PlainMMGCN(dataset, frozen=ids == "frozen") if model == "mmgcn" else PlainDRAGON(dataset)
    )
    plain.train()
    trained = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, RATES[model], fused=True)
    pairs = training_pairs(dataset)
    user, item = torch.from_numpy(pairs.rows), torch.from_numpy(pairs.items)
    batches = PairBatches(user, item, len(dataset.items), batch)

    def step(index: int) -> float:
        optimizer.zero_grad()
        loss = plain.loss(*batches.draw(index))
        torch.autograd.backward(loss)
        optimizer.step()
        return loss.item()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", "plain"))
    parser.add_argument("--model", default="mmgcn", choices=("mmgcn", "dragon"))
    parser.add_argument("--data", default="tiktok", choices=("tiktok", "baby", "music4all"))
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=5, help="steps that are measured")
    parser.add_argument("--ids", default="trainable", choices=("trainable", "frozen"))
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    configure_process()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    dataset = dataset_named(options.data)
    chosen = (options.model, options.batch_size, options.ids)
    beside: dict[str, Callable[[], object]] = {}
    if options.how == "hasten":
        step, beside = hasten_step(dataset, *chosen)
    else:
        step = plain_step(dataset, *chosen)
    clock, losses = Stopwatch(), []
    for index in range(options.steps + 1):
        if index == 1:  # the first one warms up, and makes what is constant
            clock.restart()
        losses.append(step(index))
    wall, cpu = clock.seconds()
    more: dict[str, Any] = {}
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
