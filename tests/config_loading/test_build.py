"""Files, --set and flags into one configuration; every refusal names key, place and remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from hasten.config import AnyDataOptions, InteractionOptions, Patience
from hasten.config_loading.build import (
    build_config,
    combine_metrics,
    data_options,
    load_config,
    parse_changes,
)
from hasten.errors import ConfigurationError

pytestmark = pytest.mark.usefixtures("toy")


def write(folder: Path, text: str) -> Path:
    file = folder / "run.yaml"
    file.write_text(text)
    return file


def test_precedence_defaults_model_file_set_flags(tmp_path):
    file = write(tmp_path, "training:\n  epochs: 11\n  lr: 1e-2\n  batch_size: 32\n")
    plain = build_config("toy")
    assert plain.training.lr == 0.002  # the model's default
    assert plain.training.epochs == 7
    assert plain.training.batch_size == 128  # the general default
    config = build_config(
        "toy",
        "events.csv",
        file,
        ["training.lr=0.5", "training.batch_size=64", "data.path=other.csv"],
        {"batch_size": 16},
    )
    assert config.training.epochs == 11
    assert config.training.lr == 0.5
    assert config.training.batch_size == 16
    assert config.data.path == "events.csv"


@pytest.mark.parametrize("text", ["1e-3", "1E-3", "0.001", ".001", "1.0e-3"])
def test_every_way_to_write_a_number(tmp_path, text):
    assert build_config("toy", None, write(tmp_path, f"training: {{lr: {text}}}")).training.lr == (
        0.001
    )
    assert build_config("toy", sets=[f"training.lr={text}"]).training.lr == 0.001


def test_texts_stay_texts_and_true_is_true(tmp_path):
    file = write(
        tmp_path,
        "data:\n  path: no\n  columns: {user: on, item: 0123}\n  format: '1e-3'\n"
        "training:\n  deterministic: true\n  recompute: false\n  compile: off\n  clip_norm: null\n",
    )
    config = build_config("toy", None, file)
    assert config.data.path == "no"
    assert config.data.columns == {"user": "on", "item": "0123"}
    assert config.data.format == "1e-3"
    assert config.training.deterministic is True
    assert config.training.recompute is False
    assert config.training.compile == "off"
    assert config.training.clip_norm is None


def test_lists_mappings_and_none_by_set():
    config = build_config(
        "toy",
        sets=[
            "data.ratios=0.6,0.2,0.2",
            "data.columns.user=uid",
            "data.columns.item=iid",
            "evaluation.metrics=[recall@20, mrr]",
            "training.clip_norm=none",
            "training.patience=20 epochs",
            "model.hidden=8",
        ],
    )
    assert config.data.ratios == (0.6, 0.2, 0.2)
    assert config.data.columns == {"user": "uid", "item": "iid"}
    assert config.evaluation.metrics == ("recall@20", "mrr")
    assert config.training.clip_norm is None
    assert config.training.patience == Patience(count=20, unit="epochs")
    assert config.model.hidden == 8


def test_data_called_none_are_data():
    assert build_config("toy", "none").data.path == "none"
    assert data_options("null").path == "null"


def test_none_is_a_value_from_python():
    config = build_config("toy", sets=["training.clip_norm=3"], flags={"clip_norm": None})
    assert config.training.clip_norm is None
    with pytest.raises(
        ConfigurationError, match=r"training.epochs = nothing \(--epochs\): must be"
    ):
        build_config("toy", flags={"epochs": None})


def test_patience_flag_counts_evaluations():
    config = build_config("toy", flags={"patience": "5"})
    assert config.training.patience == Patience(count=5, unit="evaluations")
    assert build_config("toy", flags={"patience": "none"}).training.patience is None


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["training.epoch=3"], "unknown key 'training.epoch' (--set training.epoch=3); did you"),
        (["lr=3"], "did you mean 'training.lr'?"),
        (["model.dropuot=0.1"], "did you mean 'model.dropout'?"),
        (["training.epochs=-1"], "training.epochs = -1 (--set training.epochs=-1): must be 0"),
        (["training.epochs=1.5"], "must be a whole number"),
        (["training.epochs=abc"], "must be a whole number"),
        (["training.epochs="], "must be a whole number"),
        (["training.lr=nan"], "training.lr = nan (--set training.lr=nan): must be a"),
        (["training.lr=inf"], "must be a finite number"),
        (["training.lr=0"], "must be more than 0"),
        (["training.deterministic=maybe"], "must be true or false"),
        (["training.precision=fp8"], "must be one of fp32, bf16, fp16, auto"),
        (["model.dropout=1"], "model.dropout = 1 (--set model.dropout=1): must be less than 1"),
        ([f"threads={10**20}"], "must be 4096 or less"),
        (["training.patience=soon"], 'expected "5 evaluations"'),
        (["data.ratios=0.5,0.5"], "data.ratios (--set data.ratios=0.5,0.5): has too few"),
        (["data.ratios=1,1,1"], "ratios must be three shares that sum to 1"),
        (["training=3"], "is a section with keys of its own"),
        (["training.lr"], "--set training.lr: expected key.path=value"),
        (["training.lr.x=1"], "unknown key 'training.lr.x'"),
        (["evaluation.metrics=ndgc@10"], "metrics=ndgc@10): unknown metric 'ndgc@10'"),
        (["evaluation.metrics=ndcg"], "metric 'ndcg' needs a cut-off"),
        (["evaluation.metrics=[]"], "name at least one"),
        (["model.name=pop"], "two models: toy (MODEL) and pop (--set model.name=pop)"),
    ],
)
def test_wrong_settings_are_refused_with_the_remedy(sets, message):
    with pytest.raises(ConfigurationError) as caught:
        build_config("toy", sets=sets)
    assert message in str(caught.value)
    assert "pydantic" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_that_is_wrong_comes_in_one_message(tmp_path):
    file = write(tmp_path, "seed: 1\ntraining:\n  epochs: -3\n  lrr: 1\nmodel:\n  loss: mse\n")
    with pytest.raises(ConfigurationError) as caught:
        build_config("toy", None, file, [], {"batch_size": 0})
    message = str(caught.value)
    assert message.startswith("4 errors in the configuration")
    assert "training.epochs = -3 (run.yaml, line 3): must be 0 or more" in message
    assert "unknown key 'training.lrr' (run.yaml, line 4); did you mean 'training.lr'?" in message
    assert "model.loss = mse (run.yaml, line 6): must be one of ce, bce" in message
    assert "training.batch_size = 0 (--batch-size): must be 1 or more" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\nseed: 2\n", "run.yaml, line 2: key 'seed' is given twice (first at run.yaml, l"),
        ("training: {lr: 1, lr: 2}", "given twice"),
        ("training:\n  lr: 1\ntraining.lr: 2\n", "given twice"),
        ("data:\n  columns: {user: a, user: b}\n", "run.yaml, line 2: key 'user' is given twice"),
        ("a: [1\n", "run.yaml, line 2, column 1: not valid YAML"),
        ("- 1\n- 2\n", "expected keys with values"),
        ("just text", "expected keys with values"),
        ("seed: !!python/object/apply:os.system ['true']\n", "line 1: tags such as"),
        ("a: &x {b: 1}\nc: *x\n", "line 1, column 4: not valid YAML: anchors and aliases"),
        ("training: 5\n", "training (run.yaml, line 1): is a section"),
        ("? [a]\n: 1\n", "a key must be a word"),
        ("seed: {a: 1}\n", "unknown key 'seed.a'"),
        ("seed: 1\n---\nseed: 2\n", "run.yaml, line 2"),
        ("[" * 5000, "run.yaml"),
    ],
)
def test_bad_files_are_refused_with_their_line(tmp_path, text, message):
    with pytest.raises(ConfigurationError) as caught:
        build_config("toy", None, write(tmp_path, text))
    assert message in str(caught.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(ConfigurationError, match="No such file"):
        build_config("toy", None, tmp_path / "absent.yaml")
    latin = tmp_path / "latin.yaml"
    latin.write_bytes(b"seed: 1 # \xe9\n")
    with pytest.raises(ConfigurationError, match="not UTF-8 at byte 10"):
        build_config("toy", None, latin)
    large = tmp_path / "large.yaml"
    large.write_bytes(b"#" * (1 << 21))
    with pytest.raises(ConfigurationError, match="too large"):
        build_config("toy", None, large)


def test_an_empty_section_or_file_changes_nothing(tmp_path):
    assert build_config("toy", None, write(tmp_path, "training:\n")) == build_config("toy")
    assert build_config("toy", None, write(tmp_path, "")) == build_config("toy")


def test_a_saved_configuration_repeats_itself(tmp_path):
    config = build_config(
        "toy",
        "x.csv",
        sets=["data.columns.user=uid", "training.patience=20 epochs", "data.separator=\t"],
        flags={"seed": 9, "threads": 1, "out": Path("somewhere"), "max_time": 90},
    )
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    assert load_config(file) == config
    assert build_config("toy", None, file) == config
    with pytest.raises(ConfigurationError, match=r"two models: sasrec \(MODEL\) and toy"):
        build_config("sasrec", None, file)


def test_a_model_must_be_named_and_known(tmp_path):
    with pytest.raises(ConfigurationError, match="no model is named"):
        build_config()
    assert build_config(config_file=write(tmp_path, "model: toy\n")).model.name == "toy"
    with pytest.raises(
        ConfigurationError, match=r"unknown model 'sasrek' .*; did you mean 'sasrec'"
    ):
        build_config("sasrek")


def test_metrics_and_cuts_combine():
    assert combine_metrics("ndcg,hr", "10,20") == ("ndcg@10", "ndcg@20", "hr@10", "hr@20")
    assert combine_metrics("ndcg, mrr", "5") == ("ndcg@5", "mrr")
    assert combine_metrics("recall@50,hr", None, ("ndcg@10", "ndcg@20")) == (
        "recall@50",
        "hr@10",
        "hr@20",
    )
    assert combine_metrics(None, "20", ("ndcg@10", "hr@10", "mrr")) == ("ndcg@20", "hr@20", "mrr")
    config = build_config("toy", sets=["evaluation.metrics=map@5"], flags={"topk": "10,20"})
    assert config.evaluation.metrics == ("map@10", "map@20")
    assert build_config("toy", flags={"metrics": ["HR"], "topk": 3}).evaluation.metrics == ("hr@3",)


@pytest.mark.parametrize("topk", ["0", "-1", "ten", "1.5", "", "10,,x"])
def test_wrong_cuts_are_refused(topk):
    with pytest.raises(ConfigurationError, match="--topk"):
        build_config("toy", flags={"topk": topk})


def test_data_options_alone():
    options = data_options("x.tsv", "tsv", ["data.columns.user=uid", "data.k_core=5"])
    assert (options.path, options.format, options.k_core) == ("x.tsv", "tsv", 5)
    with pytest.raises(ConfigurationError, match=r"unknown key 'training.lr'"):
        data_options("x.tsv", None, ["training.lr=1"])
    with pytest.raises(ConfigurationError, match=r"did you mean 'data.k_core'"):
        data_options("x.tsv", None, ["k_core=1"])
    with pytest.raises(ConfigurationError, match=r"data.k_core = -1 .*: must be 0 or more"):
        data_options("x.tsv", None, ["data.k_core=-1"])


@pytest.mark.parametrize(
    ("model", "key", "value", "models"),
    [
        ("toy", "kg", "/missing", "kgat"),
        ("toy", "features.image", "a.npy", "bprmf, lightgcn, mmgcn, dragon, bm3, freedom, hgt"),
        ("bprmf", "kg", "/missing", "kgat"),
        ("kgat", "features.image", "a.npy", "bprmf"),
        ("mmgcn", "unknown", "keep", "conve, distmult, complex, tucker, rotate, hgt, degree"),
        ("conve", "features.drug", "a.npy", "hgt"),
        ("hgt", "k_core", "2", "sasrec"),
        ("hgt", "k_core", "-2", "sasrec"),
    ],
)
def test_data_options_of_other_models_are_refused(tmp_path, model, key, value, models):
    with pytest.raises(ConfigurationError) as caught:
        build_config(model, sets=[f"data.{key}={value}"])
    shown = key.partition(".")[0]
    assert f"data.{shown} (--set data.{key}={value}): has no effect on {model}; it is for " in str(
        caught.value
    )
    assert models in str(caught.value)
    assert "\n" not in str(caught.value)
    file = write(tmp_path, f"data:\n  {key}: {value}\n")
    if "." not in key:
        with pytest.raises(ConfigurationError, match=r"run.yaml, line 2\): has no effect on"):
            build_config(model, None, file)


def test_an_old_file_may_hold_the_defaults_of_other_models(tmp_path):
    text = "".join(
        f"  {name}: {json.dumps(value)}\n"
        for name, value in AnyDataOptions(kg=None).model_dump(mode="json").items()
    )
    config = build_config("toy", None, write(tmp_path, "data:\n" + text))
    assert config == build_config("toy")
    assert "kg" not in config.model_dump()["data"]
    assert isinstance(config.data, InteractionOptions)


def test_changes_are_typed_and_checked():
    changes = parse_changes(
        ["training.epochs=30", "evaluation.mask_history=true", "model.hidden=3"],
        {"patience": "20 epochs", "topk": "5"},
        ("hr@10",),
    )
    assert changes == {
        "training.epochs": 30,
        "evaluation.mask_history": True,
        "model.hidden": "3",
        "training.patience": Patience(count=20, unit="epochs"),
        "evaluation.metrics": ("hr@5",),
    }
    with pytest.raises(ConfigurationError, match="must be a whole number"):
        parse_changes(["training.epochs=x"], {})
    with pytest.raises(ConfigurationError, match=r"did you mean 'training.epochs'"):
        parse_changes(["training.epoch=3"], {})


def test_a_lone_surrogate_is_refused_with_its_line(tmp_path):
    file = tmp_path / "c.yaml"
    for text in ('data:\n  path: "\\ud800"', 'data:\n  columns: {user: "\\udcff"}'):
        file.write_text(f"model: sasrec\n{text}\n")
        with pytest.raises(ConfigurationError, match=r"c\.yaml, line 3: .*is not a Unicode text"):
            build_config(config_file=file)


@pytest.mark.parametrize("betas", ["[1,1]", "[0.9,1]", "[-0.1,0.9]"])
def test_decay_rates_that_adam_cannot_take(betas):
    with pytest.raises(ConfigurationError, match=r"training\.betas = .*must be"):
        build_config("sasrec", sets=[f"training.betas={betas}"])
