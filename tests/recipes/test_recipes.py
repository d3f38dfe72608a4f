"""Recipes: measured settings that ``hasten train --recipe`` takes."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import hasten
from hasten.cli.main import main
from hasten.config_loading.build import build_config, load_config
from hasten.errors import ConfigurationError
from hasten.recipes.load import dataset_name, find_recipe, recipes
from hasten.runs.config_text import config_text

each_recipe = pytest.mark.parametrize("recipe", recipes(), ids=lambda r: f"{r.model}-{r.key}")


@each_recipe
def test_a_recipe_resolves_to_a_configuration_with_its_values(recipe):
    config = build_config(recipe.model, "data", flags={"recipe": recipe.key})
    assert config.recipe == recipe.key
    plain = build_config(recipe.model, "data", flags=recipe.configuration)
    assert config.model_copy(update={"recipe": None}) == plain


@each_recipe
def test_a_recipe_says_what_was_measured(recipe):
    assert recipe.about
    assert recipe.seeds
    assert recipe.protocol
    assert recipe.training_seconds >= 0
    assert recipe.machine
    metrics = build_config(recipe.model, "data", flags={"recipe": recipe.key}).evaluation.metrics
    assert list(recipe.expected)[: len(metrics)] == list(metrics)
    spread = 1 if len(recipe.seeds) == 1 else 2
    assert all(len(figure) == spread for figure in recipe.expected.values())


def test_the_name_of_the_data_finds_the_recipe():
    assert dataset_name("/data/FB15k-237.tar.gz") == "fb15k-237"
    assert dataset_name("ml_1m.csv") == "ml-1m"
    for data in ("fb15k-237", "/data/FB15k-237.tar.gz"):
        config = build_config("conve", data, flags={"recipe": "best"})
        assert config.recipe == "fb15k-237/best"
        assert config.training.average == 5
        assert str(config.data.path) == data


def test_what_is_given_wins_over_the_recipe(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("training: {epochs: 7, lr: 0.5}\nmodel: {channels: 4}\n")
    recipe = {"recipe": "umls/quick"}
    usual = build_config("conve", "x", flags=recipe)
    assert (usual.training.epochs, usual.training.lr, usual.model.channels) == (40, 4e-3, 8)
    from_file = build_config("conve", "x", file, flags=recipe)
    assert (from_file.training.epochs, from_file.training.lr) == (7, 0.5)
    assert from_file.model.channels == 4
    assert from_file.training.schedule == "cosine"
    by_flags = build_config("conve", "x", file, ["training.lr=0.1"], {"epochs": 2, **recipe})
    assert (by_flags.training.epochs, by_flags.training.lr) == (2, 0.1)
    assert build_config("conve", "x", flags={**recipe, "topk": "5"}).evaluation.metrics == (
        "mrr", "hits@5", "mr", "amri",
    )  # fmt: skip
    for other in (["recipe=umls/quick"], []):
        file.write_text("{}" if other else "recipe: umls/quick")
        assert build_config("conve", "x", file, other) == usual


def test_a_recipe_that_a_complete_configuration_overrides_is_refused(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(config_text(build_config("conve", "umls")))
    with pytest.raises(ConfigurationError, match="--recipe quick has no effect: all its settings"):
        build_config("conve", "umls", file, flags={"recipe": "quick"})
    by_recipe = build_config("conve", "umls", flags={"recipe": "quick"})
    file.write_text(config_text(by_recipe))  # repeating a run by its recipe
    assert build_config("conve", None, file, flags={"recipe": "umls/quick"}) == by_recipe


@pytest.mark.parametrize(
    ("model", "data", "name", "message"),
    [
        (
            "conve",
            "umls",
            "bset",
            r"no recipe 'umls/bset'; there are fb15k-237/best, .*mean 'umls/",
        ),
        ("conve", "mine.csv", "best", r"no recipe 'mine/best'; there are fb15k-237/best"),
        ("conve", None, "best", r"no recipe 'best'; there are"),
        ("pop", "umls", "best", r"pop has no recipes; there are some for bprmf, complex"),
    ],
)
def test_an_unknown_recipe_is_refused_with_those_that_exist(model, data, name, message):
    with pytest.raises(ConfigurationError, match=message):
        build_config(model, data, flags={"recipe": name})


def test_training_by_a_recipe_keeps_its_values_and_its_name(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).integers(0, (12, 2, 12), (400, 3))
    lines = "".join(f"e{h}\tr{r}\te{t}\n" for h, r, t in np.unique(rows, axis=0))
    Path("umls.tsv").write_text(lines)
    options = ["--recipe", "quick", "--epochs", "1", "--set", "model.width=16", "--threads", "1"]
    assert main(["train", "conve", "umls.tsv", *options, "--out", "run", "--quiet"]) == 0
    saved = yaml.safe_load(Path("run/config.yaml").read_text())
    assert saved["recipe"] == "umls/quick"
    assert saved["model"]["channels"] == 8
    assert saved["training"]["schedule"] == "cosine"
    assert saved["training"]["epochs"] == 1
    # the saved values are complete: a recipe that has changed or gone changes nothing
    text = Path("run/config.yaml").read_text()
    Path("run/config.yaml").write_text(text.replace("umls/quick", "umls/gone"))
    assert load_config(Path("run/config.yaml")).model.channels == 8
    assert main(["evaluate", "run", "--json"]) == 0
    capfd.readouterr()
    assert main(["train", "conve", "umls.tsv", "--recipe", "none", "--epochs", "0"]) == 0
    assert main(["train", "conve", "umls.tsv", "--recipe", "x"]) == 2
    assert "conve has no recipe 'umls/x'" in capfd.readouterr().err


def test_python_takes_a_recipe(tmp_path):
    data = {"head": ["a", "b", "c", "a"] * 9, "relation": ["r"] * 36, "tail": list("bcadbcdaa") * 4}
    result = hasten.train(
        "complex", data, recipe="umls/best", epochs=1, threads=1, out=tmp_path / "r", quiet=True,
        settings={"data.duplicates": "drop", "model.width": 8},
    )  # fmt: skip
    assert load_config(result.path / "config.yaml").recipe == "umls/best"


def test_recipes_are_listed_and_shown(capfd):
    assert main(["recipes", "list"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 1 + len(recipes())
    assert main(["recipes", "list", "conve", "--json"]) == 0
    listed = json.loads(capfd.readouterr().out)["recipes"]
    assert {recipe["model"] for recipe in listed} == {"conve"}
    assert main(["recipes", "show", "conve", "fb15k-237/best"]) == 0
    shown = capfd.readouterr().out
    assert "# command   hasten train conve fb15k-237 --recipe fb15k-237/best" in shown
    assert "# test      mrr 0.3277" in shown
    values = yaml.safe_load(shown)
    assert values["training.average"] == 5
    assert (
        values["evaluation.metrics"]
        == find_recipe("conve", "fb15k-237/best").configuration["evaluation.metrics"]
    )
    assert main(["recipes", "show", "conve", "fb15k-237/best", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["seeds"] == [0]
    for model in ("conv", "/", "..", "**", "pop"):
        assert main(["recipes", "list", model]) == 2
        assert f"{model} has no recipes; there are some for bprmf, " in capfd.readouterr().err
    assert main(["recipes", "show", "conve", "nothing"]) == 2
    assert "there are fb15k-237/best" in capfd.readouterr().err


def test_what_recipes_show_is_a_configuration_file(tmp_path, capfd):
    assert main(["recipes", "show", "hgt", "redda-k/best"]) == 0
    file = tmp_path / "recipe.yaml"
    file.write_text(capfd.readouterr().out)
    same = build_config("hgt", "x", flags={"recipe": "redda-k/best"})
    assert build_config("hgt", "x", file) == same.model_copy(update={"recipe": None})
