"""KGAT on a graph of the size of Amazon-book: real pairs, made facts, 6.4 million edges."""

from bench.harness import Entry, Side

SIDE = "python -m bench.kgat_side --threads {threads}"
WORK = (
    "{part} on 70,679 users, 113,487 entities, 39 relations, 652,514 real pairs and 2.56 million "
    "made facts (6.4 million edges in both directions): D 64, layers 64, 32, 16, bi-interaction, "
    "message dropout 0.1, batches of 1,024 pairs and 2,048 edges, fused Adam, {precision}. The "
    "plain side propagates by a sparse COO matrix, normalises all nodes and gathers a relation's "
    "matrix for every edge; its batches are drawn outside the time, ours within, and our steps of "
    "edges are timed after 120 others. An epoch is extrapolated from {steps} steps."
)


def _entry(part: str, what: str, steps: tuple[int, int], precision: str = "fp32") -> Entry:
    low = precision != "fp32"
    also = f" --precision {precision}" if low else ""
    plain, ours = (f"--part {part} --steps {count}{also}" for count in steps)
    return Entry(
        name=f"kgat-{part}" + (f"-{precision}" if low else ""),
        title=f"KGAT, Amazon-book, generated facts, {what}, {precision}",
        work=WORK.format(part=what, precision=precision, steps=f"{steps[0]} and {steps[1]}"),
        published=Side("plain PyTorch, COO", f"{SIDE} --how plain {plain}"),
        candidate=Side("hasten", f"{SIDE} --how hasten {ours}"),
        column="bf16" if low else "exact",
    )


SPMM = "python -m bench.spmm_side --threads {threads}"
LIGHTGCN = "python -m bench.lightgcn_side --threads {threads}"
_PARTS = " ".join(
    f"--set data.{part}=ml-100k-facts.{part}.inter" for part in ("train", "valid", "test")
)
_FACTS = "--set data.kg=ml-100k-facts.kg --set data.links=ml-100k-facts.link"


def _spmm(part: str, what: str) -> Entry:
    return Entry(
        name=f"spmm-{part}",
        title=f"sparse-dense product, 6.4 M edges x 64, {what}",
        work=f"{what} of 6.4 million edges with a table of 184,166 x 64, fp32; the report of each "
        "side has the time of copying as many bytes beside it (floor_seconds)",
        plain=Side("torch CSR", f"{SPMM} --how csr --part {part}"),
        candidate=Side("hasten", f"{SPMM} --how hasten --part {part}"),
    )


ENTRIES = (
    _entry("pairs", "recommendation phase", (2, 5)),
    _entry("edges", "translation phase", (20, 60)),
    _entry("refresh", "attention update", (1, 3)),
    Entry(
        name="kgat-epoch",
        title="KGAT, Amazon-book, generated facts, full epoch, fp32",
        work=WORK.format(
            part="all pairs, all edges and a refresh",
            precision="fp32",
            steps="3 (plain) and 50 (hasten) of each kind and one refresh",
        ),
        published=Side("plain PyTorch, COO", f"{SIDE} --how plain --part epoch --steps 3"),
        candidate=Side("hasten", f"{SIDE} --how hasten --part epoch --steps 50"),
    ),
    Entry(
        name="kgat-ml-100k-recbole",
        title="KGAT, ml-100k with its knowledge graph, one layer of 64",
        work="an epoch of all pairs, all triples and the attention: 80,024 pairs (80/10/10 by "
        "user, fixed), 91,631 triples, D 64, one layer, batch 2,048. hasten takes all edges of the "
        "graph in both directions through its translation phase, RecBole the triples alone.",
        published=Side(
            "RecBole 1.2.1",
            ".venvs/recbole/bin/python -m bench.recbole_side.kgat --epochs 2 --threads {threads}",
        ),
        candidate=Side(
            "hasten",
            "python -m bench.hasten_side --model kgat --data ml-100k-facts --threads {threads} "
            "--epochs 5 --batch-size 2048 --lr 1e-3 --set model.layers=64 "
            f"{_PARTS} {_FACTS}",
        ),
    ),
    _spmm("forward", "forward"),
    _spmm("both", "forward and backward"),
    Entry(
        name="lightgcn-amazon-book",
        title="LightGCN, Amazon-book, fp32",
        work="70,679 users, 24,915 items, 652,514 pairs: three layers of 64, batches of 2,048, "
        "fused Adam. The plain side takes three products of a sparse COO matrix with all nodes; "
        "its batches are drawn outside the time, hasten's within.",
        published=Side("plain PyTorch, COO", f"{LIGHTGCN} --how plain --steps 5"),
        candidate=Side("hasten", f"{LIGHTGCN} --how hasten --steps 20"),
    ),
)
