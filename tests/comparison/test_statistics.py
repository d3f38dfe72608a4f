"""Intervals, tests and corrections, against simulations and second implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from hasten.comparison.statistics import (
    Paired,
    difference,
    holm,
    ratio,
    student_cdf,
    student_quantile,
)
from hasten.comparison.verdict import Margin, judge

#: the mean of a simulated metric, and its gain of 3 %
MEAN = 0.4 * 0.7
TRUE = 0.03 * MEAN


def simulated(rng, seeds=5, users=300, gain=0.0, seed_sd=0.005, pair_sd=0.1, user_sd=0.1):
    """A skewed metric of a baseline, and of an alternative that is ``gain`` better (relative).

    The other parameters are standard deviations of the difference: over seeds, users and both.
    """
    usual = rng.exponential(0.4, users) * (rng.random(users) < 0.7)
    baseline = usual + 0.1 * rng.standard_normal((seeds, users))
    change = seed_sd * rng.standard_normal((seeds, 1))
    change = change + user_sd * (rng.exponential(1, users) - 1)
    change = change + pair_sd * rng.standard_normal((seeds, users))
    return Paired(baseline, baseline + change + gain * MEAN, np.ones(users))


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 30, 400, 5000])
def test_student_is_that_of_scipy(freedom):
    tolerance = 1e-9 if freedom < 1000 else 2e-3
    for t in (-30.0, -2.5, -0.3, 0.0, 1.0, 4.0):
        assert student_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=tolerance)
    for p in (0.001, 0.05, 0.5, 0.8, 0.975, 0.9995):
        expected = stats.t.ppf(p, freedom)
        assert student_quantile(p, freedom) == pytest.approx(expected, rel=tolerance, abs=1e-9)


def test_intervals_cover_the_true_difference():
    """In 200 simulated comparisons with different seeds, users and variances."""
    rng, covered = np.random.default_rng(7), 0
    for number in range(200):
        seeds, users = int(rng.integers(1, 7)), int(rng.integers(100, 400))
        spread = {name: rng.uniform(0, 0.3) for name in ("user_sd", "pair_sd")}
        spread["seed_sd"] = rng.uniform(0, 0.03) if seeds > 1 else 0.0
        paired = simulated(rng, seeds, users, gain=0.03, **spread)
        low, high = difference(paired, relative=False, seed=number, draws=1000).interval()
        covered += low <= TRUE <= high
    assert covered / 200 >= 0.93


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seeds", "spread"),
    [
        (1, {"seed_sd": 0.0}),
        (2, {}),
        (3, {"seed_sd": 0.0}),
        (3, {"seed_sd": 0.02}),
        (5, {"user_sd": 0.0, "pair_sd": 0.3, "seed_sd": 0.02}),
        (5, {"user_sd": 0.3, "pair_sd": 0.0, "seed_sd": 0.01}),
    ],
)
def test_intervals_cover_with_each_structure_of_the_variance(seeds, spread):
    rng, covered = np.random.default_rng(7), 0
    for number in range(1000):
        paired = simulated(rng, seeds, users=150, gain=0.03, **spread)
        low, high = difference(paired, relative=False, seed=number, draws=1000).interval()
        covered += low <= TRUE <= high
    assert covered / 1000 >= 0.93


def test_relative_intervals_cover_too():
    rng, covered = np.random.default_rng(8), 0
    for number in range(200):
        paired = simulated(rng, 4, users=150)
        planted = Paired(paired.baseline, 0.95 * paired.alternative, paired.weight)
        low, high = difference(planted, relative=True, seed=number, draws=1000).interval()
        covered += low <= -0.05 <= high
    assert covered / 200 >= 0.93


def test_over_users_it_is_the_paired_t_test_of_scipy():
    rng = np.random.default_rng(3)
    paired = simulated(rng, 1, users=2000, gain=0.03, seed_sd=0.0)
    found = difference(paired, relative=False)
    gain = (paired.alternative - paired.baseline)[0]
    assert found.estimate == pytest.approx(gain.mean())
    expected = stats.ttest_rel(paired.alternative[0], paired.baseline[0])
    assert found.p_none() == pytest.approx(expected.pvalue, abs=0.01)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)), rel=0.05)
    resampled = stats.bootstrap((gain,), np.mean, n_resamples=5000, method="percentile", rng=1)
    assert found.interval() == pytest.approx(tuple(resampled.confidence_interval), rel=0.05)
    # two one-sided t tests
    margin = found.estimate + 0.003
    below = stats.ttest_1samp(gain, -margin, alternative="greater").pvalue
    above = stats.ttest_1samp(gain, margin, alternative="less").pvalue
    assert found.p_at_most(-margin) == pytest.approx(below, abs=0.01)
    assert found.p_equivalent(margin) == pytest.approx(max(below, above), abs=0.01)


def test_over_seeds_it_is_the_paired_t_test_of_scipy():
    """Differences that are the same for all users of a seed."""
    baseline = np.full((4, 50), 0.3)
    paired = Paired(
        baseline, baseline + np.array([[0.010], [0.014], [0.003], [0.007]]), np.ones(50)
    )
    found = difference(paired, relative=False)
    expected = stats.ttest_rel(paired.alternative.mean(1), baseline.mean(1))
    assert found.p_none() == pytest.approx(expected.pvalue, abs=0.005)
    low, high = expected.confidence_interval(0.95)
    assert found.interval() == pytest.approx((low, high), abs=0.05 * (high - low))
    assert found.user_variance == pytest.approx(0, abs=1e-12)
    one_sided = stats.ttest_1samp(
        paired.alternative.mean(1) - 0.3, -0.002, alternative="greater"
    ).pvalue
    assert found.p_at_most(-0.002) == pytest.approx(one_sided, abs=0.005)


def test_the_variance_of_seeds_is_told_from_that_of_users():
    rng = np.random.default_rng(5)
    many = [
        difference(
            simulated(rng, 6, 400, seed_sd=0.02, user_sd=0.2, pair_sd=0.0),
            relative=False,
            draws=10,
        )
        for _ in range(50)
    ]
    assert np.mean([each.seed_variance for each in many]) == pytest.approx(0.02**2 / 6, rel=0.2)
    assert np.mean([each.user_variance for each in many]) == pytest.approx(0.2**2 / 400, rel=0.2)


def test_holm_is_the_closed_test_of_bonferroni():
    """Holm's p is the largest Bonferroni p of all sets of hypotheses that contain it."""
    rng = np.random.default_rng(0)
    for count in (1, 2, 5):
        p = rng.random(count) ** 3
        sets = [s for n in range(1, count + 1) for s in itertools.combinations(range(count), n)]
        expected = [
            max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s)
            for i in range(count)
        ]
        assert holm(p.tolist()) == pytest.approx(expected)


def test_ratios_have_the_t_interval_of_their_logarithms():
    baseline, faster = [10.0, 11.0, 9.5, 10.2], [5.1, 5.4, 4.9, 5.0]
    found = ratio(baseline, faster)
    logs = np.log(np.array(faster) / baseline)
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert found.estimate == pytest.approx(math.exp(logs.mean()))
    assert math.isnan(ratio([2.0], [1.0]).low)


def planted(loss, seeds=5, users=6000):
    """Metrics with the noise of retraining, and an alternative with this relative loss."""
    rng = np.random.default_rng(11)
    paired = simulated(rng, seeds, users, seed_sd=0.0003, pair_sd=0.03, user_sd=0.02)
    lost = Paired(paired.baseline, (1 - loss) * paired.alternative, paired.weight)
    return difference(lost, relative=True, draws=3000)


def test_planted_differences_are_found_and_called_equivalent():
    lost, small, none = planted(0.02), planted(0.001), planted(0.0)
    found = judge([lost, small, none], margin=0.01)
    assert [each.outcome for each in found] == ["worse", "equivalent", "equivalent"]
    better = judge([planted(-0.02)], margin=0.01)
    assert better[0].outcome == "better"


def test_an_alternative_that_is_the_baseline_is_equivalent():
    rng = np.random.default_rng(2)
    baseline = simulated(rng).baseline
    found = difference(Paired(baseline, baseline, np.ones(300)), relative=True)
    assert (found.estimate, *found.interval()) == (0, 0, 0)
    assert judge([found], margin=0.01)[0].outcome == "equivalent"


def test_of_a_metric_where_lower_is_better_a_decrease_is_a_gain():
    baseline = np.random.default_rng(0).uniform(10, 20, (3, 100))
    found = difference(Paired(baseline, 0.9 * baseline, np.ones(100), False), relative=True)
    assert found.estimate == pytest.approx(0.1)


def test_correction_for_several_alternatives_can_change_a_verdict():
    rng = np.random.default_rng(4)
    lost = difference(simulated(rng, 3, 300, gain=-0.05, seed_sd=0), relative=True)
    p = lost.p_none()
    assert p < 0.05
    alone = judge([lost], margin=0.001)[0]
    assert alone.outcome == "worse"
    among = judge([lost] * math.ceil(0.05 / p + 1), margin=0.001)[0]
    assert among.outcome == "undecided"


def test_too_few_seeds_are_said_and_the_suggested_number_decides():
    rng = np.random.default_rng(6)
    spread = {"users": 2000, "seed_sd": 0.004, "pair_sd": 0.02, "user_sd": 0.01}
    few = difference(simulated(rng, 3, **spread), relative=True)
    (verdict,) = judge([few], margin=0.01)
    assert verdict.outcome == "undecided"
    assert verdict.enough_seeds is not None
    assert 3 < verdict.enough_seeds <= 100
    many = difference(simulated(rng, 2 * verdict.enough_seeds, **spread), relative=True)
    assert judge([many], margin=0.01)[0].outcome == "equivalent"
    assert judge([planted(0.0)], margin=0.01)[0].enough_seeds is None


def test_too_few_users_are_said_and_the_suggested_number_decides():
    rng = np.random.default_rng(6)
    spread = {"seed_sd": 0.0, "pair_sd": 0.0, "user_sd": 0.05}
    few = difference(simulated(rng, 3, 200, **spread), relative=True)
    (verdict,) = judge([few], margin=0.01)
    assert verdict.outcome in ("undecided", "not worse")
    assert verdict.enough_users is not None
    assert verdict.enough_seeds is None  # the users' part remains, however many seeds
    many = difference(simulated(rng, 3, 4 * verdict.enough_users, **spread), relative=True)
    assert judge([many], margin=0.01)[0].outcome == "equivalent"


@pytest.mark.parametrize("text", ["", "x", "-1%", "0%", "1 percent"])
def test_a_margin_is_a_share_or_a_difference(text):
    assert (Margin.parse("1%"), Margin.parse("0.002")) == (Margin(0.01, True), Margin(0.002, False))
    with pytest.raises(Exception, match="expected a share of the baseline"):
        Margin.parse(text)
