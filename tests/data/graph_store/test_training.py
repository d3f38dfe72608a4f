"""Training, evaluation and prediction from a store of a typed graph give those from memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hasten import api, loaded_run, run
from hasten.config import TypedGraphOptions
from hasten.data.graph.load import load_graph, with_node_features
from hasten.data.graph.messages import Links, Messages, endpoints
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store.manifest import GraphManifest, holds_graph_store
from hasten.data.graph_store.mapped import MappedGraph, triple_blocks
from hasten.data.graph_store.opened import open_graph_store
from hasten.data.graph_store.prepare import prepare_graph
from hasten.data.store_folder.manifest import read_manifest, verify
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import ConfigurationError, DataError, UsageError
from hasten.inference.predict import predict
from hasten.testing import fingerprint

SMALL = {
    "model.width": 8, "model.hidden": 8, "model.heads": 2, "model.negatives": 4, "device": "cpu",
    "training.epochs": 2, "training.batch_size": 16, "model.contrastive_weight": 0.0,
}  # fmt: skip
RELATIONS = (("treats", "drug", "disease"), ("binds", "drug", "protein"), ("like", "drug", "drug"),
             ("regulates", "protein", "protein"))  # fmt: skip


def write_edges(path):
    """Relations between types in both directions, one that is symmetric, one with a direction."""
    random = np.random.default_rng(0)
    edges = []
    for name, first, second in RELATIONS:
        for one, other in random.integers(0, 30, (150, 2)).tolist():
            edge = (str(one), first, str(other), second, name)
            edges += [edge] if name == "regulates" else [edge, (*edge[2:4], *edge[:2], name)]
    edges = [edges[i] for i in random.permutation(len(edges))]
    lines = "\n".join(",".join(edge) for edge in edges)
    path.write_text(f"x_id,x_type,y_id,y_type,relation\n{lines}\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The same edges as a file and as a store."""
    folder = tmp_path_factory.mktemp("edges")
    write_edges(folder / "edges.csv")
    prepare_graph(TypedGraphOptions(path=str(folder / "edges.csv")), folder / "store")
    return folder / "edges.csv", folder / "store"


def test_a_store_holds_what_is_in_memory(data):
    graph = load_graph(TypedGraphOptions(path=str(data[0])), 0)
    stored = open_graph_store(data[1])
    types, train = NodeTypes.of(graph), graph.of(TRAIN)
    assert types.symmetric.any()
    assert not types.symmetric.all()
    for name in ("offsets", "source", "target", "symmetric"):
        assert np.array_equal(getattr(types, name), getattr(stored.types, name)), name
    assert types.names == stored.types.names
    links = Links.of(train, types)
    messages = Messages.of(links, types)
    for expected, mapped in ((links, stored.links), (messages, stored.messages)):
        for name, column in vars(expected).items():
            assert np.array_equal(column, getattr(mapped, name)), name
            assert column.dtype == getattr(mapped, name).dtype, name
    for expected, mapped in zip(
        endpoints(links, len(graph.entities)), stored.endpoints, strict=True
    ):
        assert np.array_equal(expected, mapped)
    for part in (TRAIN, VALID, TEST):
        for name in ("head", "relation", "tail"):
            expected = getattr(graph.of(part), name)
            assert np.array_equal(expected, getattr(stored.of(part), name))
            parts = [getattr(block, name) for block in triple_blocks(stored, part)]
            assert np.array_equal(expected, np.concatenate(parts))
    assert np.array_equal(graph.part, stored.part)
    assert [each.tolist() for each in graph.trained] == [each.tolist() for each in stored.trained]
    assert stored.in_memory().triples.head.dtype == np.int64
    assert graph.source.counts.items() <= stored.source.counts.items()


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("hgt", {**SMALL, "model.mode": "neighbors", "model.fan_out": 2}),
        ("hgt", {**SMALL, "model.mode": "edges", "evaluation.filter_test": False}),
        ("hgt", {**SMALL, "model.mode": "edges", "model.contrastive_weight": 0.5,
                 "model.similarity_threshold": 0.0}),
        ("hgt", {**SMALL, "model.mode": "neighbors", "evaluation.triples": 5}),
        ("distmult", {"model.width": 8, "training.epochs": 2, "device": "cpu"}),
    ],
    ids=["neighbors", "edges", "contrast", "sampled-triples", "in-memory"],
)  # fmt: skip
def test_a_store_trains_the_same_weights(model, settings, data, tmp_path, monkeypatch):
    if model == "hgt":  # reads no column of all triples into memory
        for name in ("triples", "part", "rank_last"):
            monkeypatch.delattr(MappedGraph, name)
    results = {}
    for name, path in zip(("memory", "store"), data, strict=True):
        results[name] = api.train(
            model, str(path), settings=settings, out=str(tmp_path / name), threads=1, quiet=True
        )
    for checkpoint in ("best", "final"):
        one, other = (fingerprint(tmp_path / name, checkpoint) for name in results)
        assert one == other
    if "evaluation.triples" not in settings:  # else of a store those triples at the end too
        assert results["memory"].valid_metrics == results["store"].valid_metrics
        assert results["memory"].metrics == results["store"].metrics
    else:
        assert "a sample of 5 triples" in results["store"].protocol


def test_two_processes_train_the_same_as_one(data, tmp_path):
    settings = {**SMALL, "model.mode": "neighbors", "training.epochs": 1}
    train = {"settings": settings, "threads": 1, "quiet": True}
    one = api.train("hgt", str(data[1]), out=str(tmp_path / "one"), **train)
    two = api.train("hgt", str(data[1]), out=str(tmp_path / "two"), devices=2, **train)
    assert one.metrics == pytest.approx(two.metrics, abs=1e-4)


def test_a_run_on_a_store_resumes_and_predicts(data, tmp_path):
    settings = {**SMALL, "model.mode": "edges"}
    api.train("hgt", str(data[1]), settings=settings, out=str(tmp_path / "whole"), quiet=True)
    run.resume(tmp_path / "whole", checkpoint="epoch-0001", out=tmp_path / "two", quiet=True)
    assert fingerprint(tmp_path / "whole") == fingerprint(tmp_path / "two")
    assert (tmp_path / "whole" / "data" / "source.i4").samefile(data[1] / "source.i4")
    loaded = loaded_run.load_run(tmp_path / "two")
    assert isinstance(loaded.dataset, MappedGraph)
    assert len(predict(loaded, [{"head": "drug::1", "relation": "treats"}], topk=3))


def test_what_needs_the_graph_in_memory_is_refused(data, tmp_path):
    with pytest.raises(ConfigurationError, match="encodes the whole graph"):
        api.train("hgt", str(data[1]), settings=SMALL, out=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()
    for options, reason in (
        ({"features": {"drug": "x.npy"}}, r"data\.features has no effect"),
        ({"refit": True}, "messages of the store"),
        ({"split_seed": 3}, "chosen and divided"),
    ):
        with pytest.raises(UsageError, match=reason):
            open_graph_store(data[1], TypedGraphOptions(**options))
    for options in ({"refit": True}, {"unknown": "rank-last"}):
        with pytest.raises(UsageError, match=f"data.{next(iter(options))}"):
            prepare_graph(TypedGraphOptions(path=str(data[0]), **options), tmp_path / "store")
    with pytest.raises(UsageError, match="hold no interactions"):
        api.train("sasrec", str(data[1]), out=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "store").exists()


def test_a_store_is_replaced_only_on_demand_and_verified(data, tmp_path):
    options = TypedGraphOptions(path=str(data[0]), split_seed=7)
    first = prepare_graph(options, tmp_path / "store")
    with pytest.raises(UsageError, match="--overwrite"):
        prepare_graph(options, tmp_path / "store")
    again = prepare_graph(options, tmp_path / "store", overwrite=True)
    assert again.fingerprint == first.fingerprint
    assert first.fingerprint != read_manifest(data[1], GraphManifest).fingerprint
    assert holds_graph_store(tmp_path / "store")
    verify(tmp_path / "store", again)
    column = tmp_path / "store" / "target.i4"
    column.write_bytes(bytes(4) + column.read_bytes()[4:])
    with pytest.raises(DataError, match=r"target\.i4: damaged"):
        verify(tmp_path / "store", again)
    column.write_bytes(b"")
    with pytest.raises(DataError, match=r"target\.i4: damaged: 0 bytes"):
        open_graph_store(tmp_path / "store")


@pytest.fixture(scope="module")
def featured(data, tmp_path_factory):
    """Features of two types, of different widths and kinds; their options, and a store."""
    folder = tmp_path_factory.mktemp("features")
    random = np.random.default_rng(1)
    np.save(folder / "drug.npy", random.standard_normal((40, 5)).astype(np.float16))
    ids = random.permutation(30)
    values = {"id": ids, "a": random.standard_normal(30), "b": random.standard_normal(30)}
    pq.write_table(pa.table(values), folder / "protein.parquet")
    files = {"protein": str(folder / "protein.parquet"), "drug": str(folder / "drug.npy")}
    options = TypedGraphOptions(path=str(data[0]), features=files)
    prepare_graph(options, folder / "store")
    return files, folder / "store"


@pytest.mark.parametrize("mode", ["neighbors", "edges"])
def test_features_of_a_store_train_the_same_weights(mode, data, featured, tmp_path):
    files, store = featured
    settings = {**SMALL, "model.mode": mode, "model.inputs": "features"}
    of_files = {f"data.features.{name}": file for name, file in files.items()}
    train = {"threads": 1, "quiet": True}
    one = api.train(
        "hgt", str(data[0]), settings=settings | of_files, out=str(tmp_path / "file"), **train
    )
    two = api.train("hgt", str(store), settings=settings, out=str(tmp_path / "store"), **train)
    assert fingerprint(tmp_path / "file") == fingerprint(tmp_path / "store")
    assert one.metrics == two.metrics
    name = "features-1.f2"  # drugs are of type 1
    assert (tmp_path / "store" / "data" / name).samefile(store / name)
    run.resume(tmp_path / "store", checkpoint="epoch-0001", out=tmp_path / "again", quiet=True)
    assert fingerprint(tmp_path / "again") == fingerprint(tmp_path / "store")


def test_features_of_a_store_are_those_of_the_files(data, featured):
    files, store = featured
    graph = with_node_features(load_graph(TypedGraphOptions(path=str(data[0])), 0), files)
    stored = open_graph_store(store)
    for (number, one), (other_number, other) in zip(graph.features, stored.features, strict=True):
        assert (number, one.name, one.digest) == (other_number, other.name, other.digest)
        assert np.array_equal(one.values, other.values)
        assert one.values.dtype == other.values.dtype
    assert stored.in_memory().features == stored.features
    plain = read_manifest(data[1], GraphManifest)
    assert plain.fingerprint != stored.manifest.fingerprint
    verify(store, stored.manifest)


def test_a_store_with_features_trains_without_them(data, featured, tmp_path):
    settings = {**SMALL, "model.mode": "neighbors", "training.epochs": 1}
    for name, path in (("plain", data[1]), ("featured", featured[1])):
        api.train("hgt", str(path), settings=settings, out=str(tmp_path / name), quiet=True)
    assert fingerprint(tmp_path / "plain") == fingerprint(tmp_path / "featured")


def test_features_that_do_not_fit_a_store_are_refused(data, tmp_path):
    np.save(tmp_path / "short.npy", np.zeros((3, 2), np.float32))
    np.save(tmp_path / "nan.npy", np.full((40, 2), np.nan, np.float32))
    for files, reason in (
        ({"drugs": "short.npy"}, "data.features.drugs: no nodes of this type"),
        ({"drug": "short.npy"}, "no row for 27 nodes of type 'drug': 10, 11"),
        ({"drug": "nan.npy"}, "are no finite numbers"),
        ({"drug": "none.npy"}, "none.npy: no such file"),
    ):
        named = {name: str(tmp_path / file) for name, file in files.items()}
        options = TypedGraphOptions(path=str(data[0]), features=named)
        with pytest.raises(DataError, match=reason):
            prepare_graph(options, tmp_path / "store")
        assert not (tmp_path / "store").exists()
    settings = {**SMALL, "model.mode": "neighbors", "model.inputs": "features"}
    with pytest.raises(UsageError, match="hold no features of nodes"):
        api.train("hgt", str(data[1]), settings=settings, out=str(tmp_path / "run"), quiet=True)
    assert not (tmp_path / "run").exists()
