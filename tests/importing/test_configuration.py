"""Configurations of RecBole, MMRec and the guides: what is translated, and what is not and why."""

from __future__ import annotations

import json

import pytest

from hasten.cli.main import main
from hasten.config_loading.build import load_config
from hasten.errors import ConfigurationError, UsageError
from hasten.importing.configuration import translate_config

MMREC = """
use_amp: False
train_batch_size: 4096
use_torch_compile: True
eval_step: 3
metrics: ["Recall", "NDCG"]
topk: [20]
valid_metric: Recall@20
clip_grad_norm: {'max_norm': 5.0, 'norm_type': 2}
epochs: 1000
stopping_step: 20
learner: adam
eval_batch_size: 4096
weight_decay: 0.0
seed: [999]
reg_weight: [0.0, 0.1]
embedding_size: 64
"""
RECBOLE = """
model: SASRec
dataset: ml-100k
n_layers: 2
n_heads: 2
hidden_size: 64
inner_size: 256
hidden_dropout_prob: 0.5
attn_dropout_prob: 0.2
hidden_act: gelu
loss_type: CE
MAX_ITEM_LIST_LENGTH: 50
learning_rate: 0.001
eval_args: {split: {LS: valid_and_test}, order: TO, mode: full}
user_inter_num_interval: "[5,inf)"
train_neg_sample_args: ~
"""


def written(tmp_path, text):
    file = tmp_path / "overall.yaml"
    file.write_text(text)
    return file


def test_the_configuration_of_a_guide(tmp_path):
    found = translate_config([written(tmp_path, MMREC)], "mmgcn")
    config, reasons = found.config, {line.key: line.reason for line in found.lines}
    training = config.training
    assert (training.precision, training.compile, training.batch_size) == ("fp32", "auto", 4096)
    assert (training.clip_norm, training.epochs, config.evaluation.every) == (5.0, 1000, 3)
    assert training.patience.count == 20
    assert config.model.width == 64
    assert config.evaluation.metrics == ("recall@20", "ndcg@20")
    assert reasons["eval_batch_size"].startswith("evaluation always ranks tiles")
    assert "a list of values is a grid" in reasons["reg_weight"]
    assert reasons["clip_grad_norm.norm_type"] is None


def test_a_recbole_configuration(tmp_path):
    found = translate_config([written(tmp_path, RECBOLE)])
    config, reasons = found.config, {line.key: line.reason for line in found.lines}
    assert config.model.name == "sasrec"
    assert (config.model.blocks, config.model.heads, config.model.width) == (2, 2, 64)
    assert (config.model.max_length, config.model.loss, config.data.k_core) == (50, "ce", 5)
    assert (config.data.split, config.training.lr) == ("leave-last-two-out", 1e-3)
    assert reasons["attn_dropout_prob"] == "model.dropout is 0.5 by another key of the file"
    assert "hasten train MODEL DATA" in reasons["dataset"]
    assert "GELU" in reasons["hidden_act"]
    assert reasons["inner_size"] == "no option of hasten has this effect"


def test_the_command_writes_a_configuration_that_train_accepts(tmp_path, capfd):
    out = tmp_path / "mine.yaml"
    file = written(tmp_path, json.dumps({"embedding_dim": 128, "optimizations": {"use_amp": True}}))
    assert main(["import-config", str(file), "--model", "conve", "--out", str(out)]) == 0
    told = capfd.readouterr().err
    assert "embedding_dim: model.width=128" in told
    assert f"hasten train --config {out}" in told
    config = load_config(out)
    assert (config.model.name, config.model.width, config.training.precision) == (
        "conve", 128, "auto",
    )  # fmt: skip


def test_a_model_is_needed_and_known(tmp_path):
    with pytest.raises(UsageError, match="--model MODEL"):
        translate_config([written(tmp_path, "epochs: 3")])
    with pytest.raises(ConfigurationError, match="no model gru4rec"):
        translate_config([written(tmp_path, "model: GRU4Rec")])
