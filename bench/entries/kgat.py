"""KGAT on a graph of the size of Amazon-book: real pairs, made facts, 6.4 million edges."""

from bench.harness import Entry, Side

SIDE = "python -m bench.kgat_side --threads {threads}"
WORK = (
    "{part} on 70,679 users, 113,487 entities, 39 relations, 652,514 real pairs and 2.56 million "
    "made facts (6.4 million edges in both directions): D 64, layers 64, 32, 16, bi-interaction, "
    "message dropout 0.1, batches of 1,024 pairs and 2,048 edges, fused Adam, {precision}. The "
    "plain side propagates by a sparse COO matrix, normalises all nodes and gathers a relation's "
    "matrix for every edge; its batches are drawn outside the time, ours within. An epoch is "
    "extrapolated from {steps} steps."
)


def _entry(part: str, what: str, steps: tuple[int, int], precision: str = "fp32") -> Entry:
    low = precision != "fp32"
    also = f" --precision {precision}" if low else ""
    plain, ours = (f"--part {part} --steps {count}{also}" for count in steps)
    return Entry(
        name=f"kgat-{part}" + (f"-{precision}" if low else ""),
        title=f"KGAT, Amazon-book size, {what}, {precision}",
        work=WORK.format(part=what, precision=precision, steps=f"{steps[0]} and {steps[1]}"),
        baseline=Side("plain PyTorch, COO", f"{SIDE} --how plain {plain}"),
        candidate=Side("hasten", f"{SIDE} --how hasten {ours}"),
        column="bf16" if low else "exact",
    )


ENTRIES = (
    _entry("pairs", "pairs", (2, 5)),
    _entry("edges", "edges", (20, 60)),
    _entry("refresh", "attention", (1, 3)),
)
