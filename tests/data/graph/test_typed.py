"""Typed graphs: formats, directions, split, filters, and what is refused with which words."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hasten.config import AnyDataOptions, TripleOptions, TypedGraphOptions
from hasten.data.detect import load_any
from hasten.data.graph.load import load_graph
from hasten.data.graph.node_types import NodeTypes, ids_of
from hasten.data.graph.random_splits import link_parts
from hasten.data.graph_store.prepare import prepare_graph
from hasten.data.overview import inspect
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TEST, TRAIN, VALID, Triples
from hasten.errors import DataError, UsageError

ENDS = [f"{end}_{what}" for end in "xy" for what in ("index", "id", "type", "name", "source")]
HEADER = ",".join(["relation", "display_relation", *ENDS])


def row(relation, x, y):
    (xt, xi, xn), (yt, yi, yn) = x, y
    return f"{relation},d,0,{xi},{xt},{xn},s,1,{yi},{yt},{yn},s"


def drug(i):
    return ("drug", str(i), f"Drug {i}")


def gene(i):
    return ("gene/protein", str(i), f"Gene {i}")


def kg(tmp_path, rows, name="kg.csv"):
    path = tmp_path / name
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def edges_of(graph):
    labels = graph.entities.labels.to_pylist()
    relations = graph.relations.labels.to_pylist()
    t = graph.triples
    return {
        (labels[h], relations[r], labels[o])
        for h, r, o in zip(t.head.tolist(), t.relation.tolist(), t.tail.tolist(), strict=True)
    }


#: the same id under two types, both directions of every edge, genes without direction
ROWS = [
    *(row("drug_protein", drug(i), gene(i % 3)) for i in range(6)),
    *(row("drug_protein", gene(i % 3), drug(i)) for i in range(6)),
    *(row("protein_protein", gene(i), gene((i + 1) % 3)) for i in range(3)),
    *(row("protein_protein", gene((i + 1) % 3), gene(i)) for i in range(3)),
]


def test_primekg_is_keyed_by_type_and_id_with_names_and_one_direction(tmp_path):
    graph = load_graph(TripleOptions(path=str(kg(tmp_path, ROWS)), ratios=(1, 0, 0)), 0)
    types = NodeTypes.of(graph)
    assert types.names == ("drug", "gene/protein")
    assert types.sizes.tolist() == [6, 3]
    assert graph.entities.labels.to_pylist()[0] == "drug::0"
    assert graph.entities.names.to_pylist()[:7] == [*(f"Drug {i}" for i in range(6)), "Gene 0"]
    assert ids_of(graph.entities.labels).to_pylist() == [
        "0",
        "1",
        "2",
        "3",
        "4",
        "5",
        "0",
        "1",
        "2",
    ]
    found = edges_of(graph)
    wanted = {(f"drug::{i}", "drug_protein", f"gene/protein::{i % 3}") for i in range(6)}
    genes = {
        (f"gene/protein::{a}", "protein_protein", f"gene/protein::{b}")
        for a in range(3) for b in range(3) if a != b
    }  # fmt: skip
    assert found == wanted | genes
    assert types.symmetric.tolist() == [False, True]
    assert any("against the direction" in note for note in graph.source.notes)


def test_a_relation_between_three_pairs_of_types_becomes_several(tmp_path):
    rows = [row("with", drug(i), gene(i)) for i in range(3)]
    rows += [row("with", drug(i), ("disease", str(i), f"D{i}")) for i in range(3)]
    graph = load_graph(TripleOptions(path=str(kg(tmp_path, rows)), ratios=(1, 0, 0)), 0)
    assert graph.relations.labels.to_pylist() == ["with", "with (drug - disease)"]


def test_an_edge_and_its_reverse_are_never_in_different_parts():
    generator = np.random.default_rng(0)
    head, tail = generator.integers(40, size=(2, 900))
    both = Triples(
        np.concatenate([head, tail]), np.zeros(1800, np.int64), np.concatenate([tail, head])
    )
    part, words = link_parts(both, (0.6, 0.2, 0.2), 3)
    of = {}
    for h, t, p in zip(both.head.tolist(), both.tail.tolist(), part.tolist(), strict=True):
        assert of.setdefault((min(h, t), max(h, t)), p) == p
    assert {TRAIN, VALID, TEST} == set(part.tolist())
    assert "with their reverses" in words
    train = part == TRAIN
    ends = set(both.head[train].tolist()) | set(both.tail[train].tolist())
    assert ends == set(head.tolist()) | set(tail.tolist())


def test_parts_take_their_share_of_every_relation():
    graph = load_graph(TripleOptions(path="medicine"), 0)
    for relation in range(len(graph.relations)):
        mine = graph.part[graph.triples.relation == relation]
        assert np.mean(mine == TEST) == pytest.approx(0.1, abs=0.01)
        assert np.mean(mine == VALID) == pytest.approx(0.1, abs=0.01)


def hetionet(tmp_path, edges=None, nodes=None):
    edges = edges or ["C::1\tCbG\tG::1", "C::2\tCbG\tG::2", "G::1\tGiG\tG::2"]
    nodes = nodes or ["C::1\tone\tC", "C::2\ttwo\tC", "G::1\tg1\tG", "G::2\tg2\tG", "G::3\tg3\tG"]
    (tmp_path / "e.sif").write_text("\n".join(["source\tmetaedge\ttarget", *edges]) + "\n")
    (tmp_path / "n.tsv").write_text("\n".join(["id\tname\tkind", *nodes]) + "\n")
    return AnyDataOptions(
        path=str(tmp_path / "e.sif"), nodes=str(tmp_path / "n.tsv"), ratios=(1, 0, 0)
    )


def test_metaedges_take_types_and_names_from_the_table(tmp_path):
    options = hetionet(tmp_path)
    graph = load_graph(options.model_copy(update={"symmetric": ("GiG",)}), 0)
    assert NodeTypes.of(graph).names == ("C", "G")
    assert graph.entities.names.to_pylist() == ["one", "two", "g1", "g2"]
    assert ("G::2", "GiG", "G::1") in edges_of(graph)
    assert any("1 of 5 nodes have no edge" in note for note in graph.source.notes)
    assert ("G::2", "GiG", "G::1") not in edges_of(load_graph(options, 0))


def test_metaedges_without_a_table_need_ids_with_types(tmp_path):
    path = tmp_path / "e.tsv"
    path.write_text("source\tmetaedge\ttarget\nC::1\tCbG\tG::1\n7\tCbG\tG::1\n")
    with pytest.raises(DataError, match=r"line 3: node '7' has no type"):
        load_graph(TripleOptions(path=str(path)), 0)


def edge_files(tmp_path):
    (tmp_path / "dd.csv").write_text("Drug,Disease\n" + "".join(f"{i},{i % 4}\n" for i in range(8)))
    (tmp_path / "sim.csv").write_text("Disease1,Disease2,Sim\n0,1,0.5\n1,2,0.5\n2,3,0.1\n")
    edges = {"treats": "dd.csv", "like": "sim.csv"}
    return AnyDataOptions(path=str(tmp_path), edges=edges, ratios=(1, 0, 0), symmetric=("like",))


def test_edge_files_take_types_from_their_headers(tmp_path):
    graph = load_graph(edge_files(tmp_path), 0)
    types = NodeTypes.of(graph)
    assert types.names == ("Disease", "Drug")
    assert types.sizes.tolist() == [4, 8]
    assert ("Disease::1", "like", "Disease::0") in edges_of(graph)
    assert ("Drug::5", "treats", "Disease::1") in edges_of(graph)
    assert types.symmetric.tolist() == [True, False]


def test_a_relation_of_an_edge_file_may_be_named_like_a_type(tmp_path):
    options = edge_files(tmp_path)
    named = {"Disease": "dd.csv", "like": "sim.csv"}
    graph = load_graph(options.model_copy(update={"edges": named}), 0)
    assert ("Drug::5", "Disease", "Disease::1") in edges_of(graph)


def test_a_header_within_an_edge_file_is_refused(tmp_path):
    options = edge_files(tmp_path)
    (tmp_path / "dd.csv").write_text("Drug,Disease\na,b\nDrug,Disease\nDisease,Drug\n")
    with pytest.raises(DataError, match=r"dd.csv: 1 line .*\n  line 3: .*the header again"):
        load_graph(options, 0)
    files = {"treats": "dd.csv"}  # no other file has a type of this header
    store = TypedGraphOptions(path=str(tmp_path), edges=files, ratios=(1, 0, 0))
    with pytest.raises(DataError, match=r"dd.csv: 1 line .*\n  line 3: .*the header again"):
        prepare_graph(store, tmp_path / "edges.store")


def test_filters_by_node_type_and_relation(tmp_path):
    path = str(kg(tmp_path, ROWS))
    graph = load_graph(TripleOptions(path=path, node_types=("gene/protein",), ratios=(1, 0, 0)), 0)
    assert NodeTypes.of(graph).names == ("gene/protein",)
    graph = load_graph(TripleOptions(path=path, edge_types=("drug_protein",), ratios=(1, 0, 0)), 0)
    assert graph.relations.labels.to_pylist() == ["drug_protein"]
    assert any("left out" in note for note in graph.source.notes)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"node_types": ("drgu",)}, "unknown node type 'drgu'; did you mean 'drug'"),
        ({"edge_types": ("binds",)}, "unknown relation 'binds'"),
        ({"symmetric": ("drug_protein",)}, "joins two types"),
        ({"symmetric": ("nothing",)}, "no relation 'nothing'"),
        ({"node_types": ("drug",)}, "no edge is left"),
    ],
)
def test_bad_options_are_named(tmp_path, options, words):
    with pytest.raises(DataError, match=words):
        load_graph(TripleOptions(path=str(kg(tmp_path, ROWS)), **options), 0)


def test_two_names_for_one_type_and_id_are_refused_with_their_line(tmp_path):
    rows = [*ROWS[:6], row("drug_protein", ("drug", "0", "Another"), gene(1))]
    with pytest.raises(DataError, match=r"line 8: duplicate \(drug, 0\): named 'Another'"):
        load_graph(TripleOptions(path=str(kg(tmp_path, rows))), 0)


def test_an_empty_type_or_id_is_refused_with_its_line(tmp_path):
    for bad in (("", "1", "x"), ("drug", "", "x"), ("drug", "nan", "x")):
        rows = [*ROWS[:2], row("drug_protein", bad, gene(1))]
        with pytest.raises(DataError, match="line 4"):
            load_graph(TripleOptions(path=str(kg(tmp_path, rows))), 0)


def test_the_table_of_nodes_is_checked(tmp_path):
    with pytest.raises(DataError, match=r"e.sif: 1 line .*\n  line 3: node 'C::9' is not in"):
        load_graph(hetionet(tmp_path, ["C::1\tCbG\tG::1", "C::9\tCbG\tG::2"]), 0)
    with pytest.raises(DataError, match=r"n.tsv.*\n  line 3: duplicate \(type, id\): \(C, C::1\)"):
        load_graph(hetionet(tmp_path, nodes=["C::1\tone\tC", "C::1\ttwo\tC", "G::1\tg\tG"]), 0)
    bare = ["C::1\ta\tC", "C::2\tb\tC", "G::1\tg\tG", "G::2\th\tG", "P::1\tp\tPathway"]
    with pytest.raises(DataError, match=r"nodes of type 'Pathway' have no edges in"):
        load_graph(hetionet(tmp_path, nodes=bare), 0)
    (tmp_path / "bad.tsv").write_text("a\tb\n1\t2\n")
    options = hetionet(tmp_path).model_copy(update={"nodes": str(tmp_path / "bad.tsv")})
    with pytest.raises(DataError, match="a header with id, kind"):
        load_graph(options, 0)


def test_edge_files_need_a_header_of_types(tmp_path):
    (tmp_path / "x.csv").write_text("0,1\n1,2\n")
    with pytest.raises(DataError, match=r"x.csv: line 1: the first two cells"):
        load_graph(TripleOptions(path=str(tmp_path), edges={"r": "x.csv"}), 0)


def test_options_of_typed_graphs_are_refused_elsewhere(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("a\tr\tb\nb\tr\tc\n")
    with pytest.raises(UsageError, match=r"data\.node_types: these data hold no typed edges"):
        load_graph(TripleOptions(path=str(path), node_types=("drug",)), 0)


def test_inspect_and_load_any_recognise_them(tmp_path):
    found = inspect(AnyDataOptions(path=str(kg(tmp_path, ROWS)), ratios=(1, 0, 0)))
    assert found.files[0]["format"] == "primekg"
    assert found.settings["format"] == "primekg"
    assert found.spread["edges per drug"]["max"] == 1
    found = inspect(edge_files(tmp_path))
    assert {file["format"] for file in found.files} == {"edge-files"}
    assert load_any(AnyDataOptions(path="medicine"), 0).typed


def test_a_table_in_memory(tmp_path):
    columns = HEADER.split(",")
    cells = [line.split(",") for line in ROWS]
    table = pa.table({n: [c[i] for c in cells] for i, n in enumerate(columns)})
    graph = load_graph(TripleOptions(ratios=(1, 0, 0)), 0, table)
    from_file = load_graph(TripleOptions(path=str(kg(tmp_path, ROWS)), ratios=(1, 0, 0)), 0)
    assert fingerprint(graph) == fingerprint(from_file)
    with pytest.raises(DataError, match=r"row 1.*empty"):
        load_graph(AnyDataOptions(), 0, table.set_column(4, "x_type", pa.array([""] * len(cells))))


def test_stored_and_loaded_again(tmp_path):
    graph = load_graph(TripleOptions(path="medicine"), 0)
    mark = save_dataset(graph, tmp_path / "d")
    again = load_stored(tmp_path / "d")
    assert again.typed
    assert fingerprint(again) == mark


def test_given_parts(tmp_path):
    train = kg(tmp_path, ROWS[:9], "train.csv")
    kg(tmp_path, [row("drug_protein", gene(1), drug(0))], "test.csv")
    graph = load_graph(TripleOptions(path=str(tmp_path)), 0)
    assert graph.part.tolist().count(TEST) == 1
    assert train.exists()
