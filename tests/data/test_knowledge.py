"""Events with facts about the items: layouts, lists, links, refusals, storing, the sample."""

from __future__ import annotations

import gzip
import shutil
import zipfile

import numpy as np
import pyarrow as pa
import pytest

from hasten.config import AnyDataOptions, KnowledgeOptions, PairOptions
from hasten.data.detect import load_any
from hasten.data.interactions.carve import carve_valid
from hasten.data.interactions.load_features import load_pairs
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.overview import inspect
from hasten.data.samples.knowledge import make_library
from hasten.data.store import fingerprint, load_stored, save_dataset
from hasten.data.tables import TEST, TRAIN, VALID
from hasten.errors import DataError
from tests.models.collaborative.kgat_data import write_layout

LISTS = {
    "user_list.txt": "org_id remap_id\n" + "".join(f"user{i} {i}\n" for i in range(4)),
    "item_list.txt": "org_id remap_id freebase_id\n"
    + "".join(f"book {i} {i} m.{i}\n" for i in range(11)),
    "entity_list.txt": "org_id remap_id\n"
    + "".join(f"m.{i} {i}\n" for i in range(15))
    + " 15\n",  # published lists have entries without a name
    "relation_list.txt": "org_id remap_id\nby 0\nof 1\nin 2\nidle 3\n",
}


@pytest.fixture
def layout(tmp_path):
    folder = write_layout(tmp_path / "books")
    for name, content in LISTS.items():
        (folder / name).write_text(content)
    return folder


def load(folder, facts=True, **options):
    if not facts:
        return load_pairs(PairOptions(path=str(folder), **options), 0)
    return load_knowledge(KnowledgeOptions(path=str(folder), **options), 0)


def test_reads_the_layout_of_kgat(layout):
    dataset = load(layout, valid_share=0.1)
    facts = dataset.facts
    assert dataset.source.format == "sequences+facts"
    assert len(dataset.users) == 4
    assert len(dataset.items) == 11  # item 10 is on the list, without events
    assert dataset.items.names[3].as_py() == "book 3"
    assert dataset.users.names[0].as_py() == "user0"
    assert facts.entities.labels.to_pylist()[:11] == [str(i) for i in range(11)]
    assert facts.entities.names[4].as_py() == "m.4"
    assert facts.entities.names[len(facts.entities) - 1].as_py() is None
    assert facts.relations.names.to_pylist() == ["by", "of", "in"]
    assert len(facts.triples) == 12  # one of 13 was there twice
    counts = dataset.source.counts
    assert counts["duplicate_facts"] == 1
    assert counts["items_with_facts"] == 10  # all but item 9
    said = "\n".join(dataset.source.notes)
    for words in (
        "1 duplicate triple left out",
        "1 item without triples",
        "1 relation of the list without triples",
        "1 item of the list without interactions",
        "knowledge graph from kg_final.txt",
    ):
        assert words in said
    assert len(dataset.source.files) == 7


def test_triples_come_in_order_with_items_first(layout):
    dataset = load(layout)
    triples = dataset.facts.triples
    labels = dataset.facts.entities.labels.to_pylist()
    kinds = dataset.facts.relations.labels.to_pylist()
    found = {
        (labels[h], str(kinds[r]), labels[t])
        for h, r, t in zip(triples.head, triples.relation, triples.tail, strict=True)
    }
    lines = set((layout / "kg_final.txt").read_text().split("\n")) - {""}
    assert found == {tuple(line.split()) for line in lines}
    key = list(zip(triples.head, triples.relation, triples.tail, strict=True))
    assert key == sorted(key)


def test_validation_is_carved_out_of_train_for_users_with_five_items(layout):
    dataset = load(layout, valid_share=0.1)
    user = dataset.interactions.user
    for part, per_user in ((TRAIN, [5, 3, 4, 1]), (VALID, [1, 0, 1, 0]), (TEST, [2, 1, 2, 1])):
        assert np.bincount(user[dataset.part == part], minlength=4).tolist() == per_user
    assert "validation 0.1 of the train items" in dataset.split
    again = load_knowledge(KnowledgeOptions(path=str(layout), valid_share=0.1), 1)
    assert not np.array_equal(dataset.part, again.part) or dataset.split != again.split


def test_carving_takes_all_events_of_an_item():
    user = np.repeat(np.arange(3), 12)
    item = np.tile(np.arange(6), 6)
    part = np.full(36, TRAIN, np.int8)
    carved, _ = carve_valid(part, user, item, 0.3, 7)
    for u in range(3):
        taken = set(item[(user == u) & (carved == VALID)].tolist())
        assert len(taken) == 2
        assert not taken & set(item[(user == u) & (carved == TRAIN)].tolist())


def test_nobody_to_carve_from_is_refused():
    with pytest.raises(DataError, match=r"no user has 5 train items.*data\.valid_share=0"):
        carve_valid(np.zeros(4, np.int8), np.arange(4), np.arange(4), 0.1, 0)


def test_zipped_and_gzipped_triples_as_published(layout):
    plain = load(layout)
    with zipfile.ZipFile(layout / "kg_final.txt.zip", "w") as archive:
        archive.write(layout / "kg_final.txt", "kg_final.txt")
    content = (layout / "kg_final.txt").read_bytes()
    (layout / "kg_final.txt").unlink()
    assert fingerprint(load(layout)) == fingerprint(plain)
    (layout / "kg_final.txt.zip").unlink()
    (layout / "kg_final.txt.gz").write_bytes(gzip.compress(content))
    assert fingerprint(load(layout)) == fingerprint(plain)


def test_atomic_files_with_links(tmp_path):
    (tmp_path / "a.inter").write_text(
        "user_id:token\titem_id:token\n" + "".join(f"{u}\t{i}\n" for u in "xyz" for i in "abcde")
    )
    (tmp_path / "a.kg").write_text(
        "head_id:token\trelation_id:token\ttail_id:token\nm.1\tfilm.by\tm.9\nm.2\tfilm.by\tm.9\n"
    )
    (tmp_path / "a.link").write_text(
        "item_id:token\tentity_id:token\na\tm.1\nb\tm.2\nc\tm.2\nd\tm.7\n"
    )
    dataset = load(tmp_path)
    assert dataset.facts.entities.labels.to_pylist() == [
        "m.1",
        "m.2",
        "item:c",
        "m.7",
        "item:e",
        "m.9",
    ]
    assert dataset.facts.triples.head.tolist() == [0, 1]
    assert dataset.facts.triples.tail.tolist() == [5, 5]
    said = "\n".join(dataset.source.notes)
    assert "1 item with the entity of another" in said
    assert "1 link to an entity without triples" in said
    assert dataset.split.startswith("ratio 0.8/0.1/0.1")


def test_plain_events_with_facts_beside_or_named(tmp_path):
    rows = "".join(f"{u},{i}\n" for u in range(4) for i in range(5))
    (tmp_path / "e.csv").write_text("user_id,item_id\n" + rows)
    (tmp_path / "e.kg.csv").write_text("head,relation,tail\nT0,by,A\nT1,by,A\n")
    (tmp_path / "e.links.csv").write_text("item,entity\n0,T0\n1,T1\n")
    beside = load(tmp_path / "e.csv")
    assert len(beside.facts.triples) == 2
    for old, new in (("e.kg.csv", "facts.csv"), ("e.links.csv", "map.csv")):
        (tmp_path / old).rename(tmp_path / new)
    with pytest.raises(DataError, match="interactions, but no knowledge graph about the items"):
        load(tmp_path / "e.csv")
    named = load(
        tmp_path / "e.csv", kg=str(tmp_path / "facts.csv"), links=str(tmp_path / "map.csv")
    )
    assert fingerprint(named) == fingerprint(beside)
    table = {"user_id": np.repeat(np.arange(4), 5), "item_id": np.tile(np.arange(5), 4)}
    options = KnowledgeOptions(kg=str(tmp_path / "facts.csv"), links=str(tmp_path / "map.csv"))
    in_memory = load_knowledge(options, 0, table)
    assert fingerprint(in_memory) == fingerprint(beside)


@pytest.mark.parametrize(
    ("file", "change", "says"),
    [
        ("train.txt", "0 1 99\n1 2 3\n", r"train.txt: line 1: item 99 is not in item_list.txt"),
        ("train.txt", "0 1 2\n77 2 3 4\n", r"train.txt: line 2: user 77 is not in user_list.txt"),
        ("kg_final.txt", "0 0 10\n1 0 16\n", r"entity numbers that entity_list.txt lacks.*line 2"),
        ("kg_final.txt", "0 0 10\n1 4 11\n", r"relation numbers that relation_list.*line 2"),
        ("kg_final.txt", "0 0 10\n1 0\n", r"line 2: 2 columns instead of 3"),
        ("kg_final.txt", "12 0 13\n13 0 14\n", r"no entity is an item of the interactions"),
        ("item_list.txt", "org_id remap_id\nx 0\ny 0\n", r"line 3: the number 0 again"),
        ("item_list.txt", "org_id remap_id\nx 0\nyyy\n", r"line 3: no number: 'yyy'"),
        ("item_list.txt", "x 0\ny 1\n", r"line 1: no header"),
        ("train.txt", "0 1 2\n0 3\n", r"user"),
    ],
)
def test_bad_files_are_refused_with_file_and_line(layout, file, change, says):
    (layout / file).write_text(change)
    with pytest.raises(DataError, match=f"(?s){says}"):
        load(layout)


def test_numbers_of_lists_are_any_integers_of_64_bits(layout):
    numbers = (-(2**63), -7, 2**53 + 1, 2**63 - 1)
    for name in ("train.txt", "test.txt"):
        lines = [line.split() for line in (layout / name).read_text().splitlines()]
        lines = [[str(numbers[int(user)]), *items] for user, *items in lines]
        (layout / name).write_text("".join(" ".join(line) + "\n" for line in lines))
    listed = "".join(f"user{i} {number}\n" for i, number in enumerate(numbers))
    (layout / "user_list.txt").write_text("org_id remap_id\n" + listed)
    users = load(layout).users
    assert users.labels.to_pylist() == list(numbers)
    assert users.names.to_pylist() == ["user0", "user1", "user2", "user3"]


def test_an_empty_line_of_a_user_is_counted(layout):
    (layout / "train.txt").write_text((layout / "train.txt").read_text() + "9\n")
    (layout / "user_list.txt").unlink()
    assert "1 user without items: left out" in "\n".join(load(layout).source.notes)


def test_an_item_with_two_entities_is_refused(tmp_path, layout):
    links = tmp_path / "links.tsv"
    links.write_text("item\tentity\n0\t10\n0\t11\n")
    with pytest.raises(DataError, match=r"line 3: item '0' is linked to '11', but .* '10' before"):
        load(layout, links=str(links))


def test_same_users_and_items_without_the_facts(layout):
    with_facts, without = load(layout), load(layout, facts=False)
    assert without.facts is None
    assert without.items.labels.equals(with_facts.items.labels)
    assert np.array_equal(without.part, with_facts.part)


def test_stored_and_read_again(layout, tmp_path):
    dataset = load(layout)
    save_dataset(dataset, tmp_path / "stored")
    again = load_stored(tmp_path / "stored")
    assert fingerprint(again) == fingerprint(dataset)
    assert again.facts.entities.names.equals(dataset.facts.entities.names)
    assert fingerprint(dataset) != fingerprint(load(layout, facts=False))
    shutil.copy(tmp_path / "stored" / "items.parquet", tmp_path / "stored" / "relations.parquet")
    with pytest.raises(DataError, match="does not match its fingerprint"):
        load_stored(tmp_path / "stored")


def test_inspect_and_check_see_the_facts(layout):
    found = inspect(AnyDataOptions(path=str(layout)))
    assert [file["format"] for file in found.files] == ["sequences", "sequences", "facts"]
    assert found.counts["facts"] == 12
    assert "facts per relation" in found.spread
    assert load_any(AnyDataOptions(path=str(layout)), 0).facts is not None


def test_sample_is_the_same_everywhere_and_of_any_size():
    made = make_library()
    assert made.table.num_rows == 6000
    table = pa.table({name: made.table[name] for name in ("user_id", "item_id")})
    pairs = set(zip(*(table[name].to_pylist() for name in table.column_names), strict=True))
    assert len(pairs) == 6000
    other = make_library(users=50, items=200, events=400, seed=3)
    assert other.table.num_rows == 400
    with pytest.raises(DataError, match="at least 40 items"):
        make_library(users=50, items=20)
