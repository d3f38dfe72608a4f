"""One layer of interval attention, forward and backward: written out, or by bins.

    python -m bench.interval_attention_side --how bins --rows 128 --length 200 --threads 2

A "step" is one call with its gradients; an "epoch" of the report is one step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor

from bench.report import Stopwatch, print_report
from hasten.ops.attention.interval_attention import (
    find_intervals,
    interval_attention,
    interval_attention_reference,
)
from hasten.ops.buckets import Bucket


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--how", default="bins", choices=("bins", "written-out"))
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--width", type=int, default=50)
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--span", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3, help="steps that are measured")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    tokens, heads = options.rows * options.length, options.heads
    shapes = [(tokens, options.width)] * 3 + [(options.span + 1, options.width)] * 2
    leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
    times = torch.randint(0, 20, (options.rows, options.length)).cumsum(1).view(-1)
    upper = torch.randn(tokens, options.width)
    buckets = [Bucket(0, options.rows, options.length)]

    def by_bins() -> Tensor:
        query, key, value, keys, values = leaves
        intervals = find_intervals(times, buckets, options.span)
        return interval_attention(
            query, key, value, keys, values, intervals, heads, 0.0, training=True
        )

    def written_out() -> Tensor:
        query, key, value, keys, values = leaves
        return interval_attention_reference(query, key, value, keys, values, times, buckets, heads)

    attend: Callable[[], Tensor] = by_bins if options.how == "bins" else written_out
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
        examples_per_epoch=tokens,
        versions={"torch": torch.__version__},
        threads=options.threads,
        loss=losses[-1],
    )


if __name__ == "__main__":
    main()
