"""Adam's steps without a gradient, all at once, against the steps one after the other."""

from __future__ import annotations

import pytest
import torch

from hasten.training.optimizers.missed_steps import MissedSteps


def walk(weight, first, second, step, rates, betas, eps):
    """Adam as it is written, with zero gradients, in float64."""
    weight, first, second = (t.double().clone() for t in (weight, first, second))
    for number, lr in enumerate(rates, step + 1):
        first, second = first * betas[0], second * betas[1]
        root = (second / (1 - betas[1] ** number)).sqrt()
        weight = weight - lr * (first / (1 - betas[0] ** number)) / (root + eps)
    return weight, first, second


def moments(rows, dtype, seed=0):
    """First moments of all signs, roots of the second from far below ε to far above, and zeros."""
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** (torch.rand(rows, 7, generator=generator, dtype=torch.float64) * 14 - 13)
    first = torch.randn(rows, 7, generator=generator, dtype=torch.float64) * scale * 0.3
    weight = torch.randn(rows, 7, generator=generator, dtype=torch.float64)
    first[0], scale[0] = 0, 0
    return weight.to(dtype), first.to(dtype), scale.square().to(dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("begin", [1, 12, 5000])
@pytest.mark.parametrize("rate", ["one", "warmup", "cosine"])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.99), (0.0, 0.999), (0.9, 0.98)])
def test_many_steps_at_once_are_the_steps_one_after_the_other(dtype, begin, rate, betas):
    eps = 1e-8
    rates = {
        "one": [1e-3] * 250,
        "warmup": [1e-5 * n for n in range(250)],
        "cosine": [1e-3 * (1 - n / 250) ** 2 for n in range(250)],
    }[rate]
    missed = MissedSteps(betas, eps, dtype)
    missed.begin(begin)
    taken = 0
    for lr in rates:
        if not missed.add(lr):
            break
        taken += 1
    # in float64 not all terms are kept where the second moment falls fast
    least = 140 if betas[1] < 0.99 and dtype == torch.float64 else 250
    assert taken >= least or begin < 40
    for length in {1, max(1, taken // 3), taken}:
        again = MissedSteps(betas, eps, dtype)
        again.begin(begin)
        assert all(again.add(lr) for lr in rates[:length])
        start = moments(20, dtype)
        found = [t.clone() for t in start]
        again.catch_up(torch.full((20,), begin), *found)
        expected = walk(*start, begin, rates[:length], betas, eps)
        close = {"rtol": 1e-12, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 3e-6}
        moved, wanted = found[0].double() - start[0].double(), expected[0] - start[0].double()
        if dtype == torch.float64:
            torch.testing.assert_close(moved, wanted, **close)
        else:  # the last bit of the weight
            torch.testing.assert_close(found[0].double(), expected[0], rtol=2e-7, atol=1e-9)
        for mine, other in zip(found[1:], expected[1:], strict=True):
            torch.testing.assert_close(mine.double(), other, rtol=close["rtol"], atol=1e-40)


def test_rows_that_missed_different_steps_in_one_call():
    betas, eps = (0.9, 0.999), 1e-8
    missed = MissedSteps(betas, eps, torch.float64)
    missed.begin(400)
    rates = [1e-3 * (1 + n % 5) for n in range(450)]
    assert all(missed.add(lr) for lr in rates)
    after = torch.tensor([400, 401, 650, 849, 850])
    start = moments(5, torch.float64, seed=3)
    found = [t.clone() for t in start]
    missed.catch_up(after, *found)
    for row, step in enumerate(after.tolist()):
        mine = (t[row : row + 1] for t in start)
        expected = walk(*mine, step, rates[step - 400 :], betas, eps)
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got[row : row + 1], wanted, rtol=1e-12, atol=1e-14)


def test_two_halves_are_the_whole_and_the_numbers_go_through_a_file():
    missed = MissedSteps((0.9, 0.999), 1e-8, torch.float64)
    missed.begin(1000)
    for _ in range(90):
        assert missed.add(2e-3)
    copied = MissedSteps((0.9, 0.999), 1e-8, torch.float64)
    copied.load(missed.last_step, missed.sums())
    for each in (missed, copied):
        for _ in range(60):
            assert each.add(1e-3)
    results = []
    for each in (missed, copied):
        found = [t.clone() for t in moments(6, torch.float64)]
        each.catch_up(torch.arange(1000, 1006), *found)
        results.append(found)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_sums_that_would_not_do_are_refused_and_nothing_is_noted():
    missed = MissedSteps((0.9, 0.999), 1e-8, torch.float32)
    missed.begin(1)
    taken = 0
    while missed.add(1e-3):
        taken += 1
    assert 2 < taken < 20  # the root of the bias correction changes fast in the beginning
    before = missed.sums()
    assert not missed.add(1e-3)
    assert missed.last_step == 1 + taken
    assert torch.equal(before, missed.sums())
    missed.begin(missed.last_step)
    assert missed.add(1e-3)
