"""Hooks of MkDocs: the pages of docs/ as they are, and generated reference pages.

Pages link to files of the repository outside docs/, such as ``../bench/results/...``. The site has
a page for each such file, under ``repository/``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from hasten.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "hasten"
#: the packages and modules of the API reference
PUBLIC = (
    "config", "data", "errors", "evaluation", "inference", "integrations", "models", "objectives",
    "ops", "registry", "scoring", "testing",
)  # fmt: skip
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|[#/])([^)\s#]+)(?=[)#])")
_FENCE = re.compile(r"(^```[^\n]*\n.*?^```$)", re.DOTALL | re.MULTILINE)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Apply a function to the parts of a page that are not blocks of code."""
    parts = _FENCE.split(text)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


def address(target: Path) -> str:
    """The address in the site, as MkDocs counts it, of a file or folder of the repository."""
    if target.is_dir():
        return address(target / "README.md")
    if target.is_relative_to(DOCS):
        return target.relative_to(DOCS).as_posix()
    name = f"repository/{target.relative_to(ROOT).as_posix()}"
    return name if target.suffix == ".md" else f"{name}.md"


def origin(uri: str) -> Path:
    """The file of the repository behind a page of the site."""
    inside = uri.removeprefix("repository/")
    return (DOCS if inside == uri else ROOT) / inside


def targets(path: Path) -> Iterator[Path]:
    """The files and folders of the repository that a page links to."""
    text = _FENCE.sub("", path.read_text(encoding="utf-8"))
    for name in _LINK.findall(text):
        found = (path.parent / name).resolve()
        if found.exists() and found.is_relative_to(ROOT):
            yield found


def content(target: Path) -> str:
    """The page of a file or folder that is no page of docs/."""
    if target.is_dir():
        pages = sorted(target.glob("*.md"))
        titles = (page.read_text(encoding="utf-8").split("\n", 1)[0].lstrip("# ") for page in pages)
        listing = "".join(
            f"- [{title}]({page.name})\n" for title, page in zip(titles, pages, strict=True)
        )
        return f"# {target.name.capitalize()}\n\n{listing}"
    text = target.read_text(encoding="utf-8")
    if target.suffix != ".md":
        name = target.relative_to(ROOT).as_posix()
        text = f"# {name}\n\n````{target.suffix[1:]}\n{text}\n````\n"
    return NOT_SEARCHED + text


def linked() -> dict[str, str]:
    """The pages of the site for what docs/ links to and does not hold, by address."""
    todo = sorted(DOCS.rglob("*.md"))
    known, pages = {address(path) for path in todo}, {}
    while todo:
        for target in targets(todo.pop()):
            name = address(target)
            if name in known or (target.is_relative_to(DOCS) and target.is_file()):
                continue
            known.add(name)
            pages[name] = content(target)
            if target.suffix == ".md":
                todo.append(target)
    return pages


def api_pages() -> dict[str, str]:
    """The pages of the Python API: the public names, then a page for each package."""
    pages = {
        "api/README.md": "# Python API reference\n\nThe names that `import hasten` gives. "
        "[Python API](../python.md) is the guide.\n\n::: hasten\n    options:\n"
        "      show_root_heading: false\n      show_root_toc_entry: false\n"
    }
    for name in PUBLIC:
        path = SOURCE / name
        modules = sorted(path.rglob("*.py")) if path.is_dir() else [SOURCE / f"{name}.py"]
        names = (".".join(m.relative_to(SOURCE.parent).with_suffix("").parts) for m in modules)
        blocks = (f"::: {each}\n\n" for each in names if "._" not in each)
        pages[f"api/{name}.md"] = f"# hasten.{name}\n\n" + "".join(blocks)
    return pages


def commands(command: Any, name: str) -> Iterator[str]:
    """The sections of a command and of its subcommands."""
    context = typer.Context(command, info_name=name)
    if hasattr(command, "commands"):
        for each in command.list_commands(context):
            yield from commands(command.get_command(context, each), f"{name} {each}")
        return
    usage = " ".join(command.collect_usage_pieces(context))
    about = (command.help or "").replace("\n", "  \n")  # the lines as in the terminal
    yield f"## {name}\n\n```\n{name} {usage}\n```\n\n{about}\n\n"
    rows = [record for p in command.get_params(context) if (record := p.get_help_record(context))]
    if rows:
        yield "| option | meaning |\n| --- | --- |\n"
        yield from (f"| `{cell(names)}` | {plain(cell(text))} |\n" for names, text in rows)
        yield "\n"


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def plain(text: str) -> str:
    """Text without meaning for Markdown."""
    return re.sub(r"([<*_\[`])", r"\\\1", text)


def command_page() -> str:
    """Every command with its options, from the command line itself."""
    head = "# Options of every command\n\n[Command line](command-line.md) describes output, exit "
    head += "codes and JSON. This page has what `--help` prints.\n\n"
    return head + "".join(commands(typer.main.get_command(app), "hasten"))


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {**linked(), **api_pages(), "commands.md": command_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Point links at the site, and write what Python-Markdown reads otherwise than code hosts."""
    here = origin(page.file.src_uri)
    folder = os.path.dirname(page.file.src_uri)  # noqa: PTH120 - of an address

    def link(found: re.Match[str]) -> str:
        target = (here.parent / found[1]).resolve()
        if not target.exists() or not target.is_relative_to(ROOT):
            return found[1]  # a page of the site, or broken: MkDocs says so
        return Path(os.path.relpath(address(target), folder or ".")).as_posix()

    def change(text: str) -> str:
        text = re.sub(r"^<!-- .*? -->$", "", text, flags=re.MULTILINE)
        text = re.sub(r"^  (?=[-*] )", "    ", text, flags=re.MULTILINE)  # nested lists
        return _LINK.sub(link, text)

    return outside_code(markdown, change)
