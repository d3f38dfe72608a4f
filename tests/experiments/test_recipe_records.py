"""Recipes, the records they were measured as, and README's table agree."""

import json
import re
from dataclasses import replace

import pytest

from bench.machine import ROOT
from experiments.constant_defaults import CHANGED
from experiments.definitions import EXPERIMENTS
from experiments.experiment import by_recipe, configuration_keys, differing_keys
from experiments.quality import (
    DATA,
    UNMEASURED,
    as_it_comes,
    figure,
    headline_table,
    headlines,
)
from experiments.recipes import completed, measured
from experiments.summary import RESULTS, load_configurations
from hasten.config_loading.build import build_config
from hasten.recipes.load import FOLDER, find_recipe, recipes


@pytest.mark.parametrize("recipe", recipes(), ids=lambda r: f"{r.model}-{r.key}")
def test_a_recipe_is_what_its_records_ran_with(recipe):
    """A default that changes has to be written into the recipe."""
    for seed in recipe.seeds:
        record = json.loads((RESULTS / f"{recipe.records}-seed{seed}.json").read_text())
        experiment = by_recipe(recipe.model, recipe.data, recipe.name, count=seed + 1)[seed]
        assert differing_keys(record, experiment) == {}


def test_records_of_earlier_defaults_are_those_of_their_experiments():
    """Each pins what was changed; what follows from the data is not in its options."""
    for (model, data), questions in CHANGED.items():
        for question, options in questions:
            name = f"{model}-{data}-{question}"
            (experiment,) = [e for e in EXPERIMENTS if (e.configuration, e.seed) == (name, 0)]
            path = RESULTS / f"{name}-seed0.json"
            if path.exists():
                record = json.loads(path.read_text())
                assert differing_keys(record, experiment) == {}
                if options:
                    other = replace(experiment, options=(*experiment.options, "--lr", "9"))
                    assert differing_keys(record, other).keys() == {"training.lr"}


def test_every_recipe_is_an_experiment_and_so_are_the_defaults():
    known = {(e.configuration, e.model, e.data) for e in EXPERIMENTS}
    assert {(r.records, r.model, r.data) for r in recipes()} <= known
    comparable = {(r.model, r.data) for r in recipes() if r.name == "best" and r.model != "degree"}
    alone = {
        ("sasrec", "home"),
        ("tisasrec", "ml-1m"),
        ("complex", "drugbank-ddi"),
        ("conve", "drugbank-ddi"),
    }
    assert {(m, d) for _, m, d in known if f"{m}-{d}-as-it-comes" in {c for c, _, _ in known}} == (
        comparable | alone
    )


def test_every_row_of_quality_has_a_recipe():
    page = (ROOT / "docs/quality.md").read_text().replace("](", "](docs/")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| [")]
    assert len(rows) >= len(recipes())
    readme = (ROOT / "README.md").read_text()
    body = readme.partition("quality: written")[2].partition("end of quality")[0]
    brief = [line.strip("| ").split(" | ") for line in body.splitlines() if line.startswith("| [")]
    complete = {
        (row[0], row[1])
        for row in rows
        if "provisional" not in row[3] + row[4] and row[3] != UNMEASURED
    }
    assert {(row[0], row[1]) for row in brief} == complete
    assert {tuple(row[:6]) for row in brief} <= {tuple(row[:6]) for row in rows}
    for model, data, _, usual, shown, key, seeds, *_ in rows:
        name = re.findall(r"`(\w+)`", model)[0]
        recipe = find_recipe(name, key.strip("`"))
        assert DATA[recipe.data] == data
        value, note = re.fullmatch(r"\[(.+?)\]\(docs/experiments.md#[\w-]+\)(.*)", shown).groups()
        assert value in {figure(value) for value in recipe.expected.values()}
        question = CHANGED.get((name, recipe.data), (("as-it-comes", ""),))[-1][0]
        linked = rf"\[\.\d{{4}}( ± \.\d{{4}})?\]\(docs/experiments.md#[\w-]+-{question}\)"
        linked += r"( \(provisional\))?"
        assert re.fullmatch(rf"not measured|\.\d{{4}}( ± \.\d{{4}})?|{linked}", usual)
        assert int(seeds) == len(recipe.seeds)
        assert ("provisional" in note) == (len(recipe.seeds) < 3)


def test_what_was_measured_comes_from_the_records():
    records = load_configurations(RESULTS)
    found = measured(records["sasrec-beauty-ce"])
    assert found["seeds"] == [0, 1, 2]
    values = [record["test"]["ndcg@10"] for record in records["sasrec-beauty-ce"]]
    assert found["expected"]["ndcg@10"][0] == pytest.approx(sum(values) / 3, abs=1e-4)
    assert measured([]) == {}
    sealed = [{k: v for k, v in r.items() if k != "test"} for r in records["sasrec-beauty-ce"]]
    assert measured(sealed) == {}


def test_a_figure_as_it_comes_of_few_seeds_is_provisional():
    recipe = find_recipe("sasrec", "beauty/best")
    runs = load_configurations(RESULTS)["sasrec-beauty-ce"]
    name = "sasrec-beauty-as-it-comes"
    assert as_it_comes(recipe, "ndcg@10", {}) == "not measured"
    few = as_it_comes(recipe, "ndcg@10", {name: runs[:2]})
    assert few.startswith("[.0")
    assert few.endswith(f"#{name}) (provisional)")
    linked = f"[{figure(recipe.expected['ndcg@10'])}](docs/experiments.md#{name})"
    assert as_it_comes(recipe, "ndcg@10", {name: runs}) == linked


def test_a_row_of_the_readme_needs_three_seeds_of_both_figures():
    recipe = find_recipe("sasrec", "beauty/best")
    records = {"sasrec-beauty-as-it-comes": load_configurations(RESULTS)["sasrec-beauty-ce"]}
    assert "`beauty/best`" in headline_table([recipe], records)
    assert "`beauty/best`" not in headline_table([recipe], {})
    assert "`beauty/best`" not in headline_table([replace(recipe, seeds=[0, 1])], records)


def test_a_figure_as_it_comes_has_the_treatment_of_the_recipe_and_a_shared_metric():
    records = load_configurations(RESULTS)
    name, recipe = "bprmf-ml-100k-facts-as-it-comes", find_recipe("bprmf", "ml-100k-facts/best")
    assert next(iter(recipe.expected)) == "ndcg@20"
    assert list(headlines(recipe, records)) == ["recall@20"]
    assert list(headlines(recipe, {})) == ["ndcg@20"]
    masked = measured(records[name])["expected"]["recall@20"]
    assert f"[{figure(masked)}]" in as_it_comes(recipe, "recall@20", records)
    kept = replace(recipe, protocol=recipe.protocol.replace("history masked", "history kept"))
    other = measured(records[name], "/kept")["expected"]["recall@20"]
    assert other != masked
    assert f"[{figure(other)}]" in as_it_comes(kept, "recall@20", records)


def test_measured_figures_replace_what_a_file_says(tmp_path):
    path = FOLDER / "sasrec" / "beauty.yaml"
    text = path.read_text()
    copy = tmp_path / "beauty.yaml"
    copy.write_text(text.replace("ndcg@10: [0.0352", "ndcg@10: [0.9"))
    assert completed(copy, load_configurations(RESULTS)) == text


def test_every_experiment_has_a_valid_configuration():
    for experiment in EXPERIMENTS:
        if experiment.seed == 0:
            keys = configuration_keys(experiment.model, experiment.options)
            build_config(experiment.model, experiment.data, flags=keys)
