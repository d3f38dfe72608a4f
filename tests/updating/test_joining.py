"""Join data with new ones: parts, facts, features, typed edges; equal to reading all at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import hasten
from hasten.build import load_data
from hasten.config_loading.build import build_config
from hasten.data.graph.node_types import NodeTypes
from hasten.data.store import load_stored
from hasten.data.tables import TEST, TRAIN, VALID, AnyDataset, Dataset, KnowledgeGraph
from hasten.errors import DataError
from hasten.updating.joined import Joined
from hasten.updating.reading import read_and_join

LAST = {"data.split": "leave-last-two-out"}


def joined(model: str, old: Path, new: Path, **settings: object) -> tuple[AnyDataset, Joined]:
    before = load_data(build_config(model, str(old), None, (), settings), None)
    config = build_config(model, str(new), None, (), settings)
    return before, read_and_join(before, config, None, ())


def pairs(dataset: Dataset, part: int) -> set[tuple[str, str]]:
    events, rows = dataset.interactions, dataset.part == part
    users = dataset.users.take(events.user[rows]).to_pylist()
    return set(zip(users, dataset.items.take(events.item[rows]).to_pylist(), strict=True))


def test_parts_of_a_random_split_stay_and_new_events_are_divided(tmp_path):
    rows = [f"u{u},i{(u + step) % 30}" for u in range(20) for step in range(10)]
    more = [f"u{u},j{step}" for u in range(10) for step in range(10)]
    (tmp_path / "old.csv").write_text("\n".join(["user,item", *rows]))
    (tmp_path / "new.csv").write_text("\n".join(["user,item", *more]))
    old, found = joined("bprmf", tmp_path / "old.csv", tmp_path / "new.csv")
    new = found.dataset
    assert isinstance(old, Dataset)
    assert isinstance(new, Dataset)
    for part in (TRAIN, VALID, TEST):
        assert pairs(old, part) <= pairs(new, part)
        assert len(pairs(new, part) - pairs(old, part)) == (80, 10, 10)[part]
    assert found.counts["new_items"] == 10


def test_what_was_trained_on_is_never_held_out(tmp_path):
    """A user of two events has none held out; a third one would make the second validation."""
    old = [f"a,i{n},{n}" for n in range(5)] + ["b,i1,1", "b,i2,2"]
    (tmp_path / "old.csv").write_text("\n".join(["user,item,time", *old]))
    (tmp_path / "new.csv").write_text("user,item,time\nb,i3,3\n")
    _, found = joined("sasrec", tmp_path / "old.csv", tmp_path / "new.csv")
    assert isinstance(found.dataset, Dataset)
    assert {item for user, item in pairs(found.dataset, VALID) if user == "b"} == set()
    assert pairs(found.dataset, TEST) == {("a", "i4"), ("b", "i3")}
    assert "1 event stay" in " ".join(found.dataset.source.notes)


def test_a_new_item_comes_with_its_facts(tmp_path):
    for name, items in (("old", ["a", "b", "c"]), ("new", ["d"])):
        folder = tmp_path / name
        folder.mkdir()
        events = [f"u{u},{item}" for u in range(4) for item in items]
        (folder / "x.csv").write_text("\n".join(["user,item", *events]))
        facts = [f"{item},likes,thing{ord(item) % 2}" for item in items]
        (folder / "x.kg.csv").write_text("\n".join(["head,relation,tail", *facts]))
    _, found = joined("kgat", tmp_path / "old" / "x.csv", tmp_path / "new" / "x.csv",
                      **LAST)  # fmt: skip
    assert isinstance(found.dataset, Dataset)
    facts_found = found.dataset.facts
    assert facts_found is not None
    assert facts_found.entities.labels.to_pylist() == ["a", "b", "c", "d", "thing0", "thing1"]
    assert len(facts_found.triples) == 4
    assert found.counts["new_facts"] == 1


def test_new_items_need_features(tmp_path):
    def write(name: str, events: list[str], count: int) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.csv").write_text("\n".join(["user,item", *events]))
        if count:
            values = np.arange(count * 3, dtype=np.float32).reshape(count, 3) + 1
            np.save(folder / "x.image_feat.npy", values)
        return folder / "x.csv"

    old = write("old", [f"{u},{(u + step) % 8}" for u in range(9) for step in range(4)], 8)
    lacking = write("lacking", ["0,8"], 0)
    with pytest.raises(DataError, match="1 new item without image features: 8"):
        joined("bm3", old, lacking, **LAST)
    known_only = write("known", ["0,7"], 0)
    assert joined("bm3", old, known_only, **LAST)[1].counts["new_events"] == 1
    _, found = joined(
        "bm3", old, write("new", ["0,8"], 10), **LAST
    )  # row 9: an item without events
    assert isinstance(found.dataset, Dataset)
    (image,) = found.dataset.modalities
    assert image.values[9].tolist() == [28, 29, 30]
    assert len(found.dataset.items) == 10


def edges(*rows: str) -> str:
    return "\n".join(["x_type,x_id,relation,y_type,y_id", *rows]) + "\n"


def test_typed_edges_are_stored_as_in_the_run(tmp_path):
    binds = [f"drug,d{n},binds,gene,g{n % 4}" for n in range(8)]
    both = [
        row
        for n in range(4)
        for m in range(n)
        for row in (f"gene,g{n},near,gene,g{m}", f"gene,g{m},near,gene,g{n}")
    ]
    (tmp_path / "old.csv").write_text(edges(*binds, *both))
    (tmp_path / "new.csv").write_text(edges(
        "gene,g9,binds,drug,d1",  # against the direction of the run
        "gene,g9,near,gene,g0",  # symmetric in the run
        "assay,a1,tests,drug,d1",  # a type that sorts before the others
    ))  # fmt: skip
    old, found = joined("hgt", tmp_path / "old.csv", tmp_path / "new.csv")
    new = found.dataset
    assert isinstance(old, KnowledgeGraph)
    assert isinstance(new, KnowledgeGraph)
    types = NodeTypes.of(new)
    assert types.names == ("assay", "drug", "gene")
    names = new.relations.labels.to_pylist()
    assert types.symmetric[names.index("near")]
    assert found.counts == {"new_triples": 4, "new_entities": 2, "new_relations": 1}
    label = new.entities.labels.to_pylist()
    fresh = {
        (label[h], names[r], label[t])
        for h, r, t in zip(*vars(new.triples).values(), strict=True)
        if "g9" in label[h] + label[t]
    }
    assert fresh == {
        ("drug::d1", "binds", "gene::g9"),
        ("gene::g9", "near", "gene::g0"),
        ("gene::g0", "near", "gene::g9"),
    }
    assert (new.part == VALID).sum() == (old.part == VALID).sum()
    (tmp_path / "wrong.csv").write_text(edges("gene,g1,binds,gene,g2"))
    with pytest.raises(DataError, match="'binds' joins drug and gene in the run"):
        joined("hgt", tmp_path / "old.csv", tmp_path / "wrong.csv")


def test_an_update_of_a_graph_with_a_new_node_type_trains(tmp_path):
    rows = [f"drug,d{n},binds,gene,g{m}" for n in range(8) for m in range(5) if (n + m) % 3]
    (tmp_path / "old.csv").write_text(edges(*rows))
    (tmp_path / "new.csv").write_text(edges("assay,a1,tests,drug,d1", "assay,a1,tests,drug,d2"))
    small = {"model.hidden": 8, "model.width": 8, "model.heads": 2, "threads": 1}
    run = hasten.train("hgt", tmp_path / "old.csv", settings=small, epochs=1, quiet=True,
                       out=tmp_path / "run").path  # fmt: skip
    found = hasten.update(run, tmp_path / "new.csv", out=tmp_path / "new", epochs=1, quiet=True)
    assert len(NodeTypes.of(load_stored(found.path / "data")).names) == 3  # type: ignore[arg-type]
