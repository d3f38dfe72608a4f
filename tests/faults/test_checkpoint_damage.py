"""Whatever happens to the files of a checkpoint is noticed, and the one before it is used."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch

from hasten.errors import CheckpointError
from hasten.runs.checkpoint import (
    newest_checkpoint,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)

FILES = ("weights.safetensors", "optimiser.safetensors", "state.json", "manifest.json")


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    for number in (1, 2):
        torch.manual_seed(number)
        weights = {"table": torch.randn(40, 8), "bias": torch.randn(40).bfloat16()}
        optimiser = {"table.first": torch.randn(40, 8), "step": torch.tensor(number)}
        write_checkpoint(
            tmp_path / f"epoch-000{number}",
            {"weights": weights, "optimiser": optimiser},
            {"number": number, "loss": 0.5, "history": [1.0] * 50},
        )
    return tmp_path


def assert_noticed(checkpoints: Path, name: str) -> None:
    """The newest is refused by its file's name, and the one before it is taken."""
    newest = checkpoints / "epoch-0002"
    with pytest.raises(CheckpointError, match=name):
        verify_checkpoint(newest)
    with pytest.raises(CheckpointError, match=name):
        read_checkpoint(newest)
    warnings: list[str] = []
    found = newest_checkpoint(checkpoints, warnings.append)
    assert found is not None
    assert found.state["number"] == 1
    assert name in warnings[0]


@pytest.mark.parametrize("name", FILES)
def test_truncation_at_20_offsets(checkpoints, name):
    path = checkpoints / "epoch-0002" / name
    content = path.read_bytes()
    for part in range(20):
        path.write_bytes(content[: len(content) * part // 20])
        assert_noticed(checkpoints, name)
    path.write_bytes(content[:-1])
    assert_noticed(checkpoints, name)
    path.write_bytes(content)
    verify_checkpoint(checkpoints / "epoch-0002")


@pytest.mark.parametrize("name", FILES)
def test_200_flipped_bits(checkpoints, name):
    path = checkpoints / "epoch-0002" / name
    content = path.read_bytes()
    choice = random.Random(name)
    for _ in range(200):
        bit = choice.randrange(8 * len(content))
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=name):
            read_checkpoint(checkpoints / "epoch-0002")
    path.write_bytes(content)
    verify_checkpoint(checkpoints / "epoch-0002")


@pytest.mark.parametrize("name", FILES)
def test_a_deleted_file(checkpoints, name):
    (checkpoints / "epoch-0002" / name).unlink()
    assert_noticed(checkpoints, name)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_became_a_folder(checkpoints, name):
    path = checkpoints / "epoch-0002" / name
    path.unlink()
    path.mkdir()
    assert_noticed(checkpoints, name)


def test_files_swapped_within_a_checkpoint(checkpoints):
    folder = checkpoints / "epoch-0002"
    (folder / FILES[0]).rename(folder / "kept")
    (folder / FILES[1]).rename(folder / FILES[0])
    (folder / "kept").rename(folder / FILES[1])
    assert_noticed(checkpoints, "safetensors")


@pytest.mark.parametrize("name", FILES)
def test_a_file_from_another_checkpoint(checkpoints, name):
    shutil.copy(checkpoints / "epoch-0001" / name, checkpoints / "epoch-0002" / name)
    # the manifest of the other one does not fit the files: the first of them is named
    assert_noticed(checkpoints, name if name != "manifest.json" else "damaged")


@pytest.mark.parametrize("extra", ["phases.safetensors", "weights (copy).safetensors", "more.json"])
def test_a_tensor_or_state_file_too_many(checkpoints, extra):
    shutil.copy(checkpoints / "epoch-0002" / FILES[0], checkpoints / "epoch-0002" / extra)
    with pytest.raises(CheckpointError, match="not in the manifest"):
        verify_checkpoint(checkpoints / "epoch-0002")


@pytest.mark.parametrize("extra", [".DS_Store", "notes.txt"])
def test_what_is_never_read_does_no_harm(checkpoints, extra):
    (checkpoints / "epoch-0002" / extra).write_bytes(b"seen by a person")
    verify_checkpoint(checkpoints / "epoch-0002")


def test_all_damaged_is_none_with_a_warning_each(checkpoints):
    for number in (1, 2):
        (checkpoints / f"epoch-000{number}" / "state.json").write_bytes(b"{}")
    warnings: list[str] = []
    assert newest_checkpoint(checkpoints, warnings.append) is None
    assert len(warnings) == 2
