"""Which trial is trained next, and to which epoch."""

from __future__ import annotations

from hasten.tuning.halving import Step, Trial, last_step, next_step, rungs

AT = [1, 3, 9]


def paused(*scores: float, at: int = 1, begin: int = 0) -> list[Trial]:
    return [Trial(begin + n, at, {at: score}) for n, score in enumerate(scores)]


def test_rungs_are_a_ninth_a_third_and_all_of_the_epochs_at_evaluations():
    assert rungs(27, 1) == [3, 9, 27]
    assert rungs(20, 2) == [4, 8, 20]
    assert rungs(22, 22) == [22]
    assert rungs(1, 1) == [1]


def test_an_interrupted_step_is_finished_first():
    trials = [*paused(0.3, 0.2), Trial(2, 1, {}), *paused(0.9, begin=3)]
    assert next_step(trials, AT, start=True) == Step(2, 1)


def test_the_best_third_of_a_rung_goes_on():
    assert next_step(paused(0.1, 0.5), AT, start=True) == Step(None, 1)
    assert next_step(paused(0.1, 0.5, 0.2), AT, start=True) == Step(1, 3)
    promoted = [*paused(0.1), Trial(1, 3, {1: 0.5, 3: 0.6}), *paused(0.2, begin=2)]
    assert next_step(promoted, AT, start=True) == Step(None, 1)
    # two of six: the second best is promoted when there are enough others
    assert next_step([*promoted, *paused(0.3, 0.3, 0.0, begin=3)], AT, start=True) == Step(3, 3)


def test_higher_rungs_come_first():
    trials = [Trial(n, 3, {1: 0.5, 3: score}) for n, score in enumerate((0.1, 0.7, 0.2))]
    assert next_step([*trials, *paused(*[0.6] * 9, begin=3)], AT, start=True) == Step(1, 9)


def test_in_the_end_the_best_trial_is_trained_to_the_end():
    trials = [*paused(0.1, 0.4), Trial(2, 3, {1: 0.5, 3: 0.6})]
    assert next_step(trials, AT, start=False) == Step(2, 9)
    assert last_step([Trial(0, 9, {1: 0.1, 9: 0.2}), *trials], 9) is None
    assert last_step([], 9) is None
