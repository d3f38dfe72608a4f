"""A run in a process of its own gives the result of a run in this one, and its errors."""

from __future__ import annotations

import pytest

from hasten import run
from hasten.config_loading.build import build_config
from hasten.errors import HastenError
from hasten.run_in_processes import train_in_processes

EVENTS = "user_id,item_id,timestamp\n" + "".join(
    f"user{u},item{(u + step) % 15},{100 + step}\n" for u in range(30) for step in range(8)
)


def test_one_process_trains_and_continues(tmp_path):
    (tmp_path / "events.csv").write_text(EVENTS)
    flags = {"threads": 1, "out": tmp_path / "run"}
    config = build_config("pop", str(tmp_path / "events.csv"), flags=flags)
    found = train_in_processes(config, 1, quiet=True, resume_auto=True)
    here = run.train(config.model_copy(update={"out": tmp_path / "here"}), quiet=True)
    assert found.test == here.test
    assert found.run == tmp_path / "run"
    with pytest.raises(HastenError, match="holds a run already") as error:
        train_in_processes(config, 1, quiet=True)
    assert (error.value.code, error.value.exit_code) == ("run_folder", 2)
