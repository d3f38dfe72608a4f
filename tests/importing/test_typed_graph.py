"""HGT with PyTorch Geometric's HGTConv gives the same embeddings after import."""

from __future__ import annotations

import warnings

import pyarrow.csv
import pytest
import torch
from torch import nn

from hasten.data.graph.node_types import NodeTypes
from hasten.data.samples.typed_graph import make_medicine
from hasten.data.tables import TRAIN
from hasten.errors import CheckpointError
from tests.importing.scores import imported

HIDDEN, WIDTH = 8, 12
ENDS = {
    "protein_protein": ("gene/protein", "gene/protein"),
    "pathway_protein": ("pathway", "gene/protein"),
    "disease_protein": ("disease", "gene/protein"),
    "drug_protein": ("drug", "gene/protein"),
    "indication": ("drug", "disease"),
}


class Script(nn.Module):
    def __init__(self, conv, types, kinds):
        super().__init__()
        self.lin_dict = nn.ModuleDict({name: nn.Linear(1, HIDDEN) for name in types})
        self.convs = nn.ModuleList(conv(HIDDEN, HIDDEN, (types, kinds), 2) for _ in range(2))
        self.lin = nn.Linear(HIDDEN, WIDTH)

    def forward(self, sizes, edges):
        x = {name: self.lin_dict[name](torch.ones(n, 1)) for name, n in sizes.items()}
        for conv in self.convs:
            x = {name: rows.relu() for name, rows in conv(x, edges).items()}
        return {name: self.lin(rows) for name, rows in x.items()}


@pytest.fixture
def script(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pyg = pytest.importorskip("torch_geometric.nn", reason="torch_geometric is not installed")
    kinds = [(a, name, b) for name, (a, b) in ENDS.items()]
    kinds += [(b, name, a) for a, name, b in kinds if a != b]
    (tmp_path / "kinds.txt").write_text("\n".join("__".join(kind) for kind in kinds))
    types = ["pathway", "gene/protein", "drug", "disease"]
    torch.manual_seed(0)
    model = Script(pyg.HGTConv, types, kinds)
    for name, parameter in model.named_parameters():
        if "skip" in name or "p_rel" in name:
            nn.init.uniform_(parameter, 0.2, 1.5)
    return model.eval()


def test_embeddings(tmp_path, script):
    pyarrow.csv.write_csv(make_medicine(60).table, tmp_path / "kg.csv")
    rows = {"relations": f"order:{tmp_path / 'kinds.txt'}"}
    run = imported(tmp_path, script.state_dict(), "hgt", tmp_path / "kg.csv", rows)
    graph, types = run.dataset, NodeTypes.of(run.dataset)
    sizes = dict(zip(types.names, types.sizes.tolist(), strict=True))
    train, edges = graph.of(TRAIN), {}
    for number, name in enumerate(graph.relations.labels.to_pylist()):
        mine = train.relation == number
        ends = []
        for column, kind in ((train.head, types.source), (train.tail, types.target)):
            ends.append(torch.from_numpy(column[mine] - types.offsets[kind[number]]))
        one, other = (types.names[kind[number]] for kind in (types.source, types.target))
        pairs = torch.stack(ends)
        if one == other:  # stored in both directions, or in one
            pairs = torch.unique(torch.cat([pairs, pairs.flip(0)], 1), dim=1)
        else:
            edges[other, name, one] = pairs.flip(0)
        edges[one, name, other] = pairs
    edges = {
        kind: edges[kind] for kind in script.convs[0].edge_types_map
    }  # HGTConv needs its order
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = script(sizes, edges)
    want = torch.cat([found[name] for name in types.names])
    torch.testing.assert_close(run.model.embed(), want, rtol=0, atol=1e-5)


def test_edge_types_of_the_data_must_be_in_the_weights(tmp_path, script):
    pyarrow.csv.write_csv(make_medicine(60).table, tmp_path / "kg.csv")
    weights = {
        name.replace("disease__indication", "disease__treated_by"): value
        for name, value in script.state_dict().items()
    }
    order = tmp_path / "kinds.txt"
    order.write_text(order.read_text().replace("disease__indication", "disease__treated_by"))
    with pytest.raises(CheckpointError, match="no edge type disease__indication__drug"):
        imported(tmp_path, weights, "hgt", tmp_path / "kg.csv", {"relations": f"order:{order}"})
