"""Checkpoints come back bit for bit, newest first, and only so many are kept."""

from __future__ import annotations

import json
import math
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from hasten.errors import CheckpointError
from hasten.runs import checkpoint as module
from hasten.runs.checkpoint import (
    checkpoint_name,
    newest_checkpoint,
    prune_checkpoints,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from hasten.runs.exact_json import from_exact_json, to_exact_json
from hasten.runs.manifest import manifest_bytes

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert raw(found) == raw(expected)


def save(folder: Path, number: int = 0) -> Path:
    weights = {"table": torch.full((5, 3), float(number)), "bias": torch.zeros(5)}
    moments = {"table.first": torch.ones(5, 3)}
    write_checkpoint(folder, {"weights": weights, "optimiser": moments}, {"number": number})
    return folder


def hidden(folder: Path) -> list[str]:
    return [entry.name for entry in folder.iterdir() if entry.name.startswith(".")]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_and_shape_comes_back(tmp_path, dtype):
    bytes_ = torch.randint(0, 2 if dtype == torch.bool else 256, (4 * 6 * 8,), dtype=torch.uint8)
    flat = bytes_.view(dtype)
    tensors = {
        "plain": flat.reshape(2, -1),
        "zero-dim": flat[1],
        "empty": flat[:0],
        "empty two": torch.zeros(3, 0, dtype=dtype),
        "transposed": flat.reshape(4, -1).t(),
        "strided": flat[1::3],
        "expanded": flat[:1].expand(7),
        "shared": flat[2:5],
        "same": flat,
        "same again": flat,
    }
    write_checkpoint(tmp_path / "c", {"weights": tensors}, {})
    found = read_checkpoint(tmp_path / "c").tensors["weights"]
    assert set(found) == set(tensors)
    for name, tensor in tensors.items():
        assert_same(found[name], tensor)


def test_nan_payloads_and_gradients_and_names(tmp_path):
    patterns = torch.tensor([0x7FC00001, 0x7F800001, -0x400000, -0x80000000], dtype=torch.int32)
    floats = patterns.view(torch.float32)
    tensors = {"nan": floats, "block.0.weight/ü\n": torch.nn.Parameter(torch.ones(2)), "": floats}
    write_checkpoint(tmp_path / "c", {"weights": tensors, "phases": {}}, {})
    found = read_checkpoint(tmp_path / "c")
    assert found.tensors["phases"] == {}
    assert set(found.tensors["weights"]) == set(tensors)
    for name, tensor in tensors.items():
        assert_same(found.tensors["weights"][name], tensor.detach())
        assert not found.tensors["weights"][name].requires_grad


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_any_tensors_come_back_through_the_library_too(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("any") / "c"
    named = data.draw(
        st.dictionaries(
            st.text(max_size=20).filter(lambda name: name != "__metadata__" and _encodes(name)),
            st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3)),
            max_size=6,
        )
    )
    tensors = {name: torch.randint(0, 2, shape).to(dtype) for name, (dtype, shape) in named.items()}
    write_checkpoint(folder, {"weights": tensors}, {})
    for found in (
        read_checkpoint(folder).tensors["weights"],
        load_file(folder / "weights.safetensors"),
    ):
        assert set(found) == set(tensors)
        for name, tensor in tensors.items():
            assert_same(found[name], tensor)


def _encodes(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode() == text


def test_equal_tensors_make_equal_files(tmp_path):
    one = {"b": torch.ones(3), "a": torch.zeros(2, dtype=torch.int64), "c": torch.tensor(True)}
    two = dict(reversed(one.items()))
    write_checkpoint(tmp_path / "one", {"weights": one}, {})
    write_checkpoint(tmp_path / "two", {"weights": two}, {})
    for name in ("weights.safetensors", "manifest.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize(
    "tensor", [torch.zeros(2, dtype=torch.complex64), torch.eye(2).to_sparse()]
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(tmp_path, tensor):
    with pytest.raises(TypeError, match=r"'strange'.*cannot be saved"):
        write_checkpoint(tmp_path / "c", {"weights": {"strange": tensor}}, {})
    assert list(tmp_path.iterdir()) == []


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5).filter(lambda k: k != "$float64"), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5).filter(lambda k: k != "$float64"), json_values))
@settings(max_examples=200, deadline=None)
def test_any_state_comes_back_bit_for_bit(state):
    def bits(value):
        if isinstance(value, float):
            return "float", struct.pack(">d", value)
        if isinstance(value, dict):
            return {key: bits(item) for key, item in value.items()}
        if isinstance(value, list):
            return [bits(item) for item in value]
        return type(value), value

    content = to_exact_json(state)
    json.loads(content, parse_constant=pytest.fail)  # strict JSON: no bare NaN
    assert bits(from_exact_json(content)) == bits(state)


def test_non_finite_state_survives_a_checkpoint(tmp_path):
    state = {"best": -math.inf, "losses": [math.nan, 1e-320, -0.0], "shape": (1, 2)}
    write_checkpoint(tmp_path / "c", {}, state)
    found = read_checkpoint(tmp_path / "c").state
    assert found["best"] == -math.inf
    assert math.isnan(found["losses"][0])
    assert found["losses"][1] == 1e-320
    assert math.copysign(1, found["losses"][2]) == -1
    assert found["shape"] == [1, 2]


@pytest.mark.parametrize(
    "state", [{1: 2}, {"a": {"$float64": 1}}, {"a": {1}}, {"a": torch.ones(1)}]
)
def test_state_that_json_would_change_is_refused(tmp_path, state):
    with pytest.raises(TypeError):
        write_checkpoint(tmp_path / "c", {}, state)
    assert list(tmp_path.iterdir()) == []


def test_names_sort_in_time():
    times = [(0, 0), (0, 7), (0, 120), (9, 0), (9, 1), (10, 0), (10, 999_999), (11, 0), (2000, 3)]
    names = [checkpoint_name(*time) for time in times]
    assert names == sorted(names)
    assert names[5] == "epoch-0010"
    assert checkpoint_name(10, 120) == "epoch-0010-step-000120"


def test_groups_are_read_alone_but_a_missing_one_is_named(tmp_path):
    save(tmp_path / "c")
    assert set(read_checkpoint(tmp_path / "c", groups=["weights"]).tensors) == {"weights"}
    with pytest.raises(CheckpointError, match=r"holds no phases\.safetensors"):
        read_checkpoint(tmp_path / "c", groups=["phases"])


def test_a_group_that_is_not_read_is_still_measured(tmp_path):
    save(tmp_path / "c")
    with (tmp_path / "c" / "optimiser.safetensors").open("ab") as file:
        file.write(b" ")
    with pytest.raises(CheckpointError, match=r"optimiser.safetensors: damaged: \d+ bytes, but"):
        read_checkpoint(tmp_path / "c", groups=["weights"])


def test_newest_is_chosen_by_time_not_by_text(tmp_path):
    for number, name in enumerate(["epoch-9999", "epoch-0010-step-000120", "epoch-10000"]):
        save(tmp_path / name, number)
    save(tmp_path / "epoch-x", 9)
    found = newest_checkpoint(tmp_path, warn=pytest.fail)
    assert found is not None
    assert found.path == tmp_path / "epoch-10000"
    assert found.state == {"number": 2}


def test_newest_of_nothing_is_none(tmp_path):
    assert newest_checkpoint(tmp_path / "absent", warn=pytest.fail) is None
    assert newest_checkpoint(tmp_path, warn=pytest.fail) is None


def test_damaged_newest_is_told_and_skipped(tmp_path):
    save(tmp_path / "epoch-0001", 1)
    save(tmp_path / "epoch-0002", 2)
    (tmp_path / "epoch-0002" / "weights.safetensors").write_bytes(b"nothing")
    warnings: list[str] = []
    found = newest_checkpoint(tmp_path, warnings.append)
    assert found is not None
    assert found.state == {"number": 1}
    assert len(warnings) == 1
    assert "epoch-0002" in warnings[0]
    assert "weights.safetensors" in warnings[0]


def test_only_the_newest_valid_ones_are_kept(tmp_path):
    for number in range(6):
        save(tmp_path / checkpoint_name(number, 0), number)
    (tmp_path / "epoch-0004" / "state.json").unlink()
    shutil.copytree(tmp_path / "epoch-0001", tmp_path / ".epoch-0007.new")
    (tmp_path / "notes").mkdir()
    prune_checkpoints(tmp_path, keep=2)
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["epoch-0003", "epoch-0004", "epoch-0005", "notes"]


def test_nothing_is_pruned_while_too_few_are_valid(tmp_path):
    for number in range(3):
        save(tmp_path / checkpoint_name(number, 0), number)
    for number in (1, 2):
        (tmp_path / checkpoint_name(number, 0) / "state.json").unlink()
    prune_checkpoints(tmp_path, keep=2)
    assert len(list(tmp_path.iterdir())) == 3
    prune_checkpoints(tmp_path / "absent", keep=2)


def test_pruning_reads_again_only_what_was_touched(tmp_path, monkeypatch):
    for number in range(2):
        save(tmp_path / checkpoint_name(number, 0), number)
    verified: list[Path] = []
    monkeypatch.setattr(module, "verify_checkpoint", verified.append)
    prune_checkpoints(tmp_path, keep=2)
    assert verified == []
    (tmp_path / "epoch-0001" / "state.json").write_bytes(b"{}")
    prune_checkpoints(tmp_path, keep=2)
    assert verified == [tmp_path / "epoch-0001"]


def test_overwriting_leaves_only_the_new_one(tmp_path):
    for number in range(3):
        save(tmp_path / "best", number)
    assert read_checkpoint(tmp_path / "best").state == {"number": 2}
    assert hidden(tmp_path) == []


def test_a_replacement_cut_short_is_found_aside(tmp_path):
    save(tmp_path / "epoch-0001", 1).rename(tmp_path / ".epoch-0001.old")
    save(tmp_path / "epoch-0000", 0)
    verify_checkpoint(tmp_path / "epoch-0001")
    assert read_checkpoint(tmp_path / "epoch-0001").state == {"number": 1}
    found = newest_checkpoint(tmp_path, warn=pytest.fail)
    assert found is not None
    assert found.path == tmp_path / "epoch-0001"
    prune_checkpoints(tmp_path, keep=1)
    assert [entry.name for entry in tmp_path.iterdir()] == ["epoch-0001"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "no such checkpoint"),
        (lambda p: p.write_bytes(b"pickle"), "a file, but a checkpoint is a folder"),
        (lambda p: p.mkdir(), "manifest.json: missing"),
    ],
)
def test_what_is_no_checkpoint_is_named(tmp_path, make, message):
    make(tmp_path / "c")
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path / "c")


def test_the_checkpoint_of_each_format_version_loads():
    folders = sorted((Path(__file__).parent / "formats").iterdir())
    assert [folder.name for folder in folders] == ["version-1"]
    for folder in folders:
        found = read_checkpoint(folder)
        assert found.state == {"epoch": 3, "best": -math.inf, "history": [0.1, 0.25]}
        weights = found.tensors["weights"]
        assert_same(weights["table"], torch.arange(6, dtype=torch.float32).reshape(2, 3) / 7)
        assert_same(weights["half"], torch.tensor([1.5, -0.0], dtype=torch.bfloat16))
        assert_same(found.tensors["optimiser"]["step"], torch.tensor(12))


def test_another_version_of_the_format_is_refused(tmp_path):
    manifest = save(tmp_path / "c") / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 1', '"version": 2'))
    with pytest.raises(CheckpointError, match=r"version 2 .* reads version 1"):
        read_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(
    "name", ["../../secret.json", "/etc/passwd", "weights.pt", "a/b.safetensors"]
)
def test_a_forged_manifest_cannot_name_other_files(tmp_path, name):
    folder = tmp_path / "c"
    folder.mkdir()
    (folder / "manifest.json").write_bytes(manifest_bytes({name: (1, "0"), "state.json": (2, "0")}))
    with pytest.raises(CheckpointError, match="does not list the files"):
        read_checkpoint(folder)


def test_nothing_is_pickled(tmp_path):
    save(tmp_path / "c")
    assert {path.suffix for path in (tmp_path / "c").iterdir()} == {".safetensors", ".json"}
    source = Path(module.__file__).parent
    for name in ("checkpoint", "manifest", "tensor_file", "exact_json", "../atomic_write"):
        text = (source / f"{name}.py").read_text()
        assert "import pickle" not in text
        assert "torch.load" not in text


def test_equal_tensors_are_linked_and_outlive_the_checkpoint_that_they_were_written_for(tmp_path):
    tensors = {"weights": {"w": torch.arange(5.0)}, "phases": {}}
    one, two = tmp_path / "one", tmp_path / "two"
    write_checkpoint(one, tensors, {"number": 1})
    write_checkpoint(two, tensors, {"number": 2}, same_tensors=one)
    assert (two / "weights.safetensors").samefile(one / "weights.safetensors")
    assert not (two / "state.json").samefile(one / "state.json")
    shutil.rmtree(one)
    found = read_checkpoint(two)
    assert found.state == {"number": 2}
    assert torch.equal(found.tensors["weights"]["w"], tensors["weights"]["w"])


@pytest.mark.parametrize("why", ["no hard links", "another size", "no such file", "damaged"])
def test_what_cannot_be_linked_is_written(tmp_path, monkeypatch, why):
    tensors = {"weights": {"w": torch.arange(5.0)}}
    one, two = tmp_path / "one", tmp_path / "two"
    write_checkpoint(one, tensors, {})
    if why == "no hard links":

        def refuse(*_):
            raise OSError("not supported")

        monkeypatch.setattr(module.os, "link", refuse)
    elif why == "another size":
        (one / "weights.safetensors").write_bytes(b"")
    elif why == "no such file":
        (one / "weights.safetensors").unlink()
    else:
        (one / "manifest.json").write_text("{}")
    write_checkpoint(two, tensors, {}, same_tensors=one)
    assert (two / "weights.safetensors").stat().st_nlink == 1
    assert torch.equal(read_checkpoint(two).tensors["weights"]["w"], tensors["weights"]["w"])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_tensors_that_stay_in_the_file(dtype, tmp_path):
    table = (torch.rand(11, 3) * 2).to(dtype)
    groups = {"weights": {"table": table, "vector": table[:, 0], "other": torch.ones(2)}}
    write_checkpoint(tmp_path / "c", groups, {})
    places = {("weights", "table"), ("weights", "vector"), ("weights", "absent"), ("no", "group")}
    found = read_checkpoint(tmp_path / "c", by_rows=places)
    assert found.tensors["weights"].keys() == {"other"}
    assert found.by_rows.keys() == {("weights", "table"), ("weights", "vector")}
    for name, whole in {"table": table, "vector": table[:, 0]}.items():
        stored = found.by_rows["weights", name]
        assert (stored.shape, stored.dtype) == (whole.shape, whole.dtype)
        for start, stop in [(0, 11), (4, 9), (10, 11), (3, 3)]:
            rows = torch.empty(stop - start, *whole.shape[1:], dtype=dtype)
            stored.read(start, rows)
            assert torch.equal(rows, whole[start:stop])


def test_a_file_without_the_rows_is_reported(tmp_path):
    write_checkpoint(tmp_path / "c", {"weights": {"table": torch.rand(11, 3)}}, {})
    (stored,) = read_checkpoint(tmp_path / "c", by_rows=[("weights", "table")]).by_rows.values()
    file, rows = tmp_path / "c" / "weights.safetensors", torch.empty(6, 3)
    stored.read(5, rows)
    file.write_bytes(file.read_bytes()[:-8])
    stored.read(0, rows)
    with pytest.raises(CheckpointError, match=r"weights.safetensors: damaged: it ends"):
        stored.read(5, rows)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"weights.safetensors"):
        stored.read(0, rows)
