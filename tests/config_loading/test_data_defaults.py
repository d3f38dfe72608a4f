"""Defaults that follow from the size of the data: what they are, and for which keys they apply."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from hasten import api, run
from hasten.build import load_data
from hasten.config import TypedGraphOptions
from hasten.config_loading.build import build_config, load_config
from hasten.config_loading.data_defaults import (
    data_defaults,
    describe_defaults,
    with_data_defaults,
)
from hasten.config_loading.keys import known_keys
from hasten.data.graph_store.prepare import prepare_graph
from hasten.models.data_size import DataSize
from hasten.registry import BUILT_IN, data_options_of, load_model
from hasten.runs.config_text import config_text
from tests.contract.cases import CASES, graph, sequences

LARGE = DataSize(
    users=667000, items=200000, interactions=8_000_000, mean_length=12, entities=200000
)
MODELS = [e.name for e in BUILT_IN if load_model(e.name).defaults_from_data]
CASE = {case.model: case for case in reversed(CASES)}
BEAUTY = DataSize(users=22363, items=12101, interactions=153776, mean_length=6.9, long_length=13)
ML_1M = DataSize(users=5390, items=3522, interactions=560000, mean_length=104, long_length=240)
UMLS = DataSize(entities=135, relations=46, triples=5216, queries=1304)
MIDDLE = DataSize(entities=2034, relations=42, triples=32888, queries=11960)
FB15K_237 = DataSize(entities=14541, relations=237, triples=272115, queries=149689)


def chosen(model, size, **settings):
    return load_model(model).defaults_for(size, build_config(model, flags=settings))


@pytest.mark.parametrize("size", [BEAUTY, ML_1M, UMLS, FB15K_237, DataSize()])
@pytest.mark.parametrize("model", MODELS)
def test_a_rule_gives_the_keys_that_it_declares_and_values_that_are_accepted(model, size):
    kind = load_model(model)
    found = chosen(model, size)
    none_sampled = OF_SAMPLES if found.get("model.loss") == "ce" else set()
    usual = OF_PUBLISHED if model == "complex" and found["model.width"] != 2000 else set()
    assert set(found) == set(kind.defaults_from_data) - none_sampled - usual
    assert set(found) <= set(known_keys(kind.Options, data_options_of(kind)))
    assert build_config(model, flags=found)


#: sasrec without sampled items
FULL = {"training.lr": 2e-3, "model.loss": "ce"}
#: what only a loss over sampled items has
OF_SAMPLES = {"model.negatives", "model.mask_known"}
#: what complex only chooses where it has the published optimizer
OF_PUBLISHED = {f"training.{key}" for key in ("schedule", "betas", "eps", "average")} | {
    "model.bias"
}


def test_the_length_follows_from_the_steps():
    assert chosen("sasrec", BEAUTY) == {
        "training.epochs": 24,
        "evaluation.every": 2,
        "training.average": 2,
        "model.max_length": 50,
        "model.dropout": 0.5,
        **FULL,
    }
    assert chosen("sasrec", ML_1M) == {
        "training.epochs": 98,
        "evaluation.every": 9,
        "training.average": 2,
        "model.max_length": 200,
        "model.dropout": 0.2,
        **FULL,
    }
    # twice the batch: half of the steps in an epoch; few given epochs: no average
    assert chosen("sasrec", ML_1M, batch_size=32)["training.epochs"] == 25
    few = chosen("sasrec", BEAUTY, epochs=5)
    assert (few["evaluation.every"], few["training.average"]) == (1, None)
    of_triples = [chosen("conve", size)["training.epochs"] for size in (UMLS, MIDDLE, FB15K_237)]
    assert of_triples == [40, 128, 40]
    assert chosen("conve", UMLS)["training.batch_size"] == 32
    assert chosen("conve", FB15K_237)["training.batch_size"] == 128
    assert chosen("conve", UMLS)["model.label_smoothing"] is None
    assert chosen("conve", FB15K_237)["model.label_smoothing"] == 0.1
    sharded = {"training.shard_tables": "always"}
    assert chosen("conve", FB15K_237, **sharded)["model.label_smoothing"] is None


def test_what_is_given_stays_and_a_recipe_gives_everything():
    dataset = sequences()
    config = build_config("sasrec", flags={"epochs": 3, "training.average": None})
    found, (note,) = with_data_defaults(config, api_data(config, dataset))
    assert (found.training.epochs, found.training.average) == (3, None)
    assert "chosen by the size of the data (" in note
    assert found.gives("model.dropout")  # complete: nothing is left to choose
    assert data_defaults(found, api_data(config, dataset)) == {}
    recipe = build_config("sasrec", flags={"recipe": "beauty/best"})
    assert with_data_defaults(recipe, api_data(recipe, dataset))[1] == ()


def api_data(config, table):
    from hasten.build import load_data

    return load_data(config, table)


def test_the_batch_of_all_processes_decides_about_the_length():
    config = build_config("bprmf", flags={"training.batch_size_per_device": 5})
    whole = build_config("bprmf", flags={"training.batch_size": 20})
    dataset = api_data(config, sequences())
    assert data_defaults(config, dataset, processes=4) == data_defaults(whole, dataset)
    assert data_defaults(config, dataset, processes=1) != data_defaults(whole, dataset)


def test_early_stopping_needs_a_validation_part():
    assert "training.patience" in chosen("bprmf", BEAUTY)
    size = DataSize(interactions=1000, mean_length=5, validated=False)
    assert chosen("bprmf", size) == {"model.sampling": "interactions"}


def test_the_given_keys_survive_a_file(tmp_path):
    config = build_config("complex", flags={"lr": 0.1, "model.width": 8})
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config, given=True))
    again = load_config(file)
    assert again == config
    for key in ("training.lr", "model.width"):
        assert again.gives(key)
    for key in ("training.batch_size", "model.loss", "training.epochs"):
        assert not again.gives(key)


def test_a_run_keeps_what_was_chosen_and_resumes_with_it(tmp_path, monkeypatch):
    settings = {"model.width": 8, "device": "cpu", "threads": 1, "evaluation.test": False}
    out = tmp_path / "run"
    config = build_config("complex", flags={**settings, "out": str(out), "max_time": 1e-3})
    first = run.train(config, table=graph(), quiet=True)
    assert first.stopped_by == "max_time"
    stored = yaml.safe_load((out / "config.yaml").read_text())
    assert stored["training"]["epochs"] == 100
    assert stored["training"]["batch_size"] == 256
    assert "chosen by the size of the data" in (out / "train.log").read_text()
    # neither a resumed nor a repeated run asks the rule again
    monkeypatch.setattr(load_model("complex"), "defaults_for", None)
    longer = config.model_copy(
        update={"training": config.training.model_copy(update={"max_time": 0.2})}
    )
    run.train(longer, table=graph(), quiet=True, resume_auto=True)
    assert yaml.safe_load((out / "config.yaml").read_text())["training"]["epochs"] == 100
    monkeypatch.undo()
    repeated = build_config(config_file=out / "config.yaml")
    assert data_defaults(repeated, api_data(repeated, graph())) == {}


def test_python_takes_the_same_path(tmp_path):
    result = api.train("sasrec", sequences(), epochs=1, out=str(tmp_path / "run"), quiet=True)
    assert result.loaded.config.model.max_length == 50
    assert result.summary.effective["average"] is None


def test_large_catalogs_are_sampled_and_large_graphs_propagate_less_often():
    for model in ("sasrec", "tisasrec"):
        sampled = chosen(model, replace(BEAUTY, items=28_000))
        assert sampled["model.loss"] == chosen(model, LARGE)["model.loss"] == "sampled-softmax"
        keys = ("training.lr", "model.negatives", "model.mask_known")
        assert [sampled[key] for key in keys] == [3e-3, 2048, True]
        assert chosen(model, replace(ML_1M, items=28_000))["model.loss"] == "ce"
        full = chosen(model, LARGE, **{"model.loss": "ce"})
        assert full["training.lr"] == 2e-3
        assert not OF_SAMPLES & full.keys()
    assert chosen("conve", LARGE)["model.loss"] == "sampled"
    assert chosen("conve", LARGE)["model.label_smoothing"] is None  # refused
    assert chosen("complex", LARGE)["model.loss"] == "sampled"
    assert chosen("complex", replace(FB15K_237, entities=200000))["model.loss"] == "sampled"
    assert chosen("complex", replace(FB15K_237, entities=2000))["model.loss"] == "1-n-softmax"
    assert chosen("distmult", FB15K_237)["model.loss"] == "sampled-softmax"
    assert chosen("distmult", FB15K_237)["model.width"] == 800
    smoothed = chosen("complex", FB15K_237, **{"model.label_smoothing": 0.1})
    assert smoothed["model.loss"] == "1-n-softmax"
    assert chosen("tucker", LARGE)["model.loss"] == "sampled"
    assert chosen("tucker", FB15K_237)["model.loss"] == "1-n"
    for model in ("lightgcn", "mmgcn", "dragon", "bm3", "freedom"):
        found = chosen(model, LARGE)
        assert found["training.batch_size"] == 8192
        count = 20 if model == "mmgcn" else 10
        assert found["training.patience"] == f"{count} evaluations"
        assert chosen(model, BEAUTY)["training.batch_size"] == 2048
        assert chosen(model, LARGE, batch_size=512)["training.batch_size"] == 512


def test_complex_has_the_published_settings_where_they_were_measured():
    found = chosen("complex", FB15K_237)
    assert found["model.width"] == 2000
    assert not found["model.bias"]
    assert (found["training.epochs"], found["training.average"]) == (24, 2.4)
    optimizer = ("training.lr", "training.schedule", "training.betas")
    assert [found[key] for key in optimizer] == [0.1, "inverse-sqrt", (0.0, 0.999999)]
    # a learning rate or weights to start from: Adam, and nothing else changes
    for given in (
        {"training.lr": 1e-3},
        {"training.schedule": "cosine"},
        {"training.betas": (0.9, 0.99)},
        {"training.warmup_steps": 100},
        {"init_from": "runs/before"},
    ):
        adam = chosen("complex", FB15K_237, **given)
        assert adam["training.lr"] == 3e-3, given
        assert found.keys() - adam.keys() == OF_PUBLISHED - {"model.bias"}, given
        changed = {key for key, value in adam.items() if found[key] != value}
        assert changed == {"training.lr"}, given
    assert chosen("complex", FB15K_237, **{"model.width": 400}) == found
    # other graphs, and other losses
    usual = chosen("distmult", FB15K_237)
    assert usual["model.width"] == 800
    assert chosen("complex", replace(FB15K_237, entities=20_001)) == usual
    sparse = replace(FB15K_237, triples=15 * FB15K_237.entities - 1)
    assert chosen("complex", sparse) == chosen("distmult", sparse)
    few = replace(FB15K_237, entities=8192)
    assert chosen("complex", few, **{"model.loss": "sampled-softmax"})["model.width"] == 800
    assert chosen("complex", FB15K_237, **{"model.loss": "1vsall"})["model.width"] == 400


def test_the_line_of_chosen_defaults_can_be_copied_into_a_file():
    line = describe_defaults(
        {"training.betas": (0.0, 0.999999), "model.width": 8},
        load_data(build_config("sasrec"), sequences()),
    )
    assert line.startswith("training.betas [0.0, 0.999999], model.width 8: chosen by the size")


def test_validations_of_many_users_are_sampled(monkeypatch):
    monkeypatch.setattr("hasten.config_loading.data_defaults.MANY_USERS", 10)
    data = sequences()
    config = build_config("sasrec")
    dataset = load_data(config, data)
    config, notes = with_data_defaults(config, dataset)
    assert config.evaluation.users == 10_000
    assert "evaluation.users 10000" in notes[0]
    given = build_config("sasrec", flags={"evaluation.users": "all"})
    assert with_data_defaults(given, dataset)[0].evaluation.users == "all"


@pytest.mark.parametrize(
    ("triples", "settings", "batch_size", "epochs", "average", "schedule"),
    [
        (1_000, {}, 250, 60, 2, "constant"),
        (9_000, {}, 250, 34, 2, "constant"),
        (96_050, {}, 125, 15, 2, "cosine"),
        (167_028, {}, 217, 15, 2, "cosine"),
        (8_000_000, {}, 5000, 15, 2, "cosine"),
        (96_050, {"model.hidden": 64}, 125, 10, 2, "constant"),
        (167_028, {"model.mode": "edges"}, 217, 15, 2, "cosine"),
        (96_050, {"training.batch_size": 8000}, 8000, 60, 2, "cosine"),
        (96_050, {"training.epochs": 5}, 125, 5, 1, "cosine"),
        (1_000, {"model.shallow_width": 0}, 500, 60, None, "cosine"),
        (96_050, {"model.shallow_width": 0}, 500, 15, None, "cosine"),
        (167_028, {"model.inputs": "features"}, 835, 15, None, "cosine"),
        (96_050, {"model.mode": "neighbors"}, 5000, 30, None, "cosine"),
    ],
)
def test_hgt_takes_a_share_of_the_links_per_relation(
    triples, settings, batch_size, epochs, average, schedule
):
    size = DataSize(entities=38_800, relations=7, triples=triples)
    found = chosen("hgt", size, **settings)
    assert found["training.batch_size"] == batch_size
    assert found.get("training.epochs", epochs) == epochs
    assert found["training.average"] == average
    assert found["training.schedule"] == schedule


def test_hgt_starts_from_random_relation_weights_if_its_score_has_any():
    assert chosen("hgt", DataSize())["model.relation_weights"] == "normal"
    found = chosen("hgt", DataSize(), **{"model.decoder": "dot"})
    assert found["model.relation_weights"] == "ones"
    assert build_config("hgt", flags={"model.decoder": "dot", **found})
    recipe = build_config("hgt", flags={"recipe": "redda-k/softmax"}).model
    assert (recipe.relation_weights, recipe.self_score) == ("ones", False)


@pytest.mark.parametrize(
    ("given", "shallow", "excluded", "scored", "contrast"),
    [
        ({}, 448, True, False, 0.0),
        ({"width": 128}, 64, True, False, 0.0),
        ({"width": 32, "hidden": 64}, 0, False, True, 0.5),
        ({"shallow_width": 0}, 0, False, True, 0.5),
        ({"shallow_width": 256}, 256, True, False, 0.0),
        ({"mode": "edges"}, 448, True, False, 0.0),
        ({"mode": "neighbors"}, 0, False, True, 0.5),
        ({"inputs": "features"}, 0, False, True, 0.5),
        ({"inputs": "constant"}, 0, False, True, 0.5),
        ({"exclude_self": True}, 448, True, False, 0.0),
        ({"exclude_self": False}, 448, False, True, 0.0),
        ({"self_score": True}, 448, False, True, 0.0),
        ({"self_score": False}, 448, True, False, 0.0),
        ({"self_score": True, "shallow_width": 0}, 0, False, True, 0.5),
        ({"exclude_self": True, "mode": "neighbors"}, 0, True, False, 0.5),
        ({"contrastive_type": "drug"}, 448, True, False, 0.5),
        ({"contrastive_relations": "r"}, 448, True, False, 0.5),
    ],
)
def test_hgt_has_a_second_embedding_of_nodes_where_nodes_have_embeddings(
    given, shallow, excluded, scored, contrast
):
    flags = {f"model.{name}": value for name, value in given.items()}
    found = chosen("hgt", DataSize(), **flags)
    complete = build_config("hgt", flags={**found, **flags}).model
    assert (complete.shallow_width, complete.exclude_self) == (shallow, excluded)
    assert (complete.self_score, complete.contrastive_weight) == (scored, contrast)
    regularized = complete.n3, complete.query_dropout, complete.output_dropout
    assert regularized == ((0.01, 0.2, 0.0) if shallow else (0.0, 0.0, 0.0))
    assert complete.filter_negatives is (shallow == 0)


@pytest.mark.parametrize(
    ("given", "hidden", "layers", "heads", "shallow"),
    [
        ({}, 8, 1, 1, 1016),
        ({"width": 128}, 8, 1, 1, 120),
        ({"heads": 2}, 8, 1, 2, 1016),
        ({"layers": 3}, 8, 3, 1, 1016),
        ({"mode": "edges"}, 8, 1, 1, 1016),
        ({"width": 8}, 64, 2, 8, 0),
        ({"hidden": 16}, 16, 2, 8, 496),
        ({"shallow_width": 256}, 64, 2, 8, 256),
        ({"shallow_width": 0}, 64, 2, 8, 0),
        ({"mode": "neighbors"}, 64, 2, 8, 0),
        ({"inputs": "features"}, 64, 2, 8, 0),
    ],
)
def test_hgt_has_one_narrow_layer_on_larger_graphs(given, hidden, layers, heads, shallow):
    flags = {f"model.{name}": value for name, value in given.items()}
    found = chosen("hgt", DataSize(triples=20_000), **flags)
    complete = build_config("hgt", flags={**found, **flags}).model
    sizes = complete.hidden, complete.layers, complete.heads, complete.shallow_width
    assert sizes == (hidden, layers, heads, shallow)
    assert complete.negatives == 256
    assert complete.dropout == (0.5 if hidden == 8 else 0.0)


@pytest.mark.parametrize(("entities", "width"), [(100_000, 1024), (100_001, 512)])
def test_hgt_is_wide_beside_a_narrow_layer_unless_there_are_many_nodes(entities, width):
    found = chosen("hgt", DataSize(triples=20_000, entities=entities))
    assert (found["model.width"], found["model.shallow_width"]) == (width, width - 8)


def test_hgt_keeps_wider_layers_on_small_graphs():
    found = chosen("hgt", DataSize(triples=19_999))
    assert [found[f"model.{name}"] for name in ("hidden", "layers", "heads")] == [64, 2, 8]
    assert found["model.negatives"] == 256
    assert found["model.label_smoothing"] == found["model.dropout"] == 0.0


@pytest.mark.parametrize(
    ("triples", "given", "negatives", "smoothing"),
    [
        (99_999, {}, 256, 0.1),
        (100_000, {}, 1024, 0.1),
        (100_000, {"loss": "logistic"}, 256, 0.0),
        (100_000, {"shallow_width": 0}, 256, 0.0),
        (100_000, {"hidden": 64}, 256, 0.0),
    ],
)
def test_hgt_has_more_negatives_on_large_graphs_where_it_is_to_rank(
    triples, given, negatives, smoothing
):
    flags = {f"model.{name}": value for name, value in given.items()}
    found = chosen("hgt", DataSize(triples=triples), **flags)
    assert (found["model.negatives"], found["model.label_smoothing"]) == (negatives, smoothing)


def test_a_lowest_rate_keeps_hgts_falling_schedule():
    found = chosen("hgt", DataSize(triples=9_000), **{"training.min_lr": 1e-4})
    assert found["training.schedule"] == "cosine"


def test_hgts_logistic_loss_filters_its_negatives():
    assert chosen("hgt", DataSize(), **{"model.loss": "logistic"})["model.filter_negatives"]
    assert not chosen("hgt", DataSize())["model.filter_negatives"]


def test_hgt_samples_the_validations_of_graphs_with_many_validation_triples(monkeypatch, tmp_path):
    monkeypatch.setattr("hasten.config_loading.data_defaults.VALIDATED_TRIPLES", 4)
    edges = "".join(f"r{i % 3},{i % 7},drug,{i % 20},gene\n" for i in range(140))
    (tmp_path / "edges.csv").write_text(f"relation,x_id,x_type,y_id,y_type\n{edges}")
    prepare_graph(TypedGraphOptions(path=str(tmp_path / "edges.csv")), tmp_path / "edges.store")
    for limit, model, settings, expected in (
        (5, "hgt", {}, 4),
        (5, "hgt", {"evaluation.triples": "all"}, "all"),
        (5, "degree", {}, "all"),
        (50_000, "hgt", {}, "all"),
    ):
        monkeypatch.setattr("hasten.config_loading.data_defaults.MANY_TRIPLES", limit)
        for name in ("edges.csv", "edges.store"):
            path = str(tmp_path / name)
            config = build_config(model, path, flags=settings)
            config, _ = with_data_defaults(config, load_data(config, None))
            assert config.evaluation.triples == expected, (limit, model, name)


def test_validations_of_large_graphs_are_sampled_where_a_step_samples_its_negatives(monkeypatch):
    monkeypatch.setattr("hasten.models.data_size.MANY_ENTITIES", 10)
    monkeypatch.setattr("hasten.config_loading.data_defaults.VALIDATED_TRIPLES", 5)
    for model, settings, expected in (
        ("complex", {}, 5),
        ("rotate", {}, 5),
        ("complex", {"model.loss": "1vsall"}, "all"),
        ("complex", {"evaluation.triples": "all"}, "all"),
        ("tucker", {}, 5),
        ("tucker", {"model.loss": "1-n"}, "all"),
    ):
        config = build_config(model, flags=settings)
        config, _ = with_data_defaults(config, load_data(config, graph()))
        assert config.evaluation.triples == expected, (model, settings)
