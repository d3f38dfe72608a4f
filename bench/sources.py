"""The source files that a measurement loaded, and whether their code has changed since."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench.machine import ROOT

#: folder whose ``sitecustomize`` notes what a process loads
TRACE = Path(__file__).resolve().parent / "trace"
_MEASURED = ("src/hasten/", "bench/")
#: what runs before the first timed step or after the last, and in no evaluation
_NOT_MEASURED = (
    "bench/trace/",
    "bench/entries/",
    "bench/__init__.py",
    *(
        f"src/hasten/{name}"
        for name in (
            *("__main__.py", "console.py", "errors.py", "new_run.py", "registry.py"),
            *("cli/", "config_loading/", "recipes/"),
            *("data/readers/", "data/samples/", "data/sources/"),
        )
    ),
)


def loaded_files(folder: Path) -> list[str]:
    """The files that the processes of a side noted, without those that nothing timed uses."""
    found = {line for note in folder.glob("*.txt") for line in note.read_text().splitlines()}
    return sorted(f for f in found if f.startswith(_MEASURED) and not f.startswith(_NOT_MEASURED))


def describe_sources(files: Iterable[str], root: Path = ROOT) -> dict[str, Any]:
    """The files and a digest of their code, for the record of a result."""
    names = sorted(set(files))
    return {"files": names, "sha256": code_digest(names, root)}


def code_digest(files: Iterable[str], root: Path = ROOT) -> str:
    """A digest of the code of these files, without comments and docstrings."""
    digest = hashlib.sha256()
    for name in sorted(files):
        path = root / name
        digest.update(f"{name}\n".encode())
        digest.update(_code(path.read_text()).encode() if path.exists() else b"absent")
    return digest.hexdigest()


def is_stale(result: Mapping[str, Any], root: Path = ROOT) -> bool:
    """Whether the code that a result measured has changed since, or was not recorded."""
    sources = result.get("sources")
    return sources is None or code_digest(sources["files"], root) != sources["sha256"]


def _code(text: str) -> str:
    """The lines of a Python file that are neither comments, docstrings nor blank."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(
            node
        ):
            first = node.body[0]
            skipped.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    kept = (line for number, line in lines if number not in skipped)
    return "\n".join(line for line in kept if line.strip() and not line.lstrip().startswith("#"))
