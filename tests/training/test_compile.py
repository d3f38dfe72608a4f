"""``compile=auto`` stays compiled only where the run gets shorter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch._dynamo.utils import counters

from hasten.training import compile as module


@pytest.mark.parametrize(
    ("eager", "compiled", "epochs", "kept"),
    [
        (100.0, 90.0, 10, True),  # 1,000 steps save 10 s
        (100.0, 90.0, 4, False),  # 400 steps save 4 s
        (100.0, 98.0, 1000, False),  # within the noise
        (100.0, 120.0, 10, False),
    ],
)
def test_auto_weighs_the_time_saved_against_the_time_of_compiling(
    monkeypatch, eager, compiled, epochs, kept
):
    clock = [0.0]
    in_use = []

    def compile_with(way):
        in_use[:] = [way]
        return True

    def probe(*_):
        clock[0] += 5.0
        counters["stats"]["unique_graphs"] = 1
        return eager if in_use == [module._plain] else compiled

    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(module, "_probe", probe)
    phase = SimpleNamespace(name="loss", steps=lambda: 100, compile_with=compile_with)
    report = module.compile_step(SimpleNamespace(phase=phase), "auto", 0, epochs)
    assert report.in_effect == kept
    assert (in_use == [module._plain]) != kept
    saved = (eager - compiled) * 100 * epochs / 1e3
    note = f"compiling took 5 s and would save {saved:.0f} s of the run"
    assert report.note == ("" if kept else note)
