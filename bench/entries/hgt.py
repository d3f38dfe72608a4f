"""HGT at the size of the guide's graph: a layer, its edges, a training step."""

from bench.harness import Entry, Side

GRAPH = "66,903 nodes, 200,000 edges of 30 types"
PYG = "PyG 2.8.1 HGTConv from pip, without pyg-lib"
PLAIN = "plain PyTorch, edges sorted by relation, one matrix product per relation"
LAYER = "python -m bench.edge_attention_side --threads {threads}"
STEP = "python -m bench.hgt_side --threads {threads}"
MODEL = (
    f"HGT with 2 layers, hidden 256, 8 heads, width 512, vectors of every node, fp32, on {GRAPH}. "
    "A step scores 1,333 links of each of 15 relations against 64 drawn nodes of each type; the "
    "other links pass messages both ways. An epoch is one optimizer step with fused Adam."
)


def _layer(part: str, what: str) -> Entry:
    return Entry(
        name="hgt-layer" if part == "layer" else f"hgt-layer-{part}",
        title=f"HGT, {what}, {GRAPH}, width 512 to 256",
        work="Forward and backward of one layer with 8 heads in fp32 on a made graph of 10 node "
        f"types: {what}. An epoch is one pass.",
        published=Side(PYG, f"{LAYER} --how pyg --part {part} --steps 1"),
        plain=Side(PLAIN, f"{LAYER} --how plain --part {part} --steps 3"),
        candidate=Side("hasten", f"{LAYER} --how hasten --part {part} --steps 3"),
    )


ENTRIES = (
    _layer("layer", "one layer"),
    _layer("edges", "one layer without the linear maps of nodes"),
    Entry(
        name="hgt-step",
        title="HGT, training step, one pass on every side",
        work=f"{MODEL} Every side encodes the graph once a step, forward and backward.",
        published=Side(PYG, f"{STEP} --how pyg --warm 1 --steps 1"),
        plain=Side(PLAIN, f"{STEP} --how plain --warm 1 --steps 3"),
        candidate=Side("hasten", f"{STEP} --how hasten --mode full --warm 1 --steps 3"),
    ),
    Entry(
        name="hgt-step-shares",
        title="HGT, training step in four shares: a pass for each, and hasten's one pass",
        work=f"{MODEL} The links of a step are scored in four shares. As in the MPS guide the "
        "other sides encode the graph for every share; hasten encodes it once for all four. PyG's "
        "step is four times one pass.",
        published=Side(PYG, f"{STEP} --how pyg --passes 4 --warm 1 --steps 1"),
        plain=Side(PLAIN, f"{STEP} --how plain --passes 4 --warm 1 --steps 4"),
        candidate=Side(
            "hasten", f"{STEP} --how hasten --mode full --accumulate 4 --warm 1 --steps 3"
        ),
    ),
)
