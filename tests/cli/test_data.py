"""hasten data: every verb, its JSON, its exit codes, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import yaml

from hasten.cli.main import main
from hasten.config import AnyDataOptions, InteractionOptions, TripleOptions
from hasten.data.detect import holds_triples
from hasten.data.graph.load import load_graph
from hasten.data.interactions.load import load_dataset
from hasten.data.samples.graph import make_families
from hasten.data.samples.typed_graph import make_medicine
from hasten.data.store import fingerprint

MODELS = {"sequences": "sasrec", "sittings": "tisasrec", "library": "kgat", "gallery": "mmgcn"}
CSV = "user_id,item_id,rating,timestamp\n" + "".join(
    f"{u},{i},{i % 5},{1_000_000_000 + u * 100 + i}\n" for u in (1, 2, 3) for i in range(5)
)


@pytest.fixture
def ratings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ratings.csv").write_text(CSV)
    return "ratings.csv"


def run(capsys, *arguments) -> tuple[int, dict, str]:
    """Exit code, the JSON on the last line of stdout, what was said on stderr."""
    code = main(["data", *arguments, "--json"])
    shown = capsys.readouterr()
    assert shown.out.count("\n") == 1
    return code, json.loads(shown.out), shown.err


def test_list(capsys):
    code, found, said = run(capsys, "list")
    assert code == 0
    names = {entry["name"]: entry for entry in found["datasets"]}
    assert names["sequences"]["kind"] == "built-in sample"
    assert len(names["ml-1m"]["sha256"]) == 64
    assert {form["name"] for form in found["formats"]} >= {"delimited", "sequences", "recbole"}
    assert "hasten data fetch ml-1m" in said


def test_inspect_says_how_to_read_the_same(ratings, capsys, tmp_path):
    code, found, said = run(capsys, "inspect", ratings, "--write", "data.yaml")
    assert code == 0
    assert found["files"][0]["format"] == "delimited"
    assert found["files"][0]["first_lines"][1] == "1,0,0,1000000100"
    assert found["counts"]["interactions"] == 15
    assert found["events_per_user"]["median"] == 5
    assert found["ratings"] == {"min": 0.0, "mean": 2.0, "max": 4.0}
    assert found["times"]["first"] == "2001-09-09 01:48:20"
    assert "separator ','" in said
    settings = yaml.safe_load((tmp_path / "data.yaml").read_text())["data"]
    assert settings == found["settings"]
    options = InteractionOptions(**settings)
    assert options.columns["time"] == "timestamp"
    same = load_dataset(options, 0)
    assert fingerprint(same) == fingerprint(load_dataset(InteractionOptions(path=ratings), 0))


def test_the_options_that_inspect_prints_work(ratings, capsys):
    found = run(capsys, "inspect", ratings)[1]
    words = [word for option in found["options"] for word in option.split(" ", 1)]
    code, checked, _ = run(capsys, "check", found["settings"]["path"], *words)
    assert code == 0
    assert checked["fingerprint"] == run(capsys, "check", ratings)[1]["fingerprint"]


def test_inspect_of_parts_and_of_a_sample(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text("1\t2\n1\t3\n2\t2\n")
    code, found, _ = run(capsys, "inspect", ".")
    assert code == 0
    assert found["settings"]["train"] == "train.txt"
    assert found["settings"]["separator"] == "tab"
    assert [file["part"] for file in found["files"]] == ["train", "test"]
    code, found, _ = run(capsys, "inspect", "sequences")
    assert code == 0
    assert found["counts"]["users"] == 1200


def test_inspect_finds_times_and_names_beside_the_data(tmp_path, capsys):
    (tmp_path / "x_item.txt").write_text("1 2 3 4 5\n2 3 4\n")
    (tmp_path / "x_time.txt").write_text("1 1 2 3 4\n2 7 8\n")
    (tmp_path / "x_item.names.csv").write_text("2,Tea\n3,Milk\n4,Oil\n5,Ink\n")
    code, found, _ = run(capsys, "inspect", str(tmp_path))
    assert code == 0
    assert found["settings"]["times"] == str(tmp_path / "x_time.txt")
    assert found["settings"]["names"] == str(tmp_path / "x_item.names.csv")
    same = load_dataset(InteractionOptions(**found["settings"]), 0)
    assert same.interactions.time is not None
    assert same.items.names is not None


def test_check_counts_and_notes(ratings, capsys):
    code, found, said = run(capsys, "check", ratings, "--set", "data.min_rating=1")
    assert code == 0
    assert found["ok"] is True
    assert found["counts"]["below_min_rating"] == 3
    assert found["files"][0]["name"] == "ratings.csv"
    assert "note: 3 events rated below 1 left out" in said
    assert "ok: 15 events checked" in said


def test_deep_check_prints_findings_and_remedies(ratings, capsys, tmp_path):
    (tmp_path / ratings).write_text(CSV + "3,4,1,1000000304\n")
    code, found, _ = run(capsys, "check", ratings, "--deep")
    assert code == 0
    rows = {(row["part"], row["finding"]): row for row in found["audit"]}
    assert rows["test", "tied in time"]["affected"] == 1
    assert rows["test", "target in history"]["share"] == pytest.approx(1 / 3)
    assert list(found["remedies"]) == [
        "tied in time", "target in history", "target not in train", "near-duplicate user"
    ]  # fmt: skip
    assert main(["data", "check", "families", "--deep"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["part", "finding", "affected", "of", "share"]
    assert shown[shown.index("") + 1].split()[:3] == ["relation", "other", "kind"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "0 rows"),
        (CSV + "1,2\n", "line 17: 2 columns instead of 4"),
        (CSV + "1,2,NaN,5\n", "not finite"),
        (CSV + "1,2,3,soon\n", "time 'soon' is not a number"),
        (CSV + "1.5,2,3,5\n", "--set data.ids=labels"),
        ("user,item\n1,2\n", "no user has 3 events"),
    ],
)
def test_check_refuses_bad_data_with_exit_code_two(content, says, ratings, capsys, tmp_path):
    (tmp_path / ratings).write_text(content)
    code, found, said = run(capsys, "check", ratings)
    assert code == 2
    assert found["error"]["code"] == "data"
    assert says in found["error"]["message"]
    assert says in said
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == [ratings]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "missing.csv"], "no such file or folder"),
        (["check"], "no data are named"),
        (["check", "ratings.csv", "--format", "cvs"], "unknown format 'cvs'"),
        (["check", "ratings.csv", "--set", "data.splt=ratio"], "data.split"),
        (["inspect", "ratings.csv", "--write", "ratings.csv"], "exists already"),
        (["chekc", "ratings.csv"], "did you mean 'check'"),
        (["fetch", "sequences"], "nothing to fetch"),
        (["fetch", "https://example.com/a.csv"], "pass --sha256"),
        (["fetch", "http://example.com/a.csv", "--sha256", "0" * 64], "only https"),
        (["fetch", "ml-1m", "--offline"], "offline is set"),
        (["make", "nothing", "--out", "x"], "known: sequences"),
        (["make", "sequences", "--out", "x", "--users", "5", "--events", "6"], "at least 3 a user"),
    ],
)
def test_wrong_use_is_exit_code_two(arguments, says, ratings, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_CACHE", str(tmp_path / "cache"))
    code, found, said = run(capsys, *arguments)
    assert code == 2
    assert says in found["error"]["message"]
    assert "Traceback" not in said
    assert [p.name for p in tmp_path.iterdir()] == [ratings]


def test_make_writes_what_train_reads(tmp_path, capsys):
    arguments = ["make", "sequences", "--out", str(tmp_path), "--users", "20", "--events", "100"]
    code, found, said = run(capsys, *arguments, "--items", "12", "--seed", "3")
    assert code == 0
    assert (found["users"], found["items"], found["events"]) == (20, 12, 100)
    assert f"hasten train sasrec {found['data']}" in said
    dataset = load_dataset(InteractionOptions(path=found["data"]), 0)
    assert dataset.items.names is not None
    assert len(dataset.interactions) == 100
    code, found, _ = run(capsys, *arguments)
    assert code == 2
    assert "exists already" in found["error"]["message"]


@pytest.mark.parametrize("kind", sorted(MODELS))
@pytest.mark.parametrize("command", ["check", "inspect"])
def test_what_make_writes_is_recognised(command, kind, tmp_path, capsys):
    """Three columns of numbers under a header are events, not triples."""
    out = tmp_path / "made.csv"
    code, _, said = run(capsys, "make", kind, "--out", str(out))
    assert code == 0
    assert f"next: hasten train {MODELS[kind]} {out}\n" in said
    code, found, said = run(capsys, command, str(out))
    assert code == 0, said
    assert found["counts"]["users"] > 0


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ("visitor,product,what\nv1,p1,bought\nv2,p2,seen\n", "events"),
        ("who,which,when\n1,2,1697421545\n1,3,1697422099\n", "events"),
        ("1,2,2024-01-05\n1,3,2024-01-06\n", "events"),
        ("ann,knows,bob\nbob,knows,cid\n", "triples"),
    ],
)
def test_events_or_triples(lines, kind, tmp_path):
    (tmp_path / "data.csv").write_text(lines)
    options = AnyDataOptions(path=str(tmp_path / "data.csv"))
    assert holds_triples(options) == (kind == "triples")


@pytest.mark.parametrize(
    ("name", "model"),
    [("ml-1m", "sasrec"), ("umls", "conve"), ("fb15k-237", "conve"), ("last-fm", "kgat")],
)
def test_fetch_names_a_model_that_reads_the_set(name, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hasten.data.sources.fetch.fetch", lambda *_, **__: tmp_path)
    code, found, said = run(capsys, "fetch", name)
    assert code == 0
    assert found["files"] == []
    assert f"next: hasten train {model} {name}\n" in said


def test_make_families(tmp_path, capsys):
    """The built-in knowledge graph, of any size; its names are found beside it."""
    arguments = ["make", "families", "--out", str(tmp_path / "set"), "--families", "6"]
    code, found, said = run(capsys, *arguments, "--seed", "2")
    assert code == 0
    assert found["entities"] > 40
    assert f"hasten train conve {found['data']}" in said
    for path in (found["data"], str(tmp_path / "set")):
        code, checked, said = run(capsys, "check", path)
        assert code == 0
        assert checked["counts"]["triples"] == found["triples"]
        assert "taken from the same folder: families.names.csv" in said
    code, inspected, _ = run(capsys, "inspect", found["data"])
    assert code == 0
    assert inspected["counts"]["relations"] == found["relations"] == 10
    assert inspected["files"][0]["format"] == "triples"
    graph = load_graph(TripleOptions(path=found["data"]), 0)
    assert graph.entities.names is not None
    assert graph.entities.names.null_count == 0
    made = make_families(6, seed=2)
    assert len(graph.triples) == made.table.num_rows
    for wrong, says in (
        (arguments, "exists already"),
        (["make", "families", "--out", "x", "--users", "3"], "its size is --families"),
        (["make", "families", "--out", "x", "--families", "3"], "at least 4"),
        (["make", "sequences", "--out", "x", "--families", "9"], "no effect on sequences"),
    ):
        code, refused, _ = run(capsys, *wrong)
        assert code == 2
        assert says in refused["error"]["message"]
    assert not (tmp_path / "x").exists()


def test_make_medicine(tmp_path, capsys):
    """The built-in typed graph, of any size."""
    arguments = ["make", "medicine", "--out", str(tmp_path / "set"), "--genes", "60"]
    code, found, said = run(capsys, *arguments, "--seed", "2")
    assert code == 0
    assert f"hasten train hgt {found['data']}" in said
    assert (found["types"], found["relations"]) == (4, 5)
    table = make_medicine(60, seed=2).table
    graph = load_graph(TripleOptions(path=found["data"]), 0)
    assert found["edges"] == table.num_rows
    assert graph.typed
    assert found["nodes"] == len(graph.entities)
    code, inspected, _ = run(capsys, "inspect", found["data"])
    assert code == 0
    assert inspected["files"][0]["format"] == "primekg"
    for wrong, says in (
        (arguments, "exists already"),
        (["make", "medicine", "--out", "x", "--items", "3"], "its size is --genes"),
        (["make", "medicine", "--out", "x", "--families", "9"], "no effect on medicine"),
        (["make", "medicine", "--out", "x", "--genes", "3"], "at least 60"),
        (["make", "families", "--out", "x", "--genes", "90"], "no effect on families"),
    ):
        code, refused, _ = run(capsys, *wrong)
        assert code == 2
        assert says in refused["error"]["message"]
    assert not (tmp_path / "x").exists()


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text("user,item\na,x\u202e\na,y\na,z\n")
    assert run(capsys, "check", str(path))[0] == 2
    path.write_bytes(b"user,item\na,\x1b[2J\n")
    code, _, said = run(capsys, "check", str(path))
    assert code == 2
    assert "\x1b" not in said


def test_help_imports_nothing_slow():
    code = (
        "import sys; from hasten.cli.main import main; main(['data', '--help']);"
        "slow = {'torch', 'numpy', 'pyarrow'} & set(sys.modules); assert not slow, slow"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_inspect_shows_the_defaults_that_follow_from_the_size(ratings, capsys):
    code, found, said = run(capsys, "inspect", ratings, "--model", "bprmf")
    assert code == 0
    assert found["defaults"]["model.sampling"] == "interactions"
    assert "Defaults of bprmf: " in said
    assert "chosen by the size of the data (3 users, 5 items" in said
