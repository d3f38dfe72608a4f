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


PLAIN = "plain PyTorch, gather and scatter"


def _entry(
    model: str,
    what: str,
    *,
    ids: str = "",
    precision: str = "",
    plain: str = "",
    column: str = "exact",
) -> Entry:
    """precision: ours, where it is not fp32; plain: that of the plain side."""
    options = f"--model {model} --data baby {ids}".strip()
    theirs = f"{options} {f'--precision {plain}' if plain else ''}".strip()
    ours = f"{options} {f'--precision {precision}' if precision else ''}".strip()
    short = ("-frozen" if ids else "") + (f"-{precision}" if precision else "")
    return Entry(
        name=f"{model}-baby{short}" + ("-both" if plain else ""),
        title=f"{model.upper()}, Amazon-Baby, random features, {what}",
        work=WORK.format(what=what, steps="4 and 10"),
        plain=Side(f"{PLAIN}, {plain or 'fp32'}", f"{SIDE} --how plain {theirs} --steps 4"),
        candidate=Side("hasten", f"{SIDE} --how hasten {ours} --steps 10"),
        column=column,
    )


ENTRIES = (
    _entry("mmgcn", "trainable ids, fp32"),
    _entry("mmgcn", "frozen ids, fp32", ids="--ids frozen"),
    _entry("mmgcn", "trainable ids, hasten in bf16", precision="bf16", column="bf16"),
    _entry("mmgcn", "trainable ids, bf16", precision="bf16", plain="bf16", column="bf16"),
    _entry("dragon", "fp32"),
    _entry("dragon", "hasten in bf16", precision="bf16", column="bf16"),
    _entry("dragon", "bf16", precision="bf16", plain="bf16", column="bf16"),
)
