"""Update runs with new data: what is carried over, what is new, and the run folder that results."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

import hasten
from hasten.cli.main import main
from hasten.data.store import load_stored
from hasten.data.tables import TRAIN
from hasten.errors import HastenError
from hasten.run import resume
from hasten.runs.checkpoint import read_checkpoint

#: 40 users who walk a circle of 15 items; the last two of their steps are the new data
STEPS = [(u, (u + step) % 15, 100 + step) for step in range(9) for u in range(40)]
OLD, NEW = STEPS[:280], [*STEPS[280:], *((40, item, 107 + item) for item in range(15, 20))]
SMALL = {"model.width": 8, "model.max_length": 10, "model.dropout": 0.1, "threads": 1}


def write(path: Path, events: list[tuple[int, int, int]]) -> Path:
    lines = (f"user{u},item{i},{t}" for u, i, t in events)
    path.write_text("\n".join(["user_id,item_id,timestamp", *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the old events, and its update with the new ones."""
    folder = tmp_path_factory.mktemp("updating")
    write(folder / "old.csv", OLD)
    write(folder / "new.csv", NEW)
    write(folder / "all.csv", [*OLD, *NEW])
    hasten.train(
        "sasrec", folder / "old.csv", settings=SMALL, epochs=5, batch_size=10, lr=0.01,
        out=folder / "run", quiet=True,
    )  # fmt: skip
    update(folder, "updated", **{"checkpoint.keep": 9})
    return folder


def update(folder: Path, out: str, new: str = "new.csv", **more: object) -> hasten.Result:
    settings = {"epochs": 2, **{key: value for key, value in more.items() if "." in key}}
    named = {key: value for key, value in more.items() if "." not in key}
    return hasten.update(
        folder / "run", folder / new, out=folder / out, quiet=True, settings=settings, **named
    )


def digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_weights_and_moments_are_carried_over_by_label(folder):
    before = read_checkpoint(folder / "run" / "best")
    start = read_checkpoint(folder / "updated" / "checkpoints" / "epoch-0000")
    old = load_stored(folder / "run" / "data").items.labels.to_pylist()
    new = load_stored(folder / "updated" / "data").items.labels.to_pylist()
    assert sorted(set(new) - set(old)) == ["item15", "item16", "item17", "item18", "item19"]
    place = [new.index(label) for label in old]
    assert place != list(range(len(old)))  # the labels are sorted anew
    for group, name in (("weights", "items.weight"), ("optimisers", "next_item.0.exp_avg_sq")):
        torch.testing.assert_close(start.tensors[group][name][place], before.tensors[group][name])
    others = set(range(len(new))) - set(place)
    moments = start.tensors["optimisers"]["next_item.0.exp_avg_sq"]
    assert not moments[sorted(others)].any()
    assert moments[place].any()
    assert (start.tensors["weights"]["items.weight"][sorted(others)] != 0).all()
    for name in ("positions.weight", "blocks.0.attention.output.weight"):
        if name in before.tensors["weights"]:
            assert torch.equal(start.tensors["weights"][name], before.tensors["weights"][name])


def test_what_the_run_trained_on_stays_in_train_and_the_last_events_are_held_out(folder):
    data = load_stored(folder / "updated" / "data")
    assert len(data.interactions) == len(OLD) + len(NEW)
    of_user = data.interactions.user == data.users.labels.to_pylist().index("user3")
    assert data.part[of_user].tolist() == [0] * 7 + [1, 2]
    assert data.split == "leave-last-two-out, by time"


def test_the_new_data_may_be_all_data_a_table_or_overlap(folder):
    whole = update(folder, "whole", "all.csv")
    assert whole.update["new"]["whole"]
    rows = [*OLD[-20:], *NEW]
    table = {
        "user": [f"user{u}" for u, _, _ in rows],
        "item": [f"item{i}" for _, i, _ in rows],
        "timestamp": [t for _, _, t in rows],
    }
    overlap = hasten.update(
        folder / "run", table, out=folder / "overlap", quiet=True, settings={"epochs": 2}
    )
    prints = [
        json.loads((folder / name / "data.json").read_text())["fingerprint"]
        for name in ("updated", "whole", "overlap")
    ]
    assert len(set(prints)) == 1
    assert overlap.metrics == whole.metrics
    with pytest.raises(HastenError, match="holds no event that the run does not have"):
        update(folder, "nothing", "old.csv")
    assert not (folder / "nothing").exists()


def test_an_updated_run_is_a_run(folder, capfd):
    updated = folder / "updated"
    found = hasten.load(updated)
    assert len(found.recommend(["user40"], 3)) == 3
    assert main(["evaluate", str(updated), "--json", "--device", "cpu"]) == 0
    about = json.loads((updated / "update.json").read_text())
    record = json.loads((updated / "record.json").read_text())
    assert record["update"] == about
    assert (about["run"], about["new_items"], about["new_users"]) == ("run", 5, 1)
    again = hasten.update(updated, {"user": ["user0"], "item": ["zebra"], "timestamp": [300]},
                          out=folder / "chain", quiet=True, replay=0.0)  # fmt: skip
    assert again.update["base_epochs"] == about["base_epochs"]
    assert again.update["new_items"] == 1
    assert "is the update of another run" in error(capfd, ["verify", str(updated)])
    fresh = hasten.train("sasrec", updated, settings=SMALL, epochs=1, out=folder / "full",
                         quiet=True)  # fmt: skip
    assert fresh.protocol == found_protocol(updated)


def found_protocol(run: Path) -> str:
    text: str = json.loads((run / "metrics.json").read_text())["protocol"]
    return text


def error(capfd: pytest.CaptureFixture[str], words: list[str], code: int = 2) -> str:
    capfd.readouterr()
    assert main(words) == code
    return capfd.readouterr().err


def test_resuming_from_the_start_repeats_the_update(folder):
    again = resume(folder / "updated", checkpoint="epoch-0000", out=folder / "repeated", quiet=True)
    first, second = (
        read_checkpoint(folder / name / "final").tensors["weights"]
        for name in ("updated", "repeated")
    )
    assert again.epochs == 2
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_replay_chooses_users_without_new_events(folder):
    one = folder / "one.csv"
    write(one, [(0, 3, 500)])
    none, all_of_them = (
        update(folder, f"replay-{share}", "one.csv", replay=share) for share in (0.0, 1.0)
    )
    assert none.update["left_out"] == 39 * 5
    assert all_of_them.update["left_out"] == 0
    data = load_stored(folder / "replay-0.0" / "data")
    assert none.update["newly_trained"] == 1
    assert (data.part == TRAIN).sum() == len(OLD) + 1 - 80


def test_a_check_refuses_an_update_that_lost_too_much(folder, capfd):
    before = digests(folder / "run")
    words = ["update", str(folder / "run"), str(folder / "new.csv"), "--quiet", "--epochs", "2"]
    bad = [*words, "--out", str(folder / "bad"), "--lr", "5", "--check", "--margin", "1%"]
    told = error(capfd, bad, 1)
    assert "refused: ndcg@10 on validation, 40 queries of known ids" in told
    assert digests(folder / "run") == before
    checked = json.loads((folder / "bad" / "update.json").read_text())["check"]
    assert not checked["accepted"]
    assert checked["after"] < checked["before"]
    good = update(folder, "good", check=True, margin="99%")
    assert good.update["check"]["accepted"]
    occupied = error(capfd, [*words, "--out", str(folder / "run")])
    assert "holds a run already" in occupied
    assert digests(folder / "run") == before


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model.width": 16}, "cannot change in an update"),
        ({"training.precision": "bf16"}, "cannot change in an update"),
    ],
)
def test_what_an_update_cannot_change_is_refused(folder, settings, words):
    with pytest.raises(HastenError, match=words):
        update(folder, "refused", **settings)
    assert not (folder / "refused").exists()


def test_new_data_that_do_not_fit_are_refused(folder):
    (folder / "timeless.csv").write_text("user_id,item_id\nuser1,item3\n")
    with pytest.raises(HastenError, match="no time column"):
        update(folder, "refused", "timeless.csv")
    with pytest.raises(HastenError, match="replay 2: must be a share"):
        update(folder, "refused", replay=2.0)


#: so that an epoch of the built-in samples takes no time
TINY = {
    "rotate": {"model.width": 8, "model.negatives": 2},
    "hgt": {"model.hidden": 8, "model.width": 8, "model.heads": 2},
    "distmult": {"model.width": 8},
}
slow = [
    pytest.param(name, kind, marks=pytest.mark.slow)
    for name, kind in (
        ("lightgcn", "pairs"), ("bm3", "pairs"), ("mmgcn", "pairs"), ("freedom", "pairs"),
        ("ease", "fitted"), ("rotate", "triples"),
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("bprmf", "pairs"), ("kgat", "pairs"), ("dragon", "pairs"), ("pop", "fitted"),
        ("distmult", "triples"), ("hgt", "typed"), *slow,
    ],
)  # fmt: skip
def test_every_family_can_be_updated(model, kind, tmp_path):
    fitted = kind == "fitted"
    trained = hasten.train(model, out=tmp_path / "run", quiet=True, settings=TINY.get(model),
                           **({} if fitted else {"epochs": 1}))  # fmt: skip
    old = load_stored(trained.path / "data")
    new: dict[str, list[object]]
    if kind in ("pairs", "fitted"):
        users, items = old.users.labels.to_pylist(), old.items.labels.to_pylist()
        fresh = [max(users) + 1] if old.users.numeric else ["fresh"]
        new = {"user": fresh * 3 + users[:1], "item": [*items[:3], items[-1]]}
        if old.interactions.time is not None:
            new["timestamp"] = [int(old.interactions.time.max()) + 1 + n for n in range(4)]
    else:
        heads = old.entities.labels.to_pylist()
        relation = old.relations.labels.to_pylist()[int(old.triples.relation[0])]
        tail, start = heads[int(old.triples.tail[0])], heads[int(old.triples.head[0])]
        name = f"{start.split('::')[0]}::fresh" if kind == "typed" else "fresh"
        new = {"head": [name], "relation": [relation], "tail": [tail]}
        if kind == "typed":
            (xt, xi), (yt, yi) = name.split("::"), tail.split("::")
            new = {"x_type": [xt], "x_id": [xi], "relation": [relation], "y_type": [yt],
                   "y_id": [yi]}  # fmt: skip
    found = hasten.update(
        trained.path, new, out=tmp_path / "updated", quiet=True,
        **({} if fitted else {"epochs": 1}),
    )  # fmt: skip
    assert found.update["new_users" if kind in ("pairs", "fitted") else "new_entities"] == 1
    assert found.path == tmp_path / "updated"
    loaded = hasten.load(found.path)
    if fitted:
        with pytest.raises(HastenError, match="fitted again on all data"):
            hasten.update(trained.path, new, replay=0.5, quiet=True)
        full = hasten.train(model, found.path, out=tmp_path / "full", quiet=True)
        assert full.metrics == found.metrics
    elif kind != "pairs":
        assert loaded.model.sizes.entities == len(old.entities) + 1
    if model in ("lightgcn", "hgt"):
        with pytest.raises(HastenError, match="trains on all of its data"):
            hasten.update(trained.path, new, replay=0.5, quiet=True)


def test_an_update_goes_on_with_the_last_rate_of_a_schedule_that_begins_high(tmp_path):
    settings = {
        "epochs": 3, "lr": 0.1, "training.schedule": "inverse-sqrt", "threads": 1,
        "training.betas": (0.0, 0.999999), "model.width": 8,
    }  # fmt: skip
    trained = hasten.train("distmult", out=tmp_path / "run", quiet=True, settings=settings)
    state = read_checkpoint(trained.path / "best").state
    data = load_stored(trained.path / "data")
    entities = data.entities.labels.to_pylist()
    relation = data.relations.labels.to_pylist()[0]
    new = {"head": ["fresh"], "relation": [relation], "tail": [entities[0]]}

    def updated(name: str, **given: object) -> hasten.Result:
        return hasten.update(trained.path, new, out=tmp_path / name, quiet=True, settings=given)

    training = updated("on").loaded.config.training
    assert (training.lr, training.schedule) == (state["lr"], "constant")
    assert state["lr"] == pytest.approx(0.1 / state["position"]["step"] ** 0.5)
    given = updated("given", lr=0.05).loaded.config.training
    assert (given.lr, given.schedule) == (0.05, "inverse-sqrt")
