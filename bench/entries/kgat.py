"""Graph recommenders: KGAT, LightGCN and the sparse product below them."""

from bench.harness import Entry, Side

KGAT = "python -m bench.kgat_side --threads {threads}"
SPMM = "python -m bench.spmm_side --threads {threads}"
LIGHTGCN = "python -m bench.lightgcn_side --threads {threads}"
_ML = "--data ml-100k-facts --layers 64 --batch-size 2048"
_PARTS = " ".join(
    f"--set data.{part}=ml-100k-facts.{part}.inter" for part in ("train", "valid", "test")
)
_FACTS = "--set data.kg=ml-100k-facts.kg --set data.links=ml-100k-facts.link"


def _spmm(part: str, what: str) -> Entry:
    return Entry(
        name=f"spmm-{part}",
        title=f"sparse-dense product, 6.4 M edges x 64, {what}",
        work=f"{what} of 6.4 million edges with a table of 184,166 x 64, fp32; the report of each "
        "side has the time of copying as many bytes beside it (floor_seconds). torch CSR: the "
        "kernel of torch.sparse.mm with a reduction; hasten: torch's embedding bag; both with a "
        "stored transpose.",
        plain=Side("torch CSR", f"{SPMM} --how csr --part {part}"),
        candidate=Side("hasten", f"{SPMM} --how hasten --part {part}"),
    )


ENTRIES = (
    Entry(
        name="kgat-amazon-book",
        title="KGAT, Amazon-book, generated facts, fp32",
        work="An epoch of pairs (638 steps), edges (3,123 steps) and one update of the attention, "
        "from some steps of each, on 70,679 users, 113,487 entities, 39 relations, 652,514 real "
        "pairs and 2.56 million made facts (6.4 million edges in both directions): D 64, layers "
        "64, 32, 16, bi-interaction, message dropout 0.1, batches of 1,024 pairs and 2,048 edges, "
        "fp32. KGAT-pytorch: its model (COO products, a relation's matrix for every edge), given "
        "the plain side's batches. Plain PyTorch: CSR products with a stored transpose, the last "
        "layer for the nodes of the batch, one matrix product per relation, fused Adam. hasten's "
        "steps of edges are timed after 120 others.",
        published=Side("KGAT-pytorch", f"{KGAT} --how published --steps 2"),
        plain=Side("plain PyTorch, CSR", f"{KGAT} --how plain --steps 6"),
        candidate=Side("hasten", f"{KGAT} --how hasten --steps 12"),
    ),
    Entry(
        name="kgat-ml-100k",
        title="KGAT, ml-100k with its knowledge graph, one layer of 64",
        work="An epoch of all pairs, all triples and the attention: 80,024 pairs (80/10/10 by "
        "user, fixed), 91,631 triples, D 64, one layer, batches of 2,048 pairs. hasten and plain "
        "PyTorch take all edges of the graph in both directions through the translation phase, "
        "4,096 a step, RecBole the triples alone, 2,048 a step.",
        published=Side(
            "RecBole 1.2.1",
            ".venvs/recbole/bin/python -m bench.recbole_side.kgat --epochs 1 --threads {threads}",
        ),
        plain=Side("plain PyTorch, CSR", f"{KGAT} --how plain {_ML}"),
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
        work="Steps on 70,679 users, 24,915 items and 652,514 pairs: three layers of 64, batches "
        "of 2,048 (319 steps an epoch), fp32; every side draws its batches in its time. "
        "LightGCN-PyTorch: the authors' epoch with fewer pairs, three COO products a step. Plain "
        "PyTorch: two CSR products in Horner's form, the last layer for the nodes of the batch, "
        "fused Adam. hasten sums neighbors by torch's embedding bag.",
        published=Side("LightGCN-PyTorch", f"{LIGHTGCN} --how published --steps 6"),
        plain=Side("plain PyTorch, CSR", f"{LIGHTGCN} --how plain --steps 25"),
        candidate=Side("hasten", f"{LIGHTGCN} --how hasten --steps 60"),
    ),
)
