"""Models by name: built in, of other packages, unknown, and ambiguous."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace

import pytest

from hasten import registry
from hasten.config import EvaluationOptions, TrainingOptions
from hasten.config.data import READS
from hasten.errors import ConfigurationError
from hasten.models.interface import Model
from hasten.registry import (
    BUILT_IN,
    ModelEntry,
    data_options_of,
    find_model,
    load_model,
    model_entries,
)


@pytest.mark.parametrize("entry", BUILT_IN, ids=lambda entry: entry.name)
def test_built_in_models_are_what_they_are_listed_as(entry):
    model = entry.load()
    assert model.name == entry.name
    assert model.Options.model_validate({}).name == entry.name
    for name in model.defaults:
        section, _, field = name.rpartition(".")
        sections = {
            "": TrainingOptions,
            "evaluation": EvaluationOptions,
            "data": data_options_of(model),
        }
        fields = sections[section].model_fields
        assert field in fields


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(ConfigurationError, match=r"unknown model 'sasrek' .*did you mean 'sasrec'"):
        find_model("sasrek")
    with pytest.raises(
        ConfigurationError, match=r"unknown model 'zebra' \(there are sasrec, .*pop\)"
    ):
        find_model("zebra")


@pytest.fixture
def foreign(monkeypatch):
    """Entry points as installed packages would declare them."""
    module = ModuleType("foreign_models")
    complete = dict.fromkeys([*registry._REQUIRED, "scorer"])
    module.Good = type("Good", (Model,), complete)
    module.Bad = type("Bad", (Model,), {"name": "bad"})
    module.Other = type("Other", (), complete)
    monkeypatch.setitem(sys.modules, "foreign_models", module)

    def declare(**points: str) -> None:
        found = []
        for name, value in points.items():
            point = EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
            found.append(point._for(SimpleNamespace(name="foreign")))
        monkeypatch.setattr("importlib.metadata.entry_points", lambda group: found)
        registry._foreign_entries.cache_clear()

    yield declare
    registry._foreign_entries.cache_clear()


def test_other_packages_add_models(foreign):
    foreign(good="foreign_models:Good")
    assert load_model("good").__name__ == "Good"
    assert model_entries()[-1].package == "foreign"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("foreign_models:Bad", "lacks summary, Options, sample, scorer"),
        ("foreign_models:Other", "is not a subclass of hasten.models.interface.Model"),
        ("foreign_models:Absent", "cannot be imported from foreign_models:Absent"),
        ("absent_models:X", "cannot be imported from absent_models:X"),
    ],
)
def test_foreign_models_that_do_not_work_name_their_package(foreign, value, message):
    foreign(x=value)
    with pytest.raises(ConfigurationError, match=message) as caught:
        load_model("x")
    assert "package foreign" in str(caught.value)


def test_what_a_model_reads_is_one_of_the_known_kinds():
    assert (
        data_options_of(type("Pairs", (Model,), {"name": "x", "reads": "pairs"})) is READS["pairs"]
    )
    assert data_options_of(type("Plain", (Model,), {"name": "x"})) is READS["interactions"]
    with pytest.raises(ConfigurationError, match="model 'x': reads = 'pair': must be one of"):
        data_options_of(type("Wrong", (Model,), {"name": "x", "reads": "pair"}))


def test_a_name_offered_twice_is_refused(foreign):
    foreign(sasrec="foreign_models:Good")
    with pytest.raises(ConfigurationError, match=r"several packages \(hasten, foreign\)"):
        find_model("sasrec")
    assert find_model("pop").package == "hasten"


def test_a_defect_in_a_built_in_model_is_not_hidden():
    with pytest.raises(ImportError):
        ModelEntry("x", "hasten.models.absent", "X", "").load()
