"""A built-in knowledge graph made from a seed, with relations that follow from each other.

``families``: people of several generations in villages. Parents, homes and trades are random; the
other relations follow from them, so a model that learns the rules can predict held-out triples:

- ``child_of`` is the inverse of ``parent_of``; ``sibling_of`` and ``married_to`` are symmetric;
- ``grandparent_of`` composes ``parent_of`` with itself; ``uncle_or_aunt_of`` composes two more;
- ``lives_in`` is inherited; ``works_as`` mostly is; ``located_in`` puts villages into counties,
  ``from_county`` composes ``lives_in`` with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.data.samples.base import SampleSet, permutation, triple_table, uniform
from hasten.errors import DataError

_FAMILIES, _CHILDREN = 48, 3
_VILLAGES, _COUNTIES = 12, 4
TRADES = ("baker", "weaver", "smith", "miller", "teacher", "doctor", "farmer", "joiner")
_SYLLABLES = ("an", "be", "cor", "del", "eli", "fa", "gre", "hol", "is", "jon", "kar", "lu")
#: how often a child takes up the trade of the first parent
_SAME_TRADE = 0.75


def make_families(families: int | None = None, seed: int = 0) -> SampleSet:
    """The sample ``families``: a table of head, relation and tail, and the names of entities.

    families: founding couples; each has three children, who marry into other families.

    Raises:
        DataError: fewer than four families.
    """
    count = _FAMILIES if families is None else families
    if count < 4:
        raise DataError(f"{count} families: at least 4 are needed")
    triples = sorted(set(_triples(count, seed)))
    shuffled = permutation(len(triples), 20, seed)
    table = triple_table([triples[i] for i in shuffled])
    ids = sorted({entity for head, _, tail in triples for entity in (head, tail)})
    return SampleSet(table, {entity: _name(entity) for entity in ids})


def _triples(families: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Every triple that is drawn or follows."""
    draws = iter(uniform(families * 64, 21, seed))
    counties = [f"county-{i}" for i in range(_COUNTIES)]
    villages = [f"village-{i}" for i in range(_VILLAGES)]
    for i, village in enumerate(villages):
        yield village, "located_in", counties[i % _COUNTIES]
    people = 0
    homes: dict[str, int] = {}
    trades: dict[str, int] = {}
    parents: dict[str, tuple[str, str]] = {}

    def born(couple: tuple[str, str] | None) -> str:
        nonlocal people
        person = f"person-{people:04d}"
        people += 1
        if couple is None:
            homes[person] = int(next(draws) * _VILLAGES)
            trades[person] = int(next(draws) * len(TRADES))
        else:
            parents[person] = couple
            homes[person] = homes[couple[0]]
            same = next(draws) < _SAME_TRADE
            trades[person] = trades[couple[0]] if same else int(next(draws) * len(TRADES))
        return person

    couples = [(born(None), born(None)) for _ in range(families)]
    generations = [couples]
    children = [[born(couple) for _ in range(_CHILDREN)] for couple in couples]
    # the first child of a family marries the second of the next
    second = [
        (children[i][0], children[(i + 1) % families][1]) for i in range(families) if families > 1
    ]
    generations.append(second)
    for couple in second:
        for _ in range(_CHILDREN - 1):
            born(couple)
    yield from _following(generations, parents)
    for person in sorted(homes):
        yield person, "lives_in", villages[homes[person]]
        yield person, "from_county", counties[homes[person] % _COUNTIES]
        yield person, "works_as", TRADES[trades[person]]


def _following(
    generations: list[list[tuple[str, str]]], parents: dict[str, tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """What follows from couples and parents."""
    for first, second in (couple for generation in generations for couple in generation):
        yield first, "married_to", second
        yield second, "married_to", first
    siblings: dict[tuple[str, str], list[str]] = {}
    for child, couple in parents.items():
        siblings.setdefault(couple, []).append(child)
        for parent in couple:
            yield parent, "parent_of", child
            yield child, "child_of", parent
            for grandparent in parents.get(parent, ()):
                yield grandparent, "grandparent_of", child
    for brood in siblings.values():
        for one in brood:
            for other in brood:
                if one != other:
                    yield one, "sibling_of", other
                    for child, couple in parents.items():
                        if one in couple:
                            yield other, "uncle_or_aunt_of", child


def _name(entity: str) -> str:
    """A name for people, a readable word for the rest."""
    kind, _, number = entity.partition("-")
    if kind != "person":
        return entity.replace("-", " ").capitalize()
    digits = int(number)
    size = len(_SYLLABLES)
    parts = [_SYLLABLES[digits % size], _SYLLABLES[digits // size % size]]
    rest = digits // size**2
    return "".join(parts).capitalize() + (f" {rest + 1}" if rest else "")
