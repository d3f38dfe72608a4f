"""MMGCN and DRAGON at the size of Amazon-Baby: real pairs, features from a seed."""

from bench.harness import Entry, Side

SIDE = "python -m bench.modal_side --threads {threads}"
WORK = (
    "Optimiser steps on the 118,551 training pairs of Amazon-Baby (19,445 users, 7,050 items), "
    "features of 4,096 and 384 dimensions drawn from a seed, batches of 2,048 pairs, D 64, fused "
    "Adam, {what}. The plain side gathers a row for every edge and scatters them, in every layer "
    "and modality; its batches are drawn outside the time, ours within. An epoch is extrapolated "
    "from {steps} steps."
)


def _entry(model: str, also: str, what: str, steps: tuple[int, int], column: str) -> Entry:
    options = f"--model {model} --data baby {also}".strip()
    plain, ours = (f"{options} --steps {count}" for count in steps)
    name = f"{model}-baby" + (f"-{also.rsplit(maxsplit=1)[-1]}" if also else "")
    return Entry(
        name=name,
        title=f"{model.upper()}, Amazon-Baby size, {what}",
        work=WORK.format(what=what, steps=f"{steps[0]} and {steps[1]}"),
        baseline=Side("plain PyTorch, gather and scatter", f"{SIDE} --how plain {plain}"),
        candidate=Side("hasten", f"{SIDE} --how hasten {ours}"),
        column=column,
    )


ENTRIES = (
    _entry("mmgcn", "", "ids trained, fp32", (4, 10), "exact"),
    _entry("mmgcn", "--ids frozen", "ids frozen, fp32", (4, 10), "exact"),
    _entry("mmgcn", "--precision bf16", "ids trained, bf16", (4, 10), "bf16"),
    _entry("dragon", "", "fp32", (4, 10), "exact"),
    _entry("dragon", "--precision bf16", "bf16", (4, 10), "bf16"),
)
