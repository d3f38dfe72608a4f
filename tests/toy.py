"""A tiny model that the configuration can be built for without importing torch."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Literal

import pytest
from pydantic import Field

from hasten import registry
from hasten.config import ModelOptions
from hasten.models.supports import Supports


class ToyOptions(ModelOptions):
    name: Literal["toy"] = "toy"
    hidden: int = Field(64, ge=1)
    dropout: float = Field(0.2, ge=0, lt=1)
    loss: Literal["ce", "bce"] = "ce"


class Toy:
    name = "toy"
    summary = "a toy"
    Options = ToyOptions
    defaults = {"lr": 0.002, "epochs": 7}  # noqa: RUF012
    sample = "sequences"
    scores_new_users = True
    reads = "interactions"
    supports = Supports()
    phases = scorer = SimpleNamespace()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    module = ModuleType("toy_model")
    module.Toy = Toy  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "toy_model", module)
    entry = registry.ModelEntry("toy", "toy_model", "Toy", "a toy")
    monkeypatch.setattr(registry, "BUILT_IN", (*registry.BUILT_IN, entry))
    return Toy
