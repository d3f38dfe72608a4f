"""Which files a path means: folders, given splits, parallel times; never a silent guess."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

from hasten import train
from hasten.cli.main import main
from hasten.config import (
    AnyDataOptions,
    InteractionOptions,
    KnowledgeOptions,
    PairOptions,
    TripleOptions,
)
from hasten.data.detect import holds_triples, load_any, readings
from hasten.data.graph.load import load_graph
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.load_features import load_pairs
from hasten.data.interactions.load_knowledge import load_knowledge
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


def test_exact_names_of_parts_win(tmp_path):
    names = ("train.txt", "valid.txt", "test.txt")
    for name in (*names, "valid_negatives.txt", "test_negatives.txt", "train_small.txt"):
        (tmp_path / name).write_text("1 2\n1 3\n2 2\n")
    place = locate(InteractionOptions(path=str(tmp_path)))
    assert [(path.name, part) for path, part in place.parts] == list(
        zip(names, (TRAIN, VALID, TEST), strict=True)
    )
    note = "files not used: test_negatives.txt, train_small.txt, valid_negatives.txt"
    assert place.notes == (note,)
    (tmp_path / "valid.txt").unlink()
    (tmp_path / "valid_more.txt").write_text("1 2\n")
    with pytest.raises(DataError, match=r"for one part: valid_more\.txt, valid_negatives\.txt"):
        locate(InteractionOptions(path=str(tmp_path)))


@pytest.mark.parametrize("place", ["\udce9.csv", "\udce9/train.csv", "set/train_\udce9.csv"])
@pytest.mark.parametrize("verb", ["inspect", "check"])
def test_names_that_are_not_utf_8_are_refused(place, verb, tmp_path, capsys):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    for name in (path, path.with_name(path.name.replace("train", "test"))):
        name.write_text(TRAIN_ROWS)
    assert main(["data", verb, str(path if path.parent == tmp_path else path.parent)]) == 2
    said = capsys.readouterr().err
    assert "\\xe9" in said
    assert "the name is not UTF-8; rename it" in said
    archive = tmp_path / "\udce9.zip"
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("train.txt", "a\tr\tb\n")
    assert main(["data", verb, str(archive)]) == 2
    assert "the name is not UTF-8; rename it" in capsys.readouterr().err


EVENT_ROWS = "user,item,time\n" + "".join(f"{u},i{i},{i}\n" for u in range(9) for i in range(12))
FACT_ROWS = [(f"i{i}", f"r{k}", f"e{(i + k) % 3}") for i in range(12) for k in range(2)]


@pytest.mark.parametrize("name", ["facts.csv", "kg.csv", "triples.tsv"])
@pytest.mark.parametrize("header", [True, False])
def test_the_model_decides_between_events_and_facts_of_a_folder(name, header, tmp_path, capsys):
    (tmp_path / "events.csv").write_text(EVENT_ROWS)
    rows = [("head", "relation", "tail")] * header + FACT_ROWS
    separator = "\t" if name.endswith("tsv") else ","
    (tmp_path / name).write_text("".join(separator.join(row) + "\n" for row in rows))
    path, ratios = str(tmp_path), (0.8, 0.1, 0.1)
    alone = load_dataset(InteractionOptions(path=path), 0)
    assert len(alone.interactions) == 108
    assert f"files not used: {name}" in alone.source.notes
    assert load_pairs(PairOptions(path=path), 0).facts is None
    both = load_knowledge(KnowledgeOptions(path=path), 0)
    assert both.facts is not None
    assert len(both.facts.triples) == 24
    graph = load_graph(TripleOptions(path=path, ratios=(0.9, 0.1, 0)), 0)
    assert len(graph.triples) == 24
    assert "files not used: events.csv" in graph.source.notes
    assert readings(AnyDataOptions(path=path)) == ["interactions", "facts", "triples"]
    # what inspect and check show is the widest reading, or that of a model
    assert fingerprint(load_any(AnyDataOptions(path=path, ratios=ratios), 0)) == fingerprint(both)
    main(["data", "inspect", path, "--model", "kgat", "--json"])
    shown = capsys.readouterr()
    result = train("kgat", path, epochs=1, out=tmp_path / "run", quiet=True)
    split = json.loads((result.path / "data.json").read_text())["split"]
    assert json.loads(shown.out)["split"] == split
    assert split == "leave-last-two-out, by time"
    assert "interactions with a knowledge graph: kgat" in shown.err
    assert "triples: conve" in shown.err


def test_triples_of_numbers_are_told_from_ratings_and_times(tmp_path):
    rng = np.random.default_rng(0)
    many = rng.integers(0, 40_000, (2000, 2))
    users, items = rng.integers(0, 900, 2000), rng.integers(0, 1500, 2000)
    kinds = {
        "triples": (many[:, 0], rng.integers(0, 11, 2000), many[:, 1]),
        "sorted triples": (np.sort(many[:, 0] // 400), rng.integers(0, 11, 2000), many[:, 1]),
        "ratings": (users, items, rng.integers(1, 6, 2000)),
        "counts": (users, items, rng.integers(1, 90, 2000)),
        "times": (users, items, 1_500_000_000 + 60 * np.arange(2000)),
        "days": (np.sort(users), rng.integers(0, 9, 2000), 17_000 + np.arange(2000) // 4),
    }
    for kind, columns in kinds.items():
        folder = tmp_path / kind.replace(" ", "-")
        folder.mkdir()
        for name in ("train", "valid", "test"):
            np.savetxt(folder / f"{name}.txt", np.stack(columns, 1), fmt="%d", delimiter="\t")
        options = AnyDataOptions(path=str(folder))
        assert holds_triples(options) == ("triples" in kind), kind
        assert set(readings(options)) == {"interactions", "triples"}


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
        ("", "no file of events is recognized: nothing"),
        ("a.csv b.csv", "more than one file may hold the events: a.csv, b.csv"),
        ("test.csv list.csv", "test.csv is there, but no training part. Add it, or have this"),
        ("train.csv train.tsv test.csv", "more than one file for one part: train.csv, train.tsv"),
        ("notes.txt! more.txt!", "no file of events is recognized: more.txt, notes.txt"),
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
