"""HGT at the size of the guide's graph, beside PyTorch Geometric: a layer, its edges, a step."""

from bench.harness import Entry, Side

SIDE = "python -m bench.edge_attention_side --threads {threads}"
STEP = "python -m bench.hgt_side --threads {threads}"
FAIR = (
    "Without pyg-lib PyG's linear map of every edge type copies the whole gradient once a type; "
    "its side has one product a type instead (bench/pyg_hgt.py), the same numbers in a fraction "
    "of the time."
)


def _layer(part: str, what: str) -> Entry:
    name = "hgt-layer" if part == "layer" else f"hgt-layer-{part}"
    return Entry(
        name=name,
        title=f"HGT, {what}, 66,903 nodes, 200,000 edges of 30 types, width 512 to 256",
        work="forward and backward of one layer with 8 heads in fp32 on a made graph of 10 node "
        f"types: {what}. An epoch is one pass. {FAIR}",
        plain=Side(
            "PyG HGTConv, its per-type linear map replaced by a faster one",
            f"{SIDE} --how pyg --part {part} --steps 2",
        ),
        candidate=Side("hasten", f"{SIDE} --how hasten --part {part} --steps 3"),
    )


def _installed(part: str, what: str) -> Entry:
    return Entry(
        name=f"hgt-installed-{part}",
        title=f"HGT, {what}, 66,903 nodes, 200,000 edges of 30 types, width 512 to 256",
        work=f"HGT, {what}, as in hgt-layer. PyG 2.8.1 without pyg-lib, as `pip install "
        "torch_geometric` leaves it: its map of edge types copies the whole gradient once a type "
        "and head. An epoch is one pass.",
        published=Side(
            "PyG HGTConv from pip, without pyg-lib",
            f"{SIDE} --how pyg-as-shipped --part {part} --steps 2",
        ),
        candidate=Side("hasten", f"{SIDE} --how hasten --part {part} --steps 3"),
    )


def _step(name: str, what: str, options: str) -> Entry:
    return Entry(
        name=f"hgt-step-{name}",
        title=f"HGT, training step, {what}",
        work="66,903 nodes, 100,000 links of 15 relations passing messages both ways (30 edge "
        "types, 200,000 edges), width 512, hidden 256, 2 layers, 8 heads, fp32; an epoch is one "
        f"optimizer step. hasten: {what}, at most a fifth of a relation's links scored against 64 "
        "drawn ends a side, vectors of every node trained. PyG: the guide's step, 5,000 edges of "
        "each type in four shares, a whole forward and backward pass each, one drawn pair an "
        f"edge, a constant a type as input. No contrast on either side. {FAIR} For memory PyG's "
        "side runs one share: the others take no more.",
        published=Side(
            "PyG HGTConv, the MPS guide's step: four shares of edges, a full pass each",
            f"{STEP} --how pyg --warm 1 --steps 1",
            for_memory="--passes 1",
        ),
        candidate=Side("hasten", f"{STEP} --how hasten {options} --warm 2 --steps 3"),
    )


ENTRIES = (
    _layer("layer", "one layer"),
    _installed("layer", "one layer"),
    _installed("edges", "one layer without the linear maps of nodes"),
    _layer("edges", "one layer without the linear maps of nodes"),
    _step("full", "full graph, activation checkpointing", "--mode full --recompute"),
    _step("kept", "full graph", "--mode full"),
    _step(
        "edges",
        "neighbor sampling in four micro-batches, fan-out 2 per relation",
        "--mode edges --fan-out 2 --accumulate 4",
    ),
)
