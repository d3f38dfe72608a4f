"""Run folders: made once, never mixed, whole, and gone again when the run never began."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.config import ModelOptions, RunConfig
from hasten.config_loading.build import load_config
from hasten.errors import HastenError, RunFolderError
from hasten.runs.config_text import config_text
from hasten.runs.run_folder import RunFolder, run_name


class Options(ModelOptions):
    """Options of a model of these tests."""

    width: int = 64
    loss: str = "ce"


def config(**keys: object) -> RunConfig:
    return RunConfig.model_validate({"model": Options(name="sasrec"), **keys})


def begin(path: Path) -> RunFolder:
    folder = RunFolder.create(path, "sasrec", "beauty")
    folder.write_config(config())
    return folder


def test_a_run_lies_in_the_named_folder_itself(tmp_path):
    out = tmp_path / "deep" / "run"
    with RunFolder.create(out, "sasrec", "beauty") as folder:
        assert folder.path == out
        assert not RunFolder.holds_run(out)
        folder.write_config(config())
        assert RunFolder.holds_run(out)
        assert folder.data.is_dir()
        assert (folder.checkpoints, folder.best, folder.final) == (
            out / "checkpoints",
            out / "best",
            out / "final",
        )


def test_without_a_name_the_first_free_number_is_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    day = time.strftime("%Y-%m-%d")
    (tmp_path / "runs" / f"{day}-sasrec-beauty-2").mkdir(parents=True)
    made = [RunFolder.create(None, "sasrec", "/some/where/beauty") for _ in range(3)]
    assert [str(f.path) for f in made] == [f"runs/{day}-sasrec-beauty-{n}" for n in (1, 3, 4)]
    for folder in made:
        folder.close()


def test_many_at_once_get_a_folder_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made: list[RunFolder] = []
    threads = [
        threading.Thread(target=lambda: made.append(RunFolder.create(None, "m", "d")))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({folder.path for folder in made}) == 12
    for folder in made:
        folder.close()


@given(st.text(max_size=100), st.text(max_size=100), st.integers(1, 10**6))
@settings(deadline=None)
def test_names_are_plain_and_stay_under_runs(model, data, number):
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", run_name(model, data, number))
    assert run_name(model, data, number).endswith(f"-{number}")


def test_a_folder_with_a_run_is_refused(tmp_path):
    begin(tmp_path / "run").close()
    with pytest.raises(RunFolderError, match=r"holds a run already.*resume"):
        RunFolder.create(tmp_path / "run", "sasrec", "beauty")


def test_a_folder_with_other_things_is_refused_untouched(tmp_path):
    for entry in ("thesis.tex", "checkpoints", ".git"):
        folder = tmp_path / f"has {entry}"
        folder.mkdir()
        (folder / entry).mkdir()
        with pytest.raises(RunFolderError, match="not empty and not a run"):
            RunFolder.create(folder, "sasrec", "beauty")
        assert [found.name for found in folder.iterdir()] == [entry]
    full = tmp_path / "full"
    (full / "data").mkdir(parents=True)
    (full / "data" / "mine.csv").touch()
    with pytest.raises(RunFolderError, match="not empty and not a run"):
        RunFolder.create(full, "sasrec", "beauty")


def test_what_a_start_killed_early_left_is_taken_over(tmp_path):
    left = RunFolder.create(tmp_path / "run", "sasrec", "beauty", ["data/users.parquet"])
    left.write_json("environment.json", {})
    (left.data / "users.parquet").touch()
    (left.data / ".users.parquet.123.new").touch()
    (left.data / "empty").mkdir()
    (tmp_path / "run" / ".config.yaml.123.new").touch()
    left.close()
    again = begin(tmp_path / "run")
    assert yaml.safe_load((again.path / "config.yaml").read_bytes())["seed"] == 0
    assert list(again.data.iterdir()) == [again.data / "empty"]
    again.close()
    with pytest.raises(RunFolderError, match="holds a run already"):
        begin(tmp_path / "run")


def test_a_run_whose_configuration_was_lost_is_not_taken_over(tmp_path):
    begin(tmp_path / "run").close()
    (tmp_path / "run" / "checkpoints").mkdir()
    (tmp_path / "run" / "config.yaml").unlink()
    with pytest.raises(RunFolderError, match="not empty and not a run"):
        begin(tmp_path / "run")


def test_a_file_or_a_place_without_permission(tmp_path):
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunFolderError, match="no run folder can be made"):
            RunFolder.create(out, "sasrec", "beauty")


def test_two_processes_cannot_share_it(tmp_path):
    with begin(tmp_path / "run"):
        with pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"):
            RunFolder.open(tmp_path / "run", lock=True)
        RunFolder.open(tmp_path / "run", lock=False).close()
    RunFolder.open(tmp_path / "run", lock=True).close()
    with (
        RunFolder.create(tmp_path / "new", "m", "d"),
        pytest.raises(RunFolderError, match="in use"),
    ):
        RunFolder.create(tmp_path / "new", "m", "d")


@pytest.mark.parametrize("lock", [True, False])
def test_what_is_no_run_is_named_and_left_alone(tmp_path, lock):
    begin(tmp_path / "run").close()
    (tmp_path / "run" / "checkpoints" / "epoch-0001").mkdir(parents=True)
    (tmp_path / "file").touch()
    for path, message in (
        ("absent", "no such run folder"),
        ("file", "a file, but not of a run"),
        (".", "a folder, but not of a run .it has no config.yaml"),
        ("run/checkpoints/epoch-0001", r"part of a run, not its folder; name .*run$"),
    ):
        with pytest.raises(RunFolderError, match=message):
            RunFolder.open(tmp_path / path, lock=lock)
    assert {entry.name for entry in tmp_path.iterdir()} == {"run", "file"}


def test_opening_for_writing_tidies_up_and_for_reading_does_not(tmp_path):
    begin(tmp_path / "run").close()
    run = tmp_path / "run"
    for name in (".best.old", ".final.new", ".best.trash", ".x.trash", ".notes.old"):
        (run / name).mkdir()
    for name in (".metrics.json.77.new", ".notes.txt.77.new"):
        (run / name).touch()
    RunFolder.open(run, lock=False).close()
    assert (run / ".best.old").is_dir()
    RunFolder.open(run, lock=True).close()
    kept = {".x.trash", ".notes.old", ".notes.txt.77.new"}  # the user's, whatever they are called
    names = {entry.name for entry in run.iterdir()}
    assert names == {".lock", "best", "config.yaml", "data"} | kept


def test_a_run_that_never_began_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(None, "sasrec", "beauty", ["data/items.parquet"])
    folder.write_config(config())
    folder.write_json("data.json", {"rows": 1})
    (folder.data / "items.parquet").touch()
    folder.discard()
    assert list(tmp_path.iterdir()) == []

    (tmp_path / "mine").mkdir()
    for out in (tmp_path / "mine", tmp_path / "a" / "b" / "c"):
        folder = begin(out)
        folder.discard()
    assert [entry.name for entry in tmp_path.iterdir()] == ["mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_discarding_spares_what_others_put_beside_it(tmp_path):
    folder = begin(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "other").mkdir()
    folder.discard()
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["other"]


def test_json_is_strict_and_whole(tmp_path):
    with begin(tmp_path / "run") as folder:
        value = {"a": math.nan, "b": [math.inf, np.float32(0.5), np.int64(7)], "c": {"d": "ü\n"}}
        folder.write_json("metrics.json", value)
        text = (folder.path / "metrics.json").read_text()
        assert json.loads(text, parse_constant=pytest.fail) == {
            "a": None,
            "b": [None, 0.5, 7],
            "c": {"d": "ü\n"},
        }
        assert folder.read_json("metrics.json")["b"] == [None, 0.5, 7]
        assert not [entry for entry in folder.path.iterdir() if entry.name.endswith(".new")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_json_is_named(tmp_path, content):
    with begin(tmp_path / "run") as folder:
        (folder.path / "metrics.json").write_bytes(content)
        with pytest.raises(RunFolderError, match=r"metrics\.json: damaged"):
            folder.read_json("metrics.json")
        with pytest.raises(RunFolderError, match=r"absent\.json: missing"):
            folder.read_json("absent.json")


def test_a_failed_write_keeps_the_old_and_says_why(tmp_path, monkeypatch):
    with begin(tmp_path / "run") as folder:
        folder.write_json("metrics.json", {"a": 1})

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(HastenError, match=r"metrics\.json: cannot be written: No space left"):
            folder.write_json("metrics.json", {"a": 2})
        assert folder.read_json("metrics.json") == {"a": 1}
        assert not list(folder.path.glob(".metrics*"))


def test_configuration_comes_back_with_its_descriptions(tmp_path):
    given_config = config(
        seed=2**63 - 1,
        out=str(tmp_path),
        data={"path": "1e-3", "format": "null", "columns": {"user": "no", "item": "ünter\n\x85x"}},
        training={"lr": 1e-8, "patience": "20 epochs", "max_time": 1e300, "clip_norm": None},
        evaluation={"metrics": ["ndcg@10", "none"]},
    )
    with RunFolder.create(tmp_path / "run", "m", "d") as folder:
        folder.write_config(given_config)
        text = (folder.path / "config.yaml").read_text()
        found = yaml.safe_load(text)
    again = RunConfig.model_validate({**found, "model": Options.model_validate(found["model"])})
    assert again == given_config.model_copy(update={"out": None})
    assert "  # learning rate\n  lr: " in text
    assert "path: '1e-3'" in text
    assert "&" not in text


@given(
    st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=12), max_size=3),
    st.text(max_size=40),
    st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False),
)
@settings(max_examples=100, deadline=None)
def test_any_text_stays_a_text(columns, path, rate):
    given_config = config(data={"columns": columns, "path": path}, training={"lr": rate})
    found = yaml.safe_load(config_text(given_config).encode("utf-8", "surrogatepass"))
    assert found["data"]["columns"] == columns
    assert found["data"]["path"] == path
    assert found["training"]["lr"] == rate


@pytest.mark.parametrize(
    "text", ["1e-3", "None", "NONE", "none", "1", ".5", "inf", "-.NaN", "~", ""]
)
def test_ambiguous_texts_are_quoted(text):
    line = next(
        line
        for line in config_text(config(data={"format": text})).splitlines()
        if line.startswith("  format:")
    )
    assert line == f"  format: '{text}'"


@pytest.mark.parametrize("content", [b"a: [", b"- 1", b"\xff", b"a: !!python/name:os.system ''"])
def test_a_damaged_configuration_is_named(tmp_path, content):
    with begin(tmp_path / "run") as folder:
        (folder.path / "config.yaml").write_bytes(content)
        with pytest.raises(HastenError, match=r"config\.yaml"):
            load_config(folder.path / "config.yaml")


def test_files_are_readable_by_others_as_usual(tmp_path):
    mask = os.umask(0o022)
    try:
        with begin(tmp_path / "run") as folder:
            assert stat.S_IMODE((folder.path / "config.yaml").stat().st_mode) == 0o644
    finally:
        os.umask(mask)


def test_yaml_is_what_any_reader_reads(tmp_path):
    values = yaml.safe_load(config_text(config()))
    assert values["training"]["betas"] == [0.9, 0.999]
    assert values["model"] == {"name": "sasrec", "width": 64, "loss": "ce"}
