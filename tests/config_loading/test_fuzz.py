"""Whatever stands in a file or behind --set: a configuration or one clear refusal, nothing else."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hasten.config import RunConfig
from hasten.config_loading.build import build_config, load_config
from hasten.errors import ConfigurationError
from hasten.runs.config_text import config_text

pytestmark = pytest.mark.usefixtures("toy")

GOOD = """
model: {name: toy, hidden: 32}
data:
  path: events.csv
  columns: {user: uid}
  ratios: [0.8, 0.1, 0.1]
training:
  lr: 1e-3
  patience: 20 epochs
seed: 3
"""
PIECES = st.sampled_from(
    [
        *"{}[]:,-?!&*|>'\"%@`#~\t\n =.0",
        "null",
        "true",
        "1e-3",
        "!!int",
        "<<: ",
        "---",
        "\x00",
        "é",
        "training",
        "model",
        "data.columns",
        "lr",
        "evaluation.metrics",
    ]
)
lenient = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def refused_or_built(**arguments) -> None:
    try:
        config = build_config("toy", **arguments)
    except ConfigurationError:
        return
    assert isinstance(config, RunConfig)


@lenient
@given(at=st.integers(0, len(GOOD)), cut=st.integers(0, 4), pieces=st.lists(PIECES, max_size=4))
def test_a_mutated_file(tmp_path, at, cut, pieces):
    file = tmp_path / "run.yaml"
    text = GOOD[:at] + "".join(pieces) + GOOD[at + cut :]
    file.write_text(text, encoding="utf-8")
    refused_or_built(config_file=file)


@lenient
@given(content=st.binary(max_size=80))
def test_any_bytes(tmp_path, content):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    refused_or_built(config_file=file)


@lenient
@given(pieces=st.lists(PIECES | st.text(max_size=5), max_size=6))
def test_any_setting(pieces):
    refused_or_built(sets=["".join(pieces)])


@lenient
@given(
    key=st.sampled_from(
        [
            "training.lr",
            "data.columns",
            "data.ratios",
            "evaluation.metrics",
            "seed",
            "training.patience",
            "data.columns.user",
            "out",
            "threads",
            "data.path",
        ]
    ),
    value=st.text(max_size=12) | st.lists(PIECES, max_size=4).map("".join),
)
def test_any_value(key, value):
    refused_or_built(sets=[f"{key}={value}"])


@lenient
@given(
    path=st.none() | st.text(min_size=1, max_size=12),
    columns=st.dictionaries(st.sampled_from(["user", "item"]), st.text(min_size=1, max_size=6)),
    lr=st.floats(1e-12, 1e12),
)
def test_a_saved_configuration_is_read_back(tmp_path, path, columns, lr):
    flags = {"data.path": path, "data.columns": columns, "lr": lr, "data.separator": "\t"}
    config = build_config("toy", flags=flags)
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config), encoding="utf-8", newline="")
    assert load_config(file) == config
