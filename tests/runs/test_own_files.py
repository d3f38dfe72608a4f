"""Files of the user in and around a run folder are never changed, moved or removed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hasten import api
from hasten.config_loading.build import build_config
from hasten.errors import CheckpointError, HastenError, RunFolderError
from hasten.runs.checkpoint import (
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from hasten.runs.journal import Journal, RankLog
from hasten.runs.own_files import is_own
from hasten.runs.resuming import checkpoint_to_resume
from hasten.runs.run_folder import RunFolder

MINE = b"mine"


def begin(path: Path) -> RunFolder:
    folder = RunFolder.create(path, "sasrec", "beauty")
    folder.write_config(build_config("sasrec"))
    return folder


def write(folder: Path, epoch: int) -> None:
    state = {
        "position": {"epoch": epoch, "step": 10 * epoch, "step_of_epoch": 0},
        "selection": {"best": 0.5, "best_epoch": epoch},
    }
    write_checkpoint(folder, {"weights": {"w": torch.full((3,), float(epoch))}}, state)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_lies_beside_checkpoints_survives_resuming_from_an_earlier_one(tmp_path):
    with begin(tmp_path / "run") as folder:
        for epoch in (1, 2, 3):
            write(folder.checkpoints / f"epoch-{epoch:04d}", epoch)
        write(folder.best, 2)
        mine = {"notes/plan.txt", "todo.md", "epoch-0009/only-notes.txt", ".notes.trash/x"}
        for name in mine:
            (folder.checkpoints / name).parent.mkdir(exist_ok=True)
            (folder.checkpoints / name).write_bytes(MINE)
        for _ in range(2):
            found = checkpoint_to_resume(folder, "epoch-0002", pytest.fail)
            assert found is not None
            kept = content(folder.checkpoints)
            assert {name for name in kept if kept[name] == MINE} == mine
        assert not (folder.checkpoints / "epoch-0003").exists()
        newest = newest_checkpoint(folder.checkpoints, pytest.fail)
        assert newest is not None
        assert newest.path.name == "epoch-0002"


def test_notes_within_a_checkpoint_outlive_it(tmp_path):
    for epoch in (1, 2, 3):
        write(tmp_path / f"epoch-{epoch:04d}", epoch)
    write(tmp_path / "best", 1)
    for name in ("epoch-0001", "best"):
        (tmp_path / name / "notes.txt").write_bytes(MINE)
        (tmp_path / name / "plots").mkdir()
    prune_checkpoints(tmp_path, 2)
    write(tmp_path / "best", 3)
    assert sorted(p.name for p in (tmp_path / "epoch-0001").iterdir()) == ["notes.txt", "plots"]
    assert (tmp_path / "best" / "notes.txt").read_bytes() == MINE
    assert read_checkpoint(tmp_path / "best").state["position"]["epoch"] == 3
    prune_checkpoints(tmp_path, 2)
    assert {p.name for p in tmp_path.iterdir()} == {"best", *(f"epoch-000{n}" for n in (1, 2, 3))}


def test_tensors_within_a_checkpoint_outlive_it_and_are_named_once(tmp_path):
    for epoch in (1, 2, 3):
        write(tmp_path / f"epoch-{epoch:04d}", epoch)
    (tmp_path / "epoch-0001" / "mine.safetensors").write_bytes(MINE)
    logged: list[str] = []
    for _ in range(2):
        prune_checkpoints(tmp_path, 2, logged.append)
    assert content(tmp_path / "epoch-0001") == {"mine.safetensors": MINE}
    assert logged == [
        f"{tmp_path / 'epoch-0001'}: stays: it holds files that are not of the checkpoint"
    ]
    assert newest_checkpoint(tmp_path, pytest.fail) is not None


@pytest.mark.parametrize(
    "name",
    [
        *("data/mine.csv", "data/mine_feat.npy", "data/facts.parquet", "notes.txt"),
        *("best/weights.safetensors", "train.log"),
    ],
)
def test_a_folder_with_the_mark_of_a_start_and_other_files_is_refused(tmp_path, name):
    left = RunFolder.create(tmp_path / "run", "sasrec", "beauty", ["data/items.parquet"])
    left.write_json("environment.json", {})
    left.close()
    (tmp_path / "run" / name).parent.mkdir(exist_ok=True)
    (tmp_path / "run" / name).write_bytes(MINE)
    before = content(tmp_path)
    with pytest.raises(RunFolderError, match=f"not empty and not a run .it holds {name}"):
        RunFolder.create(tmp_path / "run", "sasrec", "beauty")
    assert content(tmp_path) == before


@pytest.mark.parametrize("name", ["data/mine.csv", "data/mine_feat.npy", "data/users.parquet"])
def test_a_mark_of_a_start_that_lists_nothing_owns_nothing(tmp_path, name):
    (tmp_path / "data").mkdir()
    (tmp_path / ".starting").touch()
    (tmp_path / name).write_bytes(MINE)
    with pytest.raises(RunFolderError, match=f"not empty and not a run .it holds {name}"):
        RunFolder.create(tmp_path, "sasrec", "beauty")
    assert (tmp_path / name).read_bytes() == MINE


def test_a_start_lists_exactly_what_it_writes(tmp_path, monkeypatch):
    seen: set[str] = set()

    def stop(folder: RunFolder, config: object) -> None:
        listed = (folder.path / ".starting").read_text().split()
        assert set(content(folder.path)) | {"config.yaml"} == {*listed, ".lock", ".starting"}
        seen.update(listed)
        raise HastenError("stopped")

    monkeypatch.setattr(RunFolder, "write_config", stop)
    for model in ("mmgcn", "kgat", "hgt", "conve"):
        with pytest.raises(HastenError, match="stopped"):
            api.train(model, out=str(tmp_path / "run"), quiet=True, settings={"device": "cpu"})
        assert not (tmp_path / "run").exists()
    assert {"data/facts.parquet", "data/triples.parquet", "data/image_feat.npy"} < seen


def test_a_start_that_fails_leaves_what_is_not_its_own(tmp_path):
    folder = RunFolder.create(tmp_path / "deep/run", "sasrec", "beauty", ["data/items.parquet"])
    folder.write_json("data.json", {})
    (folder.data / "items.parquet").touch()
    mine = {"notes.txt", "data/mine.csv", "data/mine_feat.npy", "data/users.parquet"}
    for name in mine:
        (folder.path / name).write_bytes(MINE)
    (folder.path / "mine").mkdir()
    folder.discard()
    assert content(tmp_path) == {f"deep/run/{name}": MINE for name in mine}
    assert (tmp_path / "deep" / "run" / "mine").is_dir()


@pytest.mark.parametrize("name", [".lock", "train.log", "val.log", "metrics.jsonl"])
@pytest.mark.parametrize("exists", [True, False])
def test_no_link_is_written_through(tmp_path, name, exists):
    target = tmp_path / "mine.txt"
    if exists:
        target.write_bytes(MINE)
    begin(tmp_path / "run").close()
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(target)
    with (
        pytest.raises(HastenError, match=rf"{name}: .*symbolic link, not a regular file"),
        RunFolder.open(tmp_path / "run", lock=True) as folder,
    ):
        Journal(folder, quiet=True, tensorboard=False)
    assert target.exists() == exists
    assert not exists or target.read_bytes() == MINE


def test_the_log_of_another_rank_follows_no_link(tmp_path):
    (tmp_path / "train-rank1.log").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(HastenError, match=r"train-rank1\.log: .*symbolic link"):
        RankLog(tmp_path, 1)
    assert not (tmp_path / "mine.txt").exists()


def test_a_linked_best_is_refused_at_once_and_its_target_stays(tmp_path):
    write(tmp_path / "elsewhere", 1)
    before = content(tmp_path / "elsewhere")
    with begin(tmp_path / "run") as folder:
        write(folder.checkpoints / "epoch-0001", 1)
        folder.best.symlink_to(tmp_path / "elsewhere")
        for _ in range(2):
            with pytest.raises(CheckpointError, match=r"best: is a symbolic link.*remove the link"):
                checkpoint_to_resume(folder, None, pytest.fail)
            with pytest.raises(CheckpointError, match=r"best: is a symbolic link.*remove the link"):
                write(folder.best, 2)
        assert content(tmp_path / "elsewhere") == before
        folder.best.unlink()
        assert checkpoint_to_resume(folder, None, pytest.fail) is not None
        write(folder.best, 2)
    assert content(tmp_path / "elsewhere") == before


def test_only_listed_files_are_the_runs_own():
    written = "config.yaml", "data/items.parquet", "checkpoints/epoch-0001-step-000003/state.json"
    temporary = ".config.yaml.12.new", "data/.items.parquet.12.new"
    for name in (*written, *temporary, "checkpoints/.epoch-0001-step-000003.new/state.json"):
        assert is_own(name, written), name
    for name in ("notes.txt", "data/mine_feat.npy", "checkpoints/notes/state.json", ".notes.new"):
        assert not is_own(name, written), name
