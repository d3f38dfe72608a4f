"""Column roles: which column of a file holds the user, the item, the head, the relation, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hasten.errors import ConfigurationError, DataError, did_you_mean

ROLES = ("user", "item", "rating", "time", "part")
TRIPLE_ROLES = ("head", "relation", "tail", "part")

#: accepted column names, compared without case, blanks, underscores and hyphens
SYNONYMS: Mapping[str, frozenset[str]] = {
    role: frozenset(words.split())
    for role, words in {
        "user": "user userid uid u useridx userindex reviewerid customer customerid visitor "
        "visitorid",
        "item": "item itemid iid i itemidx itemindex movie movieid product productid asin "
        "parentasin book bookid isbn song songid track trackid artist artistid business businessid "
        "article articleid",
        "rating": "rating ratings score stars overall rate",
        "time": "time timestamp ts t date datetime unixtime unixreviewtime eventtime createdat",
        "part": "part split xlabel",
        "head": "head headid h subject subj s source src from start startid",
        "relation": "relation relationid rel r predicate pred p edge edgetype reltype relationtype",
        "tail": "tail tailid t object obj o target dst destination to end endid",
    }.items()
}
_NEEDED = {ROLES: ("user", "item"), TRIPLE_ROLES: ("head", "relation", "tail")}


def plain(name: str) -> str:
    """A column name without case, blanks, underscores, hyphens and a BOM."""
    return name.strip().lower().translate(str.maketrans("", "", " _-\ufeff"))


def find_roles(
    source: str,
    names: Sequence[str],
    overrides: Mapping[str, str],
    among: tuple[str, ...] = ROLES,
) -> dict[str, int] | str:
    """Role -> position of its column, or a text that says which role has no column.

    overrides: ``data.columns``: role -> name in the file; among: ROLES or TRIPLE_ROLES.

    Raises:
        DataError: an override names no column, or two columns would fit one role.
    """
    known = [name.strip() for name in names]
    _check_overrides(overrides, among)
    roles: dict[str, int] = {}
    for role in among:
        if role in overrides:
            wanted = overrides[role].strip()
            if known.count(wanted) != 1:
                found = "twice" if wanted in known else "no"
                raise DataError(
                    f"{source}: data.columns.{role}={wanted!r}, but the header has {found} such "
                    f"column{did_you_mean(wanted, known)} (it has {', '.join(known)})"
                )
            roles[role] = known.index(wanted)
            continue
        fitting = [
            i
            for i, name in enumerate(known)
            if plain(name) in SYNONYMS[role] and name not in overrides.values()
        ]
        if len(fitting) > 1 and role != "part":
            both = " or ".join(repr(known[i]) for i in fitting)
            raise DataError(
                f"{source}: the {role} could be column {both}; "
                f"choose with --set data.columns.{role}=NAME"
            )
        if fitting:
            roles[role] = fitting[0]
    missing = [role for role in _NEEDED[among] if role not in roles]
    if missing:
        return (
            f"no column is recognized as the {' and the '.join(missing)} among: "
            f"{', '.join(known)} (--set data.columns.{missing[0]}=NAME)"
        )
    return roles


def check_distinct(source: str, header: Sequence[str]) -> None:
    """Refuse a header that names a column twice."""
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DataError(f"{source}: the header names {min(repeated)!r} twice")


def positional_roles(
    overrides: Mapping[str, str], width: int, among: tuple[str, ...] = ROLES
) -> dict[str, int]:
    """Roles from ``data.columns`` of a file without header: role -> number of column, from 1."""
    _check_overrides(overrides, among)
    roles = {}
    for role, text in overrides.items():
        if not text.strip().isdecimal() or not 1 <= int(text) <= width:
            raise DataError(
                f"data.columns.{role}={text!r}: the file has no header, so give the number of "
                f"the column, 1 to {width}"
            )
        roles[role] = int(text) - 1
    if len(set(roles.values())) < len(roles):
        raise DataError("data.columns names one column twice")
    if missing := [role for role in _NEEDED[among] if role not in roles]:
        raise DataError(f"data.columns gives no number for the {' and the '.join(missing)}")
    return roles


def _check_overrides(overrides: Mapping[str, str], among: tuple[str, ...]) -> None:
    for role in overrides:
        if role not in among:
            raise ConfigurationError(
                f"data.columns.{role}: no such column{did_you_mean(role, among)} "
                f"(known: {', '.join(among)})"
            )
