"""Ranking tasks: who is asked, what is known, what competes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from hasten.config import EvaluationOptions
from hasten.data.tables import TEST, TRAIN, VALID, Dataset
from hasten.errors import ConfigurationError, DataError
from hasten.evaluation.protocols import Protocol, RankingTask, ranking_task

Make = Callable[..., Dataset]
FULL = EvaluationOptions()
UNI100 = EvaluationOptions(candidates="uni100")

#: user 0: items 1 2 | 3 | 4; user 1: 5 | - | 5; user 2: - | 6 | 7; user 3: train only
EVENTS = [
    (0, 1, TRAIN), (0, 2, TRAIN), (0, 3, VALID), (0, 4, TEST),
    (1, 5, TRAIN), (1, 5, TEST),
    (2, 6, VALID), (2, 7, TEST),
    (3, 1, TRAIN), (3, 2, TRAIN),
]  # fmt: skip


@pytest.fixture
def small(make_dataset: Make) -> Dataset:
    return make_dataset(EVENTS, 4, 200, "given")


def test_validation_knows_train_and_test_knows_train_and_valid(small: Dataset) -> None:
    valid = ranking_task(small, VALID, FULL, 0)
    assert valid.queries.user.tolist() == [0]
    assert valid.queries.history.items.tolist() == [1, 2]
    assert valid.targets.items.tolist() == [3]
    test = ranking_task(small, TEST, FULL, 0)
    assert test.queries.user.tolist() == [0, 1, 2]
    assert [test.queries.history.take(np.array([q])).items.tolist() for q in range(3)] == [
        [1, 2, 3],
        [5],
        [6],
    ]
    assert test.targets.items.tolist() == [4, 5, 7]
    assert test.candidates is None
    assert test.item_count == 200


def test_users_without_a_history_are_left_out_and_counted(small: Dataset) -> None:
    valid = ranking_task(small, VALID, FULL, 0).protocol
    assert valid.left_out == 1
    assert valid.text() == (
        "given, full ranking of 200 items, history masked, realistic ties, "
        "1 user without a history left out"
    )


def test_the_history_is_excluded(small: Dataset) -> None:
    test = ranking_task(small, TEST, FULL, 0)
    assert test.masked
    assert test.excluded is not None
    assert [test.excluded.row(q).tolist() for q in range(3)] == [[1, 2, 3], [5], [6]]
    assert test.targets.row(1).tolist() == [5]
    # 200 items without the target; the target of user 1 is itself in the history
    assert test.competitors(masked=False).tolist() == [199, 199, 199]
    assert test.competitors(masked=True).tolist() == [196, 199, 198]


def test_repeated_training_events_select_with_the_history(make_dataset: Make) -> None:
    events = [(user, item, TRAIN) for user in range(5) for item in range(20)]
    few = [*events, *[(4, 3, TRAIN)] * 5, (4, 30, TEST)]
    many = [*events, *[(4, 3, TRAIN)] * 6, (4, 30, TEST)]
    masked = ranking_task(make_dataset(few, 5, 50, "given"), TEST, FULL, 0).protocol
    assert (masked.mask_history, masked.repeats) == (True, None)
    dataset = make_dataset(many, 5, 50, "given")
    kept = ranking_task(dataset, TEST, FULL, 0).protocol
    assert kept.repeats == pytest.approx(6 / 106)
    assert "history kept (6% of the training events are repeats), " in kept.text()
    for chosen in (True, False):
        options = EvaluationOptions(mask_history=chosen)
        protocol = ranking_task(dataset, TEST, options, 0).protocol
        assert (protocol.mask_history, protocol.repeats) == (chosen, None)


def test_untied_users_alone(small: Dataset) -> None:
    untied = EvaluationOptions(users="untied")
    with pytest.raises(ConfigurationError, match="needs a time for every event"):
        ranking_task(small, TEST, untied, 0)
    # user 0: validation later than train, test as old as validation; users 1 and 2: test later
    times = np.array([1, 2, 5, 5, 3, 4, 1, 2, 1, 1])
    timed = replace(small, interactions=replace(small.interactions, time=times))
    valid = ranking_task(timed, VALID, untied, 0)
    assert valid.queries.user.tolist() == [0]
    assert valid.protocol.text().endswith(", 0 users with ties in time left out")
    test = ranking_task(timed, TEST, untied, 0)
    assert test.queries.user.tolist() == [1, 2]
    assert test.targets.items.tolist() == [5, 7]
    assert test.protocol.text().endswith("realistic ties, 1 user with ties in time left out")
    everyone = ranking_task(timed, TEST, FULL, 0)
    assert everyone.queries.user.tolist() == [0, 1, 2]
    assert test.protocol != everyone.protocol


def test_repeated_targets_count_once(make_dataset: Make) -> None:
    events = [(0, 1, TRAIN), (0, 9, TEST), (0, 8, TEST), (0, 9, TEST)]
    task = ranking_task(make_dataset(events, 1, 10, "given"), TEST, FULL, 0)
    assert task.targets.items.tolist() == [8, 9]


def test_an_empty_part_gives_no_queries(make_dataset: Make) -> None:
    task = ranking_task(make_dataset([(0, 1, TRAIN)], 1, 10, "given"), VALID, FULL, 0)
    assert len(task.queries) == len(task.targets) == 0


def test_uni100_draws_others_that_the_user_never_met(dataset: Dataset) -> None:
    task = ranking_task(dataset, TEST, UNI100, 0)
    assert task.candidates is not None
    assert task.candidates.shape == (700, 101)
    assert task.candidates[:, 0].tolist() == task.targets.items.tolist()
    met = dataset.histories(TRAIN, VALID, TEST)
    for row, user in enumerate(task.queries.user):
        own = met.items[met.offsets[user] : met.offsets[user + 1]]
        assert not np.isin(task.candidates[row, 1:], own).any()
    # uniform: an item is drawn for each user who never met it, with 100 / (300 - met) draws
    distinct = [np.unique(met.items[a:b]) for a, b in pairwise(met.offsets)]
    wanted = np.zeros(300)
    for own in distinct:
        wanted += 100 / (300 - len(own)) * ~np.isin(np.arange(300), own)
    drawn = np.bincount(task.candidates[:, 1:].ravel(), minlength=300)
    deviation = (drawn - wanted) / np.sqrt(np.maximum(wanted, 1))
    assert np.abs(deviation).max() < 4.5
    assert (deviation**2).mean() == pytest.approx(1, abs=0.25)


def test_uni100_depends_on_seed_part_and_user_alone(dataset: Dataset, make_dataset: Make) -> None:
    drawn = ranking_task(dataset, TEST, UNI100, 0).candidates
    assert drawn is not None
    np.testing.assert_array_equal(drawn, ranking_task(dataset, TEST, UNI100, 0).candidates)
    assert not np.array_equal(drawn, ranking_task(dataset, TEST, UNI100, 1).candidates)
    # without the other users' events in this part, a user's candidates stay what they were
    events = np.stack([dataset.interactions.user, dataset.interactions.item, dataset.part], 1)
    few = events[(events[:, 2] != TEST) | (events[:, 0] % 7 == 3)]
    fewer = ranking_task(make_dataset(few, 700, 300, "leave-last-two-out"), TEST, UNI100, 0)
    assert fewer.candidates is not None
    np.testing.assert_array_equal(fewer.candidates, drawn[fewer.queries.user])


def test_uni100_drawn_in_parts_is_the_same(dataset: Dataset, monkeypatch) -> None:
    whole = ranking_task(dataset, TEST, UNI100, seed=1)
    monkeypatch.setattr("hasten.evaluation.sampled_candidates._USERS", 3)
    parts = ranking_task(dataset, TEST, UNI100, seed=1)
    np.testing.assert_array_equal(whole.candidates, parts.candidates)


def test_uni100_refuses_what_it_cannot_do(make_dataset: Make, dataset: Dataset) -> None:
    several = make_dataset([(0, 1, TRAIN), (0, 2, TEST), (0, 3, TEST)], 1, 200, "ratio")
    with pytest.raises(ConfigurationError, match="ranks one target a user"):
        ranking_task(several, TEST, UNI100, 0)
    everything = make_dataset([(0, 0, TRAIN), (0, 1, TRAIN), (0, 2, TEST)], 1, 3, "given")
    with pytest.raises(DataError, match="user 'u0' has met 3 of 3 items"):
        ranking_task(everything, TEST, UNI100, 0)
    both = EvaluationOptions(candidates="uni100", mask_history=True)
    with pytest.raises(ConfigurationError, match=r"mask_history has no effect"):
        ranking_task(dataset, TEST, both, 0)


@pytest.mark.parametrize("options", [FULL, UNI100, EvaluationOptions(seen_targets="miss")])
def test_a_sample_of_users_is_a_part_of_the_task(
    dataset: Dataset, options: EvaluationOptions
) -> None:
    whole = ranking_task(dataset, TEST, options, seed=0)
    assert isinstance(whole, RankingTask)
    part = whole.sampled(5, seed=0)
    again = whole.sampled(5, seed=0)
    np.testing.assert_array_equal(part.queries.user, again.queries.user)
    assert len(set(part.queries.user.tolist())) == 5
    assert part.queries.user.tolist() != whole.sampled(5, seed=1).queries.user.tolist()
    for row, user in enumerate(part.queries.user.tolist()):
        place = whole.queries.user.tolist().index(user)
        assert part.targets.row(row).tolist() == whole.targets.row(place).tolist()
        if whole.excluded is not None and part.excluded is not None:
            assert part.excluded.row(row).tolist() == whole.excluded.row(place).tolist()
        if whole.candidates is not None and part.candidates is not None:
            assert part.candidates[row].tolist() == whole.candidates[place].tolist()
    assert len(part.competitors(part.masked)) == len(part.targets.items)
    assert f"5 of {len(whole.queries)} users sampled" in part.protocol.text()
    assert whole.sampled(len(whole.queries), seed=0) is whole


def test_protocols_compare_only_with_themselves() -> None:
    full = Protocol("leave-last-two-out", "test", ("train", "valid"), "full", 12101, False)
    assert full.text() == (
        "leave-last-two-out, full ranking of 12,101 items, history kept, realistic ties"
    )
    assert full == replace(full)
    others = [
        replace(full, split="ratio"), replace(full, part="valid"), replace(full, known=("train",)),
        replace(full, candidates="uni100"), replace(full, items=12100),
        replace(full, mask_history=True), replace(full, left_out=3),
    ]  # fmt: skip
    assert not any(full == other for other in others)
    assert "masked" in replace(full, mask_history=True).text()
    assert "100 uniform others of 12,101 items" in replace(full, candidates="uni100").text()
