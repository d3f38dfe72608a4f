"""Orders of examples: permutations laid end to end, the same whoever asks for which places."""

import torch

from hasten.objectives.batch_order import Latest, Turns
from hasten.ops.random import Stream, key, permutation


def test_the_latest_value_is_made_once_for_its_name() -> None:
    made: list[str] = []

    def value(name: str) -> str:
        made.append(name)
        return name.upper()

    kept: Latest[str] = Latest()
    asked = ["a", "a", "b", "b", "a"]
    assert [kept.of(name, lambda name=name: value(name)) for name in asked] == list("AABBA")
    assert made == ["a", "b", "a"]


def test_none_is_a_value_like_others() -> None:
    made: list[None] = []
    kept: Latest[None] = Latest()
    for _ in range(2):
        kept.of("a", lambda: made.append(None))
    assert len(made) == 1


def test_turns_are_permutations_end_to_end() -> None:
    places = torch.arange(23)
    found = Turns(7, 1).at(3, 5, places)
    turns = [permutation(7, key(3, Stream.PERMUTATION, 5, number, 1)) for number in range(4)]
    assert torch.equal(found, torch.cat(turns)[:23])


def test_any_share_of_the_places_gets_the_same() -> None:
    whole, parts = Turns(7), Turns(7)
    expected = whole.at(0, 1, torch.arange(40))
    places = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    for share in places.split(9):
        assert torch.equal(parts.at(0, 1, share), expected[share])


def test_seed_epoch_and_name_each_give_another_order() -> None:
    places = torch.arange(50)
    orders = [
        tuple(turns.at(seed, epoch, places).tolist())
        for turns in (Turns(50), Turns(50, 1))
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    assert len(set(orders)) == len(orders)
