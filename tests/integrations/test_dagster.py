"""The Dagster assets, materialised in this process."""

import importlib.util
import json
import warnings
from pathlib import Path

import pytest

from hasten.data.samples.files import write_sample

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    dg = pytest.importorskip("dagster", reason="pip install 'hasten[dagster]'")
    from hasten.integrations import dagster_assets
    from hasten.integrations.dagster_assets import GraphSource, hgt_assets

#: of Dagster's own dependencies
pytestmark = pytest.mark.filterwarnings("ignore")

EXAMPLE = Path(__file__).parents[2] / "examples" / "dagster" / "definitions.py"
SMALL = {
    "epochs": 1, "width": 16, "hidden": 16, "heads": 2, "device": "cpu",
    "settings": {"training.batch_size": 400, "threads": 1},
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two graphs; the assets of one of them, materialised."""
    folder = tmp_path_factory.mktemp("dagster")
    write_sample("medicine", folder / "kg.csv", 60)
    kinds = ["gene/protein", "disease", "drug"]
    graphs = {
        "whole": GraphSource(str(folder / "kg.csv")),
        "three": GraphSource(str(folder / "kg.csv"), {"data.node_types": kinds}),
        "absent": GraphSource(str(folder / "no.csv")),
    }
    return folder, hgt_assets(graphs, folder / "out")


def materialised(assets, partition, **more):
    config = {"hgt_embeddings": {"config": SMALL}}
    chosen = more.pop("selection", None)
    if chosen is not None and "hgt_embeddings" not in chosen:
        config = {}
    return dg.materialize(
        assets, partition_key=partition, run_config={"ops": config}, selection=chosen, **more
    )


def metadata(result, asset):
    (event,) = result.asset_materializations_for_node(asset)
    return {name: value.value for name, value in event.metadata.items()}


def test_graph_embeddings_and_validation(made):
    folder, assets = made
    result = materialised(assets, "three")
    assert result.success
    graph = metadata(result, "typed_graph")
    assert "| drug |" in graph["nodes by type"]
    assert "pathway" not in graph["nodes by type"]
    place = folder / "out" / "three"
    recorded = metadata(result, "hgt_embeddings")
    assert recorded["nodes"] == graph["nodes"]
    assert 0 < recorded["test mrr"] <= 1
    lines = (place / "embeddings.csv").read_text().splitlines()
    assert lines[0] == "node_id,node_name,node_type,embedding"
    assert len(lines) == graph["nodes"] + 1
    assert Path(recorded["run"]).parent == place / "runs"
    judged = metadata(result, "hgt_validation")
    assert judged["these: mean_cosine"] == pytest.approx(
        json.loads((place / "validation.json").read_text())["health"]["mean_cosine"]
    )
    assert "random: mean_cosine" in judged
    assert judged["pca"].startswith("![pca](data:image/png;base64,")
    checks = {each.check_name: each for each in result.get_asset_check_evaluations()}
    assert set(checks) == {"has_not_collapsed", "tells_links"}
    assert "auroc" in checks["tells_links"].metadata
    # a second run of the same partition has a folder of its own
    again = materialised(assets, "three", selection=["hgt_embeddings"])
    assert metadata(again, "hgt_embeddings")["run"] != recorded["run"]


def test_what_cannot_be_is_a_failure_in_words(made):
    folder, assets = made
    for partition, chosen, says in (
        ("absent", ["typed_graph"], "no such file"),
        ("whole", ["hgt_embeddings"], "materialize typed_graph of this partition first"),
        ("whole", ["hgt_validation"], "materialize hgt_embeddings of this partition first"),
    ):
        with pytest.raises(dg.Failure, match=says):
            materialised(assets, partition, selection=chosen)
    assert materialised(assets, "whole", selection=["typed_graph"]).success
    record = folder / "out" / "whole" / "graph.json"
    record.write_text(json.dumps({"fingerprint": "another"}))
    with pytest.raises(dg.Failure, match="have changed since typed_graph read them"):
        materialised(assets, "whole", selection=["hgt_embeddings"])


def test_collapsed_embeddings_fail_their_check(made, monkeypatch):
    _, assets = made
    import hasten.inference.check_embeddings as module

    found = {
        "health": {"mean_cosine": 0.97}, "random": None, "links": {"auroc": 0.5, "ap": 0.3},
        "plots": [], "note": "so", "problems": ["mean cosine 0.97", "held-out links are not told"],
    }  # fmt: skip
    place = made[0] / "out" / "three"
    place.mkdir(parents=True, exist_ok=True)
    if not (place / "embeddings.json").exists():
        (place / "embeddings.json").write_text('{"run": "x"}')
    monkeypatch.setattr(module, "check_embeddings", lambda *_, **__: dict(found))
    result = materialised(assets, "three", selection=["hgt_validation"])
    checks = {c.check_name: c.passed for c in result.get_asset_check_evaluations()}
    assert checks == {"has_not_collapsed": False, "tells_links": False}


def test_the_example_project_loads(tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_DAGSTER", str(tmp_path))
    spec = importlib.util.spec_from_file_location("example_definitions", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    dg.Definitions.validate_loadable(module.defs)
    assert (tmp_path / "medicine.csv").is_file()
    assert module.defs.get_job_def("hgt").partitions_def.get_partition_keys() == [
        "whole", "without-pathways",
    ]  # fmt: skip
    assert dagster_assets.TrainingConfig().width == 512
