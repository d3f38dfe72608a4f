"""How a tabular reader recognizes a file: by the names in its header, or by column positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hasten.data.readers.cells import Layout
from hasten.data.readers.interface import Claim


def unused_note(names: Sequence[str], roles: Mapping[str, int]) -> tuple[str, ...]:
    """The note about the columns that have no role, if there are any."""
    unused = [name for i, name in enumerate(names) if i not in roles.values()]
    return (f"columns not used: {', '.join(unused)}",) if unused else ()


def header_claim(
    reason: str | None,
    names: Sequence[str],
    roles: dict[str, int],
    text: tuple[str, Sequence[str], int] | None = None,
    notes: tuple[str, ...] = (),
) -> Claim:
    """A claim by the names of the columns. reason: None to list the columns.

    text: of separated text, the separator, the cells of the header and the number of its line.
    """
    layout = None
    if text is not None:
        separator, cells, line = text
        layout = Layout(separator, len(cells), roles, tuple(cells), line)
    columns = {role: names[i] for role, i in roles.items()}
    details = {"columns": columns, "header": list(names)}
    return Claim(
        reason=reason or f"a header with the columns {', '.join(columns.values())}",
        details=details if layout is None else {"separator": layout.separator, **details},
        notes=(*notes, *unused_note(names, roles)),
        layout=layout,
    )


def position_claim(
    separator: str, width: int, roles: dict[str, int], notes: tuple[str, ...] = ()
) -> Claim:
    """A claim for lines without a header."""
    return Claim(
        reason=f"{width} cells a line and no header",
        details={
            "separator": separator,
            "columns": {role: str(position + 1) for role, position in roles.items()},
        },
        notes=notes,
        layout=Layout(separator, width, roles),
    )


def order_note(roles: Mapping[str, int]) -> str:
    """The note about the order that the columns are assumed to have."""
    return f"no header: columns taken as {' '.join(sorted(roles, key=lambda role: roles[role]))}"
