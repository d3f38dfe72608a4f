"""One layer of interval attention, forward and backward, in three formulations.

    python -m bench.interval_attention_side --how gathered --rows 128 --length 200 --threads 2

A "step" is one call with its gradients, the intervals included; an "epoch" of the report is one
step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bench.plain_interval_attention import future_mask, gathered, intervals, written_out
from bench.report import Stopwatch, print_report
from hasten.ops.attention.interval_attention import find_intervals, interval_attention
from hasten.ops.buckets import Bucket

PLAIN: dict[str, Callable[..., Tensor]] = {"written-out": written_out, "gathered": gathered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="hasten", choices=("hasten", *PLAIN))
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--span", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3, help="steps that are measured")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    rows, length, width, span = options.rows, options.length, options.width, options.span
    shapes = [(rows, length, width)] * 3 + [(span + 1, width)] * 2
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    times = torch.randint(0, 20, (rows, length)).cumsum(1)
    upper, future = torch.randn(rows, length, width), future_mask(length)
    buckets = [Bucket(0, rows, length)]

    def ours() -> Tensor:
        query, key, value = (x.view(-1, width) for x in leaves[:3])
        found = find_intervals(times.view(-1), buckets, span)
        key_table, value_table = leaves[3:]
        out = interval_attention(
            query, key, value, key_table, value_table, found, 1, 0.0, training=True
        )
        return out.view(rows, length, width)

    def plain() -> Tensor:
        return PLAIN[options.how](*leaves, intervals(times, times[:, None], span), future)

    attend = ours if options.how == "hasten" else plain
    clock, losses = Stopwatch(), []
    for step in range(options.steps + 1):
        if step == 1:  # the first one warms up
            clock.restart()
        total = (attend() * upper).sum()
        torch.autograd.grad(total, leaves)
        losses.append(total.item())
    wall, cpu = clock.seconds()
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=1,
        examples_per_epoch=rows * length,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=losses[-1],
    )


if __name__ == "__main__":
    main()
