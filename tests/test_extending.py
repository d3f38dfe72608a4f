"""The examples of docs/extending.md, installed as another package, fulfil the model contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import hasten
from hasten import registry
from hasten.distributed import launch
from hasten.testing import check_model
from tests import forked

PAGE = Path(__file__).parent.parent / "docs" / "extending.md"
_CODE = re.compile(r"<!-- tested: model (\w+) -->\n```python\n(.*?)```", re.DOTALL)
#: at most so many lines, imports included, and the class
EXAMPLES = {"gru4rec": (60, "GRU4Rec"), "transe": (80, "TransE"), "neumf": (80, "NeuMF")}
SETTINGS = {
    "gru4rec": ({"model.width": 16, "model.max_length": 12}, {"model.dropout": 0.0}),
    "transe": ({"model.width": 16, "model.negatives": 8}, {}),
    "neumf": ({"model.width": 8}, {}),
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """All examples in one package that declares them as entry points."""
    found = dict(_CODE.findall(PAGE.read_text(encoding="utf-8")))
    assert set(found) == set(EXAMPLES)
    about = tmp_path / "package" / "examples-0.1.dist-info"
    about.mkdir(parents=True)
    for name, code in found.items():
        (about.parent / f"{name}.py").write_text(code, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: examples\nVersion: 0.1\n")
    points = [f"{name} = {name}:{kind}" for name, (_, kind) in EXAMPLES.items()]
    (about / "entry_points.txt").write_text("\n".join(["[hasten.models]", *points, ""]))
    monkeypatch.syspath_prepend(about.parent)
    monkeypatch.setattr(launch, "subprocess", forked)
    registry._foreign_entries.cache_clear()
    yield found
    registry._foreign_entries.cache_clear()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fulfils_the_contract(package, name):
    assert len(package[name].splitlines()) <= EXAMPLES[name][0]
    settings, without_dropout = SETTINGS[name]
    check_model(name, settings=settings, without_dropout=without_dropout)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_a_report(package, name, tmp_path):
    settings = {**SETTINGS[name][0], "epochs": 1, "threads": 1}
    made = hasten.train(name, settings=settings, out=tmp_path / "run", quiet=True).report()
    assert "Examples" in made.to_html()
    assert "not measured" not in made.to_html()
