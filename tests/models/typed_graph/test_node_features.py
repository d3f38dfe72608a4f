"""Given features of nodes: from files to HGT's inputs, and what cannot be."""

import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import hasten
from hasten.config import TrainingOptions, TripleOptions
from hasten.data.graph.load import load_graph, with_node_features
from hasten.data.graph.node_types import NodeTypes
from hasten.data.store import fingerprint
from hasten.errors import ConfigurationError, DataError
from hasten.inference.embed import embed
from hasten.loaded_run import load_run
from hasten.models.interface import Sizes
from hasten.models.typed_graph.hgt import HGT
from hasten.models.typed_graph.hgt_options import HGTOptions
from hasten.testing import fingerprint as of_run
from tests.models.typed_graph.test_hgt import table

SMALL = {"width": 6, "hidden": 8, "heads": 2, "layers": 2, "negatives": 3, "contrastive_batch": 4}
SETTINGS = {
    **{f"model.{name}": value for name, value in SMALL.items()},
    "model.inputs": "features", "training.batch_size": 20, "data.ratios": [0.7, 0.15, 0.15],
    "evaluation.metrics": ["mrr"], "threads": 1, "device": "cpu",
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    """Features of drugs in any order by their ids, and of genes."""
    rng = np.random.default_rng(0)
    found = {}
    for kind, letter, count, width in (("drug", "d", 12, 5), ("gene", "g", 9, 3)):
        ids = [f"{letter}{i}" for i in rng.permutation(count)]
        values = rng.normal(size=(count, width)).astype(np.float32)
        columns = {"id": ids, **{f"f{i}": values[:, i] for i in range(width)}}
        found[kind] = str(tmp_path / f"{kind}.parquet")
        pq.write_table(pa.table(columns), found[kind])
    return found


def graph():
    return load_graph(TripleOptions(ratios=(0.7, 0.15, 0.15)), 0, table())


def test_every_node_gets_its_row(files):
    found = with_node_features(graph(), files)
    types = NodeTypes.of(found)
    labels = found.entities.labels.to_pylist()
    assert [types.names[number] for number, _ in found.features] == ["drug", "gene"]
    for number, each in found.features:
        kept = pq.read_table(files[types.names[number]]).to_pylist()
        by_id = {row.pop("id"): list(row.values()) for row in kept}
        mine = labels[types.offsets[number] : types.offsets[number + 1]]
        assert each.values.tolist() == [by_id[label.split("::")[1]] for label in mine]
    assert Sizes.of(found).node_features == (0, 5, 3)
    assert fingerprint(found) != fingerprint(graph())


def test_rows_of_an_array_go_by_number(tmp_path):
    rows = {"x_type": "a", "y_type": "b", "relation": "r"}
    edges = {"x_id": [4, 0, 2, 1], "y_id": [7, 8, 7, 8]}
    data = pa.table({**{k: [v] * 4 for k, v in rows.items()}, **edges})
    made = load_graph(TripleOptions(ratios=(1.0, 0.0, 0.0)), 0, data)
    values = np.arange(10, dtype=np.float64).reshape(5, 2)
    np.save(tmp_path / "a.npy", values)
    ((_, each),) = with_node_features(made, {"a": str(tmp_path / "a.npy")}).features
    ids = [int(label.split("::")[1]) for label in made.entities.labels.to_pylist()[:4]]
    np.testing.assert_array_equal(each.values, values[ids])


@pytest.mark.parametrize(("mode", "kinds"), [("full", ["drug", "gene"]), ("edges", ["gene"])])
def test_features_are_inputs_through_the_map_of_their_type(files, mode, kinds):
    """With inputs that are what the maps give, the model with own vectors is the same."""
    plain, given = graph(), with_node_features(graph(), {kind: files[kind] for kind in kinds})
    models, losses = [], []
    for inputs, data in (("embeddings", plain), ("features", given)):
        torch.manual_seed(3)
        options = HGTOptions(**SMALL, mode=mode, inputs=inputs)
        model = HGT(options, Sizes.of(data)).double()
        training = TrainingOptions(batch_size=7)
        models.append((model, model.phases(data, training)[0]))
    (own, _), (ours, _) = models
    state = {n: p for n, p in own.state_dict().items() if n != "inputs"}
    assert not ours.load_state_dict(state, strict=False).unexpected_keys
    with torch.no_grad():
        own.inputs.copy_(ours._inputs(None))
    for _, phase in models:
        batch = phase.plan(0, 0, 0)
        terms = phase.terms(phase.encode(batch), batch, batch.ids)
        loss = sum(t.numerator * t.weight / t.denominator for t in terms)
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    torch.testing.assert_close(own.embed(5), ours.embed(5))
    types = NodeTypes.of(given)
    for number, each in given.features:
        grad = own.inputs.grad[types.offsets[number] : types.offsets[number + 1]]
        expected = grad.T @ torch.from_numpy(each.values).double()
        torch.testing.assert_close(ours.feature_maps[str(number)].weight.grad, expected)
    # types without features come first here
    without = types.offsets[3 - len(kinds)]
    torch.testing.assert_close(ours.inputs.grad, own.inputs.grad[:without])


def test_a_run_needs_no_files_afterwards(files, tmp_path):
    settings = {**SETTINGS, **{f"data.features.{k}": v for k, v in files.items()}}
    result = hasten.train(
        "hgt", table(), settings=settings, epochs=2, out=tmp_path / "run", quiet=True
    )
    first = embed(result.loaded).vectors
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    for file in files.values():
        (tmp_path / file).unlink()
    np.testing.assert_array_equal(embed(load_run(tmp_path / "run")).vectors, first)
    for folder in sorted((tmp_path / "copy" / "checkpoints").iterdir())[1:]:
        shutil.rmtree(folder)
    hasten.run.resume(tmp_path / "copy", quiet=True)
    assert of_run(tmp_path / "copy") == of_run(tmp_path / "run")


def test_what_cannot_be_is_refused(files, tmp_path):
    other = tmp_path / "few.parquet"
    pq.write_table(pq.read_table(files["gene"]).slice(0, 7), other)
    bad = tmp_path / "bad.parquet"
    read = pq.read_table(files["gene"])
    holes = np.full(9, np.nan, np.float32)
    pq.write_table(read.set_column(1, "f0", pa.array(holes)), bad)
    numbers = tmp_path / "numbers.npy"
    np.save(numbers, np.zeros((9, 2)))
    for given, error, says in (
        ({"genes": files["gene"]}, DataError, "did you mean 'gene'"),
        ({"gene": str(other)}, DataError, "no row for 2 nodes of type 'gene'"),
        ({"gene": str(bad)}, DataError, "no finite number"),
        ({"gene": str(numbers)}, DataError, "row i is item i"),
        ({"gene": str(tmp_path / "no.npy")}, DataError, "no.npy"),
        ({}, ConfigurationError, "data.features.TYPE=FILE"),
    ):
        settings = {**SETTINGS, **{f"data.features.{k}": v for k, v in given.items()}}
        with pytest.raises(error, match=says):
            hasten.train("hgt", table(), settings=settings, out=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run").exists()
    for model, says in (("hgt", "add --set model.inputs=features"), ("distmult", "no effect")):
        settings = {"data.features.gene": files["gene"], "data.ratios": [0.7, 0.15, 0.15]}
        with pytest.raises(ConfigurationError, match=says):
            hasten.train(model, table(), settings=settings, out=tmp_path / "run", quiet=True)
