"""Which files a path means: folders, given splits, parallel times; never a silent guess."""

from __future__ import annotations

import numpy as np
import pytest

from hasten.config import InteractionOptions
from hasten.data.interactions.load import load_dataset
from hasten.data.sources.files import locate, set_name
from hasten.data.store import fingerprint
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError, HastenError, UsageError

TRAIN_ROWS = "user,item,time\n1,1,1\n1,2,2\n2,1,1\n2,3,4\n"
VALID_ROWS = "user,item,time\n1,3,3\n2,4,2\n"
TEST_ROWS = "user,item,time\n1,4,4\n1,1,5\n3,5,1\n"


def write(folder, **files):
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".").replace("_DASH_", "-")).write_text(content)
    return folder


@pytest.fixture
def split_folder(tmp_path):
    return write(tmp_path / "set", train__csv=TRAIN_ROWS, val__csv=VALID_ROWS, test__csv=TEST_ROWS)


def test_a_folder_with_train_valid_and_test_is_a_given_split(split_folder):
    dataset = load_dataset(InteractionOptions(path=str(split_folder)), seed=0)
    assert dataset.split.startswith("given")
    assert dataset.name == "set"
    parts = [(dataset.part == p).sum() for p in (TRAIN, VALID, TEST)]
    assert parts == [4, 2, 3]
    assert dataset.source.counts["pairs_in_train_and_test"] == 1
    assert dataset.source.counts["users_not_in_train"] == 1
    assert dataset.source.counts["items_not_in_train"] == 2
    notes = " ".join(dataset.source.notes)
    assert "overlap: 1 pair of user and item in both train and test" in notes
    # within a user, time decides, whatever the part
    first = dataset.interactions.user == 0
    assert dataset.interactions.time is not None
    assert dataset.interactions.time[first].tolist() == [1, 2, 3, 4, 5]
    assert dataset.part[first].tolist() == [0, 0, 1, 2, 2]


def test_files_named_one_by_one_are_the_same_as_their_folder(split_folder):
    whole = load_dataset(InteractionOptions(path=str(split_folder)), seed=0)
    files = {key: str(split_folder / f"{name}.csv") for key, name in
             (("train", "train"), ("valid", "val"), ("test", "test"))}  # fmt: skip
    assert fingerprint(load_dataset(InteractionOptions(**files), seed=0)) == fingerprint(whole)
    inside = InteractionOptions(
        path=str(split_folder), train="train.csv", valid="val.csv", test="test.csv"
    )
    assert fingerprint(load_dataset(inside, seed=0)) == fingerprint(whole)


def test_parts_are_one_set_of_events_for_another_split(split_folder, tmp_path):
    merged = load_dataset(
        InteractionOptions(path=str(split_folder), split="leave-last-two-out"), seed=0
    )
    (tmp_path / "all.csv").write_text(
        TRAIN_ROWS + VALID_ROWS.split("\n", 1)[1] + TEST_ROWS.split("\n", 1)[1]
    )
    alone = load_dataset(InteractionOptions(path=str(tmp_path / "all.csv")), seed=0)
    assert fingerprint(merged) == fingerprint(alone)
    assert merged.source.counts["users_with_1_event"] == 1


def test_a_train_file_alone_is_split_like_any_file(split_folder):
    path = split_folder / "train.csv"
    path.write_text(TRAIN_ROWS + "1,5,5\n")
    dataset = load_dataset(InteractionOptions(train=str(path)), seed=0)
    assert dataset.split.startswith("leave-last-two-out")
    assert dataset.name == "train"


@pytest.mark.parametrize(
    "names",
    [
        ("trn.tsv", "tst.tsv"),
        ("x_train.csv", "x_test.csv"),
        ("a.train.inter", "a.test.inter"),
    ],
)
def test_usual_names_of_parts(names, tmp_path):
    for name in names:
        (tmp_path / name).write_text(TRAIN_ROWS)
    parts = locate(InteractionOptions(path=str(tmp_path))).parts
    assert [(path.name, part) for path, part in parts] == [(names[0], TRAIN), (names[1], TEST)]


def test_the_only_file_of_events_is_found_among_others(tmp_path):
    write(
        tmp_path, ratings__csv=TRAIN_ROWS * 1, movies__csv="movieId,title\n1,A\n", README__txt="x"
    )
    place = locate(InteractionOptions(path=str(tmp_path)))
    assert place.parts[0][0].name == "ratings.csv"
    assert "the only file" in place.notes[0]


def test_times_beside_sequences_are_found_only_when_names_agree(tmp_path):
    sequences, times = "1 2 3 4 5\n2 3 4\n", "1 1 2 3 4\n2 7 8\n"
    good = write(tmp_path / "good", Beauty_item_rank__txt=sequences, Beauty_time_rank__txt=times)
    dataset = load_dataset(InteractionOptions(path=str(good)), seed=0)
    assert dataset.interactions.time is not None
    assert any("times taken from Beauty_time_rank.txt" in n for n in dataset.source.notes)
    other = write(tmp_path / "other", Beauty_item__txt=sequences, Home_time__txt=times)
    with pytest.raises(DataError, match=r"Beauty_item\.txt, Home_time\.txt"):
        load_dataset(InteractionOptions(path=str(other)), seed=0)
    chosen = InteractionOptions(path=str(other), times="Home_time.txt")
    assert fingerprint(load_dataset(chosen, seed=0)) == fingerprint(dataset)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ("", "no file of events is recognised: nothing"),
        ("a.csv b.csv", "more than one file may hold the events: a.csv, b.csv"),
        ("test.csv list.csv", "test.csv is there, but no training part. Add it, or have this"),
        ("train.csv train.tsv test.csv", "more than one file for one part: train.csv, train.tsv"),
        ("notes.txt! more.txt!", "no file of events is recognised: more.txt, notes.txt"),
    ],
)
def test_folders_that_do_not_say_which_file_are_refused(files, says, tmp_path):
    for name in files.split():
        (tmp_path / name.rstrip("!")).write_text("hello\n" if "!" in name else TRAIN_ROWS)
    with pytest.raises(DataError, match=says.replace(".", r"\.")):
        load_dataset(InteractionOptions(path=str(tmp_path)), seed=0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "no data are named"),
        ({"valid": "a.csv"}, "need data.train"),
        ({"path": "a.csv", "train": "a.csv"}, "give one of them"),
        ({"train": "a.csv", "test": "a.csv"}, "the same file twice"),
        ({"train": "a.csv", "test": "b.csv", "times": "a.csv"}, "goes with one file"),
        ({"train": "a.csv", "test": "missing.csv"}, "data.test: missing.csv: no such file"),
        ({"path": "sequences", "columns": {"user": "x"}}, "no effect on the built-in sample"),
        ({"path": "sequences", "format": "lines"}, "no effect on the built-in sample"),
    ],
)
def test_contradictory_options_are_refused(options, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(TRAIN_ROWS)
    (tmp_path / "b.csv").write_text(TEST_ROWS)
    with pytest.raises(HastenError, match=says.replace(".", r"\.")) as caught:
        load_dataset(InteractionOptions(**options), seed=0)
    assert isinstance(caught.value, UsageError)


def test_parts_with_different_columns_are_refused(tmp_path):
    write(tmp_path, train__csv=TRAIN_ROWS, test__csv="user,item\n1,2\n")
    with pytest.raises(DataError, match="the same columns"):
        load_dataset(InteractionOptions(path=str(tmp_path)), seed=0)


def test_a_path_comes_before_a_registered_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sequences").write_text("1 2 3 4 5 6\n2 3 4 5\n")
    dataset = load_dataset(InteractionOptions(path="sequences"), seed=0)
    assert len(dataset.users) == 2
    assert "not the registered set" in dataset.source.notes[0]


def test_names_of_sets_fit_run_folders(tmp_path):
    for name, expected in (
        ("a b.csv", "a-b"),
        ("ml-1m.txt.gz", "ml-1m"),
        ("...", "data"),
        ("x" * 99, "x" * 64),
        ("é.csv", "data"),
    ):
        assert set_name(tmp_path / name) == expected


def test_ids_of_several_files_are_one_vocabulary(tmp_path):
    write(tmp_path, train__csv="user,item\n1,7\n1,8\n", test__csv="user,item\nu2,9\n1,7\n")
    dataset = load_dataset(InteractionOptions(path=str(tmp_path)), seed=0)
    assert dataset.users.labels.to_pylist() == ["1", "u2"]
    assert dataset.items.labels.to_pylist() == [7, 8, 9]
    assert any("kept as text" in note for note in dataset.source.notes)
    assert np.array_equal(dataset.interactions.user, [0, 0, 0, 1])
