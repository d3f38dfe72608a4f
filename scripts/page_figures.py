"""The figures in tables and sentences of a Markdown page, and the records linked beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from posixpath import normpath

#: first headers of tables that hold no measurement
_NO_FIGURES = re.compile(
    r"\b(key|default|option|flag|meaning|what it does|what it is|purpose|command|file|column|field|"
    r"value for|name|page|symbol|module|decision|format|part of)\b", re.IGNORECASE,
)  # fmt: skip
#: headers of columns that hold settings, targets, or the figures of a paper
_SETTINGS = re.compile(
    r"(seeds?|learning rate|lr|batch size|epochs|settings|targets?|lines|paper)", re.IGNORECASE
)
_LINK = re.compile(r"\]\(([^)]+)\)")
_NUMBER = re.compile(
    r"(?<![\w.`/-])[\u2212-]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:e-?\d+)?(?![\w`])"
)
_UNIT = (
    r"(?:[mnuµ]?s|min|h|(?:micro|milli)?seconds?|minutes?|hours?|[kKMG]i?B|%|times|[GT]FLOP(?:/s)?)"
)
#: figures of a sentence: with decimals, or with a unit
_MEASURED = re.compile(rf"(?<![\w.`/-])(?:\d[\d,]*\.\d+|\.\d{{2,}}|\d[\d,]*(?= ?{_UNIT}(?!\w)))")
_SETTING = r"(?:dropout|betas?|β2\ =|deviation|slope|smoothing)(?:\ of)?\ \(?"
#: numbers that are not measured
_NOT_MEASURED = re.compile(
    rf"""\]\([^)]*\)                                                  # targets of links
    |`(?:--|[a-z_]+\.)[^`]*`\ \([\d.]+(?:\ [A-Za-z]+)?\)              # an option (and its value)
    |`[^`]*` | \*\*                                                   # code
    |\d{{4}}-\d\d-\d\d | \d+\.\d+\.[\d.]*\d                           # dates and versions
    |(?:Python|PyTorch|torch|dgl|section|arXiv|arXiv:)\ ?\d[\d.]*
    |(?<![\w.])[A-Za-z]\S*\d\S*                                       # names with digits
    |\d+\ %\ interval | [Tt]argets?:\ .*?(?=[;)]|\.\ |\.?$)
    |{_SETTING}[\d.e-]+(?:(?:,|\ and|,\ and)\ [\d.e-]+)*""",
    re.VERBOSE,
)


@dataclass
class Block:
    """A row of a table or a paragraph, its figures, the records beside it, and its section."""

    page: str
    line: int
    text: str
    figures: list[str] = field(default_factory=list)
    records: list[str] = field(default_factory=list)
    section: list[str] = field(default_factory=list)


def sections(text: str) -> Iterator[tuple[str, int, list[str]]]:
    """Anchor of the heading, number of the first line, and lines, of each section of a page."""
    anchor, first, lines, fenced = "", 1, list[str](), False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            yield anchor, first, lines
            plain = re.sub(r"[^\w\- ]", "", line.lstrip("#").strip().lower())
            anchor, first, lines = plain.replace(" ", "-"), number, []
        lines.append(line)
    yield anchor, first, lines


def blocks(text: str, page: str) -> Iterator[Block]:
    """The rows and paragraphs with figures of a page."""
    for _, first, lines in sections(text):
        found = list(_of_section(lines, first, page))
        records = [each for each in records_of("\n".join(lines), page) if is_record(each)]
        for block in found:
            block.section = lines
            own = records_of(block.text, page)
            alone = own and block.text.startswith("|")
            block.records = own if alone else list(dict.fromkeys([*own, *records]))
            if block.figures:
                yield block


def _of_section(lines: list[str], first: int, page: str) -> Iterator[Block]:
    header: list[str] = []
    paragraph, fenced = Block(page, first, ""), False
    for number, line in enumerate([*lines, ""], first):
        fence, fenced = line.startswith("```"), fenced ^ line.startswith("```")
        plain = not (fence or fenced or line.startswith(("|", "#")))
        if not plain or not line.strip() or re.match(r"\s*(?:[-*]|\d+\.) ", line):
            paragraph.figures = measured(paragraph.text)
            yield paragraph
            paragraph = Block(page, number, "")
        if plain and line.strip():
            paragraph.line = paragraph.line if paragraph.text else number
            paragraph.text += " " + line.strip()
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells(line)
        elif not _NO_FIGURES.search(header[0]) and not set(line) <= set("|-: "):
            yield Block(page, number, line, _of_row(header, cells(line)))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def _of_row(header: list[str], row: list[str]) -> list[str]:
    columns = zip(header[1:], row[1:], strict=False)
    return [f for name, cell in columns if not _SETTINGS.fullmatch(name) for f in numbers(cell)]


def numbers(cell: str) -> list[str]:
    """The figures of a cell: every number where it begins with one, else those of a sentence."""
    plain = re.sub(r"(?<=\d)-(?=[\d.])", " ", _NOT_MEASURED.sub(" ", cell))
    if not re.match(r"\s*\[?[+\u2212-]?[\d.,]+(?:e-?\d+)?(?!-?[A-Za-z\d.])", plain):
        return measured(cell)
    return [found for found in _NUMBER.findall(plain) if re.search(r"\d", found)]


def measured(text: str) -> list[str]:
    """The figures of sentences, without those that an external source is cited for."""
    cited = re.split(r"(?<=[.;:])\s+", text)
    own = " ".join(part for part in cited if not re.search(r"\]\(https?://", part))
    return _MEASURED.findall(_NOT_MEASURED.sub(" ", own))


def is_record(link: str) -> bool:
    """Whether a link of `records_of` leads to a record, not to a section of another page."""
    path, _, anchor = link.partition("#")
    return not anchor or path in {"docs/experiments.md", "docs/lab-log.md"}


def records_of(text: str, page: str) -> list[str]:
    """The records that a text links to, as paths in the repository.

    Files of ``bench/results`` and ``experiments``, sections of ``docs/lab-log.md`` and of
    ``docs/experiments.md``, and sections of other pages, which stand for the records linked there.
    """
    found = []
    for link in _LINK.findall(text):
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        name = normpath(Path(page).parent / target) if target else page
        if name.startswith(("bench/results/", "experiments/")):
            found.append(name)
        elif anchor and name.endswith(".md"):
            found.append(f"{name}#{anchor}")
    return list(dict.fromkeys(found))
