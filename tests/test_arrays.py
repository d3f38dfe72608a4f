"""Fast orders, searches and counts of whole numbers against their plain forms."""

import numpy as np
import pytest

from hasten.arrays import (
    among,
    first_places,
    matches,
    maybe_among,
    order_by,
    packed,
    repeats,
)
from hasten.data.tables import Triples
from hasten.objectives.triple_queries import both_directions, known_answers
from hasten.scoring import TripleQueries


@pytest.fixture
def random():
    return np.random.default_rng(0)


def test_matches_are_all_pairs_of_equal_keys_in_the_order_of_the_wanted(random):
    keys, wanted = np.sort(random.integers(0, 30, 50)), random.integers(-2, 35, 40)
    expected = [(i, j) for i, w in enumerate(wanted) for j, key in enumerate(keys) if w == key]
    assert list(zip(*matches(wanted, keys), strict=True)) == expected
    assert [len(found) for found in matches(wanted, keys[:0])] == [0, 0]


@pytest.mark.parametrize("scale", [1, 2**40])  # numbers that fit into 64 bits together, or not
def test_order_and_repeats_are_those_of_the_columns(random, scale):
    columns = [random.integers(0, 5, 200) * scale for _ in range(3)]
    assert (packed(*columns) is None) == (scale > 1)
    np.testing.assert_array_equal(order_by(*columns), np.lexsort(columns[::-1]))
    seen, expected = set(), []
    for row in zip(*columns, strict=True):
        expected.append(row in seen)
        seen.add(row)
    np.testing.assert_array_equal(repeats(*columns), expected)


@pytest.mark.parametrize("column", [np.array([0.5, 0.25]), np.array([3, -1])])
def test_fractions_and_negative_numbers_are_not_packed(column):
    assert packed(column, column) is None
    np.testing.assert_array_equal(order_by(column, column), np.argsort(column))


def test_first_places_are_those_of_unique(random):
    values = random.integers(0, 20, 100)
    found, first = np.unique(values, return_index=True)
    places = first_places(values, 25)
    np.testing.assert_array_equal(places[found], first)
    assert (np.delete(places, found) == 100).all()


def test_no_wanted_value_is_missed_and_few_others_are_kept(random):
    values = random.integers(0, 2**62, 10_000)
    wanted = values[::50]
    kept = maybe_among(values, wanted)
    assert kept[::50].all()
    assert kept.mean() < 0.15


def test_known_answers_are_those_of_every_triple(random):
    triples = Triples(*(random.integers(0, size, 300) for size in (20, 4, 20)))
    queries = TripleQueries(random.integers(0, 20, 60), random.integers(0, 8, 60))
    first, second = np.arange(100), np.arange(100, 300)
    found = known_answers([triples.take(first), triples.take(second)], 4, queries, 20)
    stated = set(zip(*(column.tolist() for column in both_directions(triples, 4)), strict=True))
    for row, query in enumerate(zip(queries.entity, queries.relation, strict=True)):
        assert found.row(row).tolist() == [a for a in range(20) if (*query, a) in stated]


def test_among_is_membership(random):
    keys, wanted = np.sort(random.integers(0, 60, 30)), random.integers(-5, 70, 100)
    np.testing.assert_array_equal(among(wanted, keys), np.isin(wanted, keys))
    assert not among(wanted, keys[:0]).any()
