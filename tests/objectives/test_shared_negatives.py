"""Shared negatives: unbiased with their corrections, and the same for everyone."""

from itertools import combinations, product

import numpy as np
import pytest

from hasten.objectives.shared_negatives import SharedNegatives, masked_pairs

#: every user has two targets, so that every batch of users has as many
USERS = np.array([[0, 1], [1, 1], [2, 3], [0, 1]])
ITEMS = 5  # nobody has the last one
FREQUENCIES = np.bincount(USERS.ravel(), minlength=ITEMS)
SCORES = np.array([0.3, -1.0, 2.0, 0.5, 1.2])
WHOLE = np.exp(SCORES)


def of(targets):
    """How many, and those with the numbers that are asked for."""
    return len(targets), targets.__getitem__


def estimate(sample):
    """The estimate of the sum over the catalog of exp(score)."""
    return np.exp(SCORES[sample.items] + sample.log_weights).sum()


def batches(size):
    for users in combinations(range(len(USERS)), size):
        yield USERS[list(users)].ravel()


@pytest.mark.parametrize("negatives", [1, 3])
def test_uniform_samples_are_unbiased_over_all_draws(negatives):
    shared = SharedNegatives(FREQUENCIES, "uniform", negatives)
    draws = product(range(ITEMS), repeat=negatives)
    found = [estimate(shared.weighted(np.array(draw), np.array([], np.int64))) for draw in draws]
    assert np.mean(found) == pytest.approx(WHOLE.sum(), rel=1e-12)
    assert np.std(found) > 0.1


@pytest.mark.parametrize("negatives", [1, 3, 4])
def test_targets_of_the_batch_are_unbiased_over_all_batches_and_draws(negatives):
    """For the items that are somebody's target."""
    shared = SharedNegatives(FREQUENCIES, "in-batch", negatives)
    found = [
        estimate(shared.weighted(np.array([], np.int64), targets[list(places)]))
        for targets in batches(2)
        for places in combinations(range(4), negatives)
    ]
    assert np.mean(found) == pytest.approx(WHOLE[:4].sum(), rel=1e-12)
    assert np.std(found) > 0.1


def test_a_mixture_is_unbiased_over_all_batches_and_draws():
    shared = SharedNegatives(FREQUENCIES, "mixed", 4)
    found = [
        estimate(shared.weighted(np.array(uniform), targets[list(places)]))
        for targets in batches(2)
        for places in combinations(range(4), 2)
        for uniform in product(range(ITEMS), repeat=2)
    ]
    assert np.mean(found) == pytest.approx(WHOLE.sum(), rel=1e-12)
    assert np.std(found) > 0.1


@pytest.mark.parametrize("sampling", ["uniform", "in-batch", "mixed"])
def test_what_is_drawn_is_what_is_expected(sampling):
    """Within four standard errors; without the correction it is far outside."""
    shared = SharedNegatives(FREQUENCIES, sampling, 2)
    generator = np.random.default_rng(0)
    samples = []
    for step in range(4000):
        users = generator.permutation(len(USERS))[:2]
        samples.append(shared.sample(0, 1, step, *of(USERS[users].ravel())))
    corrected = np.array([estimate(sample) for sample in samples])
    plain = np.array([WHOLE[sample.items].sum() * ITEMS / 2 for sample in samples])
    expected = WHOLE[: 4 if sampling == "in-batch" else 5].sum()

    def deviation(found):
        return abs(found.mean() - expected) / (found.std() / np.sqrt(len(found)))

    assert deviation(corrected) < 4
    if sampling != "uniform":  # there the correction is a constant
        assert deviation(plain) > 8


@pytest.mark.parametrize("sampling", ["uniform", "in-batch", "mixed"])
def test_a_sample_follows_from_seed_epoch_and_step(sampling):
    shared = SharedNegatives(np.arange(1, 101), sampling, 20)
    targets = np.arange(60)
    first = shared.sample(0, 1, 2, *of(targets))
    again = SharedNegatives(np.arange(1, 101), sampling, 20).sample(0, 1, 2, *of(targets))
    assert np.array_equal(first.items, again.items)
    assert np.array_equal(first.log_weights, again.log_weights)
    assert np.all(np.diff(first.items) > 0)
    for other in ((1, 1, 2), (0, 0, 2), (0, 1, 3)):
        assert not np.array_equal(first.items, shared.sample(*other, *of(targets)).items)


def test_of_a_small_batch_all_targets_are_taken():
    found = SharedNegatives(FREQUENCIES, "in-batch", 100).sample(0, 0, 0, *of(USERS[:2].ravel()))
    assert found.items.tolist() == [0, 1]
    shares = FREQUENCIES / FREQUENCIES.sum()
    assert found.log_weights == pytest.approx(np.log([1, 3] / (4 * shares[:2])))


def test_masked_pairs_are_those_of_a_loop():
    generator = np.random.default_rng(1)
    for _ in range(20):
        sampled = np.unique(generator.integers(0, 30, 12))
        sizes = generator.integers(0, 4, 5)
        offsets = np.concatenate([[0], np.cumsum(sizes)])
        owner, items = generator.integers(0, 5, 25), generator.integers(0, 30, 25)
        expected = {
            (target, column)
            for user, item in zip(owner, items, strict=True)
            for target in range(offsets[user], offsets[user + 1])
            for column in np.flatnonzero(sampled == item)
        }
        found = masked_pairs(sampled, items, owner, offsets)
        assert np.all(np.diff(found) >= 0)
        assert {divmod(int(pair), len(sampled)) for pair in found} == expected
