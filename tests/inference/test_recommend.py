"""Recommendations against those worked out by hand on a circle of six items."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from hasten.errors import DataError, UsageError
from hasten.inference import stream, table_view
from hasten.inference.recommend import Recommendations, recommend


def by_user(found: Recommendations) -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for row in found.to_table().to_pylist():
        assert row["rank"] == len(lists.setdefault(row["user_id"], [])) + 1
        lists[row["user_id"]].append(row["item_id"])
    return lists


def test_everything_known_is_history_and_left_out(make_run):
    found = recommend(make_run(), topk=3)
    assert by_user(found) == {
        "u1": ["dog", "eel", "=fox"],
        "u2": ["=fox", "ant", "bee"],
        "u3": ["ant", "bee", "cat"],
    }
    assert found.short == 0
    assert found.without_history == 0
    assert "everything known" in found.known


def test_history_until_an_earlier_part(make_run):
    found = recommend(make_run(), topk=2, until="train")
    assert by_user(found)["u1"] == ["bee", "cat"]
    assert found.without_history == 1  # u3 has test events alone
    assert by_user(recommend(make_run(), ["u1"], topk=2, until="valid")) == {"u1": ["cat", "dog"]}


def test_seen_items_where_wanted(make_run):
    found = recommend(make_run(), ["u2"], topk=6, exclude_seen=False)
    assert by_user(found) == {"u2": ["=fox", "ant", "bee", "cat", "dog", "eel"]}
    assert found.to_table()["score"].to_pylist() == [0, -1, -2, -3, -4, -5]


def test_order_and_repeats_of_the_users_are_kept(make_run):
    found = recommend(make_run(), ["u3", "u1"], topk=1)
    assert list(by_user(found)) == ["u3", "u1"]


def test_allow_and_block(make_run):
    loaded = make_run()
    assert by_user(recommend(loaded, ["u1"], allow=["ant", "eel", "dog"], topk=5)) == {
        "u1": ["dog", "eel"]
    }
    assert by_user(recommend(loaded, ["u1"], block=["dog"], topk=2)) == {"u1": ["eel", "=fox"]}
    both = recommend(loaded, ["u1"], allow=["dog", "eel"], block=["dog"], topk=2)
    assert by_user(both) == {"u1": ["eel"]}
    assert both.short == 1
    with pytest.raises(UsageError, match="leave no item"):
        recommend(loaded, allow=["dog"], block=["dog"])


def test_more_items_than_there_are(make_run):
    found = recommend(make_run(), topk=100)
    assert {user: len(items) for user, items in by_user(found).items()} == {
        "u1": 3,
        "u2": 4,
        "u3": 5,
    }
    assert found.short == 3


def test_new_histories_stand_alone(make_run):
    histories = {"u1": ["eel", "ant"], 7: ["dog"]}
    found = recommend(make_run(), histories=histories, topk=2)
    assert by_user(found) == {"u1": ["bee", "cat"], "7": ["eel", "=fox"]}
    assert found.known == "the given histories alone"


def test_items_follow_their_times(make_run):
    """Stably, and items and times stay together; the last one in time decides on this circle."""
    loaded = make_run()
    histories = {"a": ["dog", "ant", "eel"], "b": ["bee"]}
    times = {"b": [1], "a": [5.9, -2, 5.1]}
    found = recommend(loaded, histories=histories, times=times, topk=1)
    assert by_user(found) == {"a": ["=fox"], "b": ["cat"]}
    assert found.histories.items.tolist() == [0, 3, 4, 1]
    assert found.histories.times.tolist() == [-2, 5, 5, 1]
    loaded.config.data.time_unit = "ms"
    times = {"a": [5900, -2000, 5100], "b": [1]}
    found = recommend(loaded, histories=histories, times=times, topk=1)
    assert found.histories.times.tolist() == [-2, 5, 5, 0]


def test_times_that_do_not_belong(make_run):
    loaded = make_run()
    with pytest.raises(UsageError, match="the history of 'a' has 2 items, 1 times"):
        recommend(loaded, histories={"a": ["ant", "bee"]}, times={"a": [1]})
    with pytest.raises(UsageError, match="the history of 'a' has 1 items, 0 times"):
        recommend(loaded, histories={"a": ["ant"]}, times={"b": [1]})
    with pytest.raises(DataError, match="must be numbers"):
        recommend(loaded, histories={"a": ["ant"]}, times={"a": [float("nan")]})
    with pytest.raises(UsageError, match="times and features belong to histories"):
        recommend(loaded, ["u1"], times={"u1": [1]})


def test_a_model_that_reads_times_says_what_it_takes_instead(make_run):
    loaded = make_run()
    loaded.model.reads_times = True
    found = recommend(loaded, histories={"a": ["ant"]})
    assert found.known == "the given histories alone, taken for evenly spaced in time"
    found = recommend(loaded, histories={"a": ["ant"]}, times={"a": [3]})
    assert found.known == "the given histories alone"


def test_numbers_as_labels(make_run):
    found = recommend(make_run(numeric=True), [10, "20"], topk=1, block=["103"])
    table = found.to_table()
    assert table.column_names == ["user_id", "item_id", "rank", "score"]
    assert table.to_pylist() == [
        {"user_id": 10, "item_id": 104, "rank": 1, "score": -1.0},
        {"user_id": 20, "item_id": 105, "rank": 1, "score": 0.0},
    ]


def test_names_beside_ids(make_run):
    rows = recommend(make_run(), ["u3"], topk=3).to_table().to_pylist()
    assert [row["item_name"] for row in rows] == ["Ant", "Bee", None]


def test_a_frame(make_run):
    frame = recommend(make_run(), ["u1"], topk=2).to_frame()
    assert list(frame["item_id"]) == ["dog", "eel"]


def test_without_pandas_the_remedy_is_named(make_run, monkeypatch):
    monkeypatch.setattr(table_view, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install pandas"):
        recommend(make_run(), topk=1).to_frame()


def test_more_users_than_a_tile_holds(make_run):
    histories = {f"n{i}": ["ant", "bee"][: 1 + i % 2] for i in range(600)}
    found = recommend(make_run(), histories=histories, topk=2)
    lists = by_user(found)
    assert list(lists) == list(histories)
    assert lists["n0"] == ["bee", "cat"]
    assert lists["n599"] == ["cat", "dog"]


def test_unknown_users_are_counted_and_the_nearest_named(make_run):
    unknown = [f"u9{i}" for i in range(7)]
    with pytest.raises(DataError) as caught:
        recommend(make_run(), ["u1", *unknown])
    message = str(caught.value)
    assert message.startswith("7 of 8 users are unknown to the run: 'u90', 'u91', 'u92', 'u93', ")
    assert "'u95'" not in message
    assert "new can be given by a history" in message
    with pytest.raises(DataError, match="nearest to 'cot' is 'cat'"):
        recommend(make_run(), histories={"x": ["cot"]})


@pytest.mark.parametrize("label", ["-1", "1e3", "u1", "10.5", "9" * 30, "", "\u0661\u0660"])
def test_unknown_numbers(make_run, label):
    with pytest.raises(DataError, match="whole numbers from 10 to 30"):
        recommend(make_run(numeric=True), [label])


def test_what_cannot_be_asked(make_run):
    loaded = make_run()
    with pytest.raises(DataError, match=r"0 users"):
        recommend(loaded, [])
    with pytest.raises(DataError, match="the history of 'x' is empty"):
        recommend(loaded, histories={"x": []})
    with pytest.raises(DataError, match="is empty"):
        recommend(loaded, histories={})
    with pytest.raises(UsageError, match="not both"):
        recommend(loaded, ["u1"], {"x": ["ant"]})
    with pytest.raises(UsageError, match="1 or more"):
        recommend(loaded, topk=0)
    with pytest.raises(DataError, match="1 of 1 blocked items are unknown"):
        recommend(loaded, block=["yak"])
    loaded.model.scores_new_users = False
    with pytest.raises(UsageError, match="cannot score a history"):
        recommend(loaded, histories={"x": ["ant"]})


def test_results_do_not_share_memory_with_the_run(make_run):
    loaded = make_run()
    before = loaded.dataset.interactions.item.copy()
    recommend(loaded, topk=2)
    assert np.array_equal(loaded.dataset.interactions.item, before)


def test_histories_as_a_list_as_lists_and_as_one_id(make_run):
    loaded = make_run()
    assert by_user(recommend(loaded, histories=["eel", "ant"], topk=1)) == {"new": ["bee"]}
    assert by_user(recommend(loaded, histories=[["ant"], ["dog"]], topk=1)) == {
        "0": ["bee"],
        "1": ["eel"],
    }
    assert by_user(recommend(loaded, histories={"a": "dog"}, topk=1)) == {"a": ["eel"]}
    assert by_user(recommend(loaded, histories="dog", topk=1)) == {"new": ["eel"]}
    assert by_user(recommend(loaded, "u1", topk=1)) == {"u1": ["dog"]}
    timed = recommend(loaded, histories=["dog", "ant"], times=[2, 1], topk=1)
    assert by_user(timed) == {"new": ["eel"]}


def test_unknown_labels_are_ignored_and_counted_where_wanted(make_run):
    loaded = make_run()
    histories = {"a": ["ant", "cow", "bee", "gnu"], "b": ["cow"]}
    with pytest.raises(DataError, match=r"3 of 5 items are unknown.*--unknown ignore"):
        recommend(loaded, histories=histories)
    times = {"a": [3, 1, 2, 4], "b": [1]}
    found = recommend(loaded, histories=histories, times=times, topk=2, unknown="ignore")
    assert found.ignored == {"item": 3}
    assert by_user(found)["a"] == ["cat", "dog"]  # the last in time is ant, which was seen
    assert found.histories.items.tolist() == [1, 0]
    assert found.without_history == 1
    users = recommend(loaded, ["u1", "nobody"], block=["dog", "cow"], topk=1, unknown="ignore")
    assert by_user(users) == {"u1": ["eel"]}
    assert users.ignored == {"user": 1, "blocked item": 1}
    for wrong in ({"users": ["nobody"]}, {"histories": ["cow"]}):
        with pytest.raises(DataError, match="known"):
            recommend(loaded, unknown="ignore", **wrong)
    with pytest.raises(UsageError, match="must be error or ignore"):
        recommend(loaded, unknown="drop")


def test_results_are_short_in_a_notebook(make_run):
    found = recommend(make_run(), topk=9)
    assert len(repr(found)) < 100
    assert "<td>dog</td>" in found._repr_html_()


def test_all_users_in_parts_are_those_of_one_table(make_run, tmp_path, monkeypatch):
    loaded = make_run()
    whole = recommend(loaded, topk=4)
    monkeypatch.setattr(stream, "USERS_AT_A_TIME", 2)
    path = tmp_path / "all.csv"
    told = []
    counts = stream.write_recommendations(
        loaded, path, None, 4, lambda *progress: told.append(progress), exclude_seen=True
    )
    assert counts == stream.Counts.of(whole)
    users = len(whole.users)
    assert told == [(min(done, users), users) for done in range(2, users + 2, 2)]
    found = [
        (row["user_id"], row["item_id"]) for row in csv.DictReader(path.read_text().splitlines())
    ]
    rows = whole.to_table().to_pylist()
    assert found == [(str(row["user_id"]), str(row["item_id"])) for row in rows]
