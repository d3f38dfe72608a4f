"""A layer of HGT at the size of the guide's graph, beside PyTorch Geometric."""

from bench.harness import Entry, Side

SIDE = "python -m bench.edge_attention_side --threads {threads}"

ENTRIES = (
    Entry(
        name="hgt-layer",
        title="a layer of HGT, 66,903 nodes, 200,000 edges of 30 types, 512 to 256",
        work="forward and backward of one layer with 8 heads in fp32 on a made graph of 10 node "
        "types; PyG's linear map of each type is one product, which is faster there than what it "
        "does without pyg-lib",
        baseline=Side("PyG HGTConv", f"{SIDE} --how pyg --steps 2"),
        candidate=Side("hasten", f"{SIDE} --how hasten --steps 5"),
    ),
)
