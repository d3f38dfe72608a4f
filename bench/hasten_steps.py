"""Some steps of hasten's training in this process, where an epoch is too long to measure whole.

    python -m bench.hasten_steps --model conve --data fb15k-237 --steps 200 --set data.unknown=keep

The steps are those of the first epoch of ``hasten train``, without evaluation and checkpoints.
"""

from __future__ import annotations

import argparse

import torch

from bench.data import GRAPHS, plain_file
from bench.report import Stopwatch, print_report
from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision, resolve_precision
from hasten.training.step import OptimizerStep


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="of one phase")
    parser.add_argument("--data", required=True, choices=tuple(GRAPHS))
    parser.add_argument("--steps", type=int, default=60, help="of the epoch, measured")
    parser.add_argument("--warm-up", type=int, default=5)
    parser.add_argument("--precision", default="fp32", choices=("fp32", "bf16"))
    parser.add_argument("--set", action="append", default=[], help="settings")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    path, device = str(plain_file(options.data)), torch.device("cpu")
    config = build_config(options.model, path, None, options.set, {})
    dataset = load_data(config, None)
    model = build_model(config, dataset, device)
    (phase,) = model.phases(dataset, config.training)
    model.train()
    precision = Precision(resolve_precision(options.precision, device), device)
    step = OptimizerStep(phase, 0, config.training, precision, DataParallelRank(), device)

    phase.start_epoch(config.seed, 0)

    def take(index: int) -> torch.Tensor:
        batch = phase.plan(config.seed, 0, index % phase.steps())
        return next(iter(step(batch, config.training.lr).values()))

    for index in range(options.warm_up):
        take(index)
    clock = Stopwatch()
    for index in range(options.warm_up, options.warm_up + options.steps):
        loss = take(index)
    wall, cpu = clock.seconds()
    batches = phase.steps()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=batches,
        examples_per_epoch=batches * config.training.batch_size,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=float(loss),
    )


if __name__ == "__main__":
    main()
