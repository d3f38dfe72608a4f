"""The benchmark of guards: which steps are timed, and what is written."""

from __future__ import annotations

import pytest

from bench import guards
from hasten import api
from tests.contract.cases import sequences


def test_steps_with_and_without_guards_alternate(monkeypatch, tmp_path):
    taken = []
    plain, train, real = guards.plain_step, api.train, guards.OptimizerStep.__call__

    def plain_step(stepper, batch, lr):
        taken.append(("plain", batch.index))
        plain(stepper, batch, lr)

    def guarded(stepper, batch, *rest):
        taken.append(("guarded", batch.index))
        return real(stepper, batch, *rest)

    def small(model, _path, *, settings, out, quiet):
        kept = {name: value for name, value in settings.items() if name != "recipe"}
        kept |= {"model.width": 8, "model.max_length": 8, "training.batch_size": 8}
        return train(model, sequences(), settings=kept, out=out, quiet=quiet)

    monkeypatch.setattr(guards, "plain_step", plain_step)
    monkeypatch.setattr(guards.OptimizerStep, "__call__", guarded)
    monkeypatch.setattr(guards, "plain_file", lambda name: name)
    monkeypatch.setattr(guards.api, "train", small)
    options = ["--models", "sasrec", "--blocks", "2", "--provisional"]
    assert guards.main(options, tmp_path) in (0, 1)
    one = ["plain", "guarded", "plain", "plain", "guarded"]
    assert taken[:5] == [(side, 0) for side in one]
    assert taken[5:10] == [(side, 1) for side in one]
    (page,) = tmp_path.glob("*-guards.md")
    assert "| guards | sasrec | next_item |" in page.read_text()
    assert "| pin | sasrec | next_item |" in page.read_text()


def test_ratios_are_taken_inside_of_blocks():
    turns = guards.Alternating.__new__(guards.Alternating)
    turns.first, turns.second = [1.0, 2.0, 5.0, 5.0], [1.0, 1.0, 4.0, 4.0]
    assert turns.ratios() == pytest.approx([1.5, 1.25])
