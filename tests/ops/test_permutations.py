"""The cache of one value, and permutations of examples that do not depend on the micro-batch."""

import torch

from hasten.ops.permutations import LastValueCache, PermutationSampler
from hasten.ops.random import Stream, key, permutation


def test_the_cache_keeps_the_value_of_the_last_key() -> None:
    made: list[str] = []

    def value(name: str) -> str:
        made.append(name)
        return name.upper()

    cache: LastValueCache[str] = LastValueCache()
    names = ["a", "a", "b", "b", "a"]
    assert [cache.get(name, lambda name=name: value(name)) for name in names] == list("AABBA")
    assert made == ["a", "b", "a"]


def test_the_cache_keeps_none() -> None:
    made: list[None] = []
    cache: LastValueCache[None] = LastValueCache()
    for _ in range(2):
        cache.get("a", lambda: made.append(None))
    assert len(made) == 1


def test_the_sampler_concatenates_permutations() -> None:
    found = PermutationSampler(7, 1).at(3, 5, torch.arange(23))
    rounds = [permutation(7, key(3, Stream.PERMUTATION, 5, number, 1)) for number in range(4)]
    assert torch.equal(found, torch.cat(rounds)[:23])


def test_any_part_of_the_positions_gets_the_same() -> None:
    whole, parts = PermutationSampler(7), PermutationSampler(7)
    expected = whole.at(0, 1, torch.arange(40))
    positions = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for part in positions.split(9):
        assert torch.equal(parts.at(0, 1, part), expected[part])


def test_seed_epoch_and_stream_give_another_order() -> None:
    positions = torch.arange(50)
    orders = [
        tuple(sampler.at(seed, epoch, positions).tolist())
        for sampler in (PermutationSampler(50), PermutationSampler(50, 1))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == len(orders)
