"""The code that the timed part of a measurement ran, and whether it has changed since."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.machine import ROOT

#: folder whose ``sitecustomize`` notes what a process calls
TRACE = Path(__file__).resolve().parent / "trace"
_MEASURED = ("src/hasten/", "bench/")


def called_functions(folder: Path) -> set[str]:
    """The functions that the processes of a side noted, as ``file:function``."""
    found = {line for note in folder.glob("*.txt") for line in note.read_text().splitlines()}
    return {line for line in found if line.startswith(_MEASURED)}


def describe_sources(called: Iterable[str], root: Path = ROOT) -> dict[str, Any]:
    """The functions by file and a digest of their code, for the record of a result.

    A function inside a function counts as the outer one.
    """
    functions: dict[str, set[str]] = {}
    for file, _, name in (line.partition(":") for line in called):
        if not name.startswith("<"):
            functions.setdefault(file, set()).add(name.partition(".<")[0])
    ordered = {file: sorted(functions[file]) for file in sorted(functions)}
    return {"functions": ordered, "sha256": code_digest(ordered, root)}


def code_digest(functions: Mapping[str, Iterable[str]], root: Path = ROOT) -> str:
    """A digest of the code of these functions and of what they read of their modules and classes.

    Comments and docstrings do not count.
    """
    digest = hashlib.sha256()
    for file in sorted(functions):
        path = root / file
        digest.update(f"{file}\n".encode())
        code = _code(path.read_text(), sorted(functions[file])) if path.exists() else "absent"
        digest.update(code.encode())
    return digest.hexdigest()


def is_stale(result: Mapping[str, Any], root: Path = ROOT) -> bool:
    """Whether the code that a result measured has changed since, or was not recorded."""
    sources = result.get("sources") or {}
    if "functions" not in sources:
        return True
    return bool(sources["sha256"] != code_digest(sources["functions"], root))


def _code(text: str, names: Iterable[str]) -> str:
    """The named functions, the attributes of their classes and what they read of their module."""
    tree, lines = ast.parse(text), text.splitlines()
    definitions, bindings = _definitions(tree.body), _bindings(tree.body)
    parts: list[str] = []
    waiting: list[ast.AST] = []
    for name in names:
        parts.append(name if name in definitions else f"{name} is absent")
        waiting += definitions.get(name, [])
    seen = set[int]()
    while waiting:
        node = waiting.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        parts.append(ast.unparse(node) if isinstance(node, ast.alias) else _lines(node, lines))
        for name in _names(node):
            waiting += bindings.get(name, [])
    return "\n".join(parts)


def _names(node: ast.AST) -> Iterator[str]:
    """The names that a statement reads; of a function without its annotations."""
    parts: list[ast.AST | None] = [node]
    if isinstance(node, ast.FunctionDef):
        parts = [*node.body, *node.decorator_list, *node.args.defaults, *node.args.kw_defaults]
    for part in parts:
        for inner in ast.walk(part) if part is not None else ():
            if isinstance(inner, ast.Name):
                yield inner.id


def _definitions(body: Iterable[ast.stmt], prefix: str = "") -> dict[str, list[ast.AST]]:
    """By the name of a function: its nodes, after the attributes of the classes around it."""
    found: dict[str, list[ast.AST]] = {}
    for node in _statements(body):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(f"{prefix}{node.name}", []).append(node)
        elif isinstance(node, ast.ClassDef):
            attributes = [n for n in node.body if isinstance(n, ast.Assign | ast.AnnAssign)]
            for name, nodes in _definitions(node.body, f"{prefix}{node.name}.").items():
                found.setdefault(name, []).extend([*attributes, *nodes])
    return found


def _bindings(body: Iterable[ast.stmt]) -> dict[str, list[ast.AST]]:
    """By name: what binds it in the module, an assignment or an import."""
    found: dict[str, list[ast.AST]] = {}
    for node in _statements(body):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                origin = ast.alias(f"{module}.{alias.name}".strip("."), alias.asname)
                found.setdefault(alias.asname or alias.name, []).append(origin)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                for inner in ast.walk(target):
                    if isinstance(inner, ast.Name):
                        found.setdefault(inner.id, []).append(node)
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or a class, those under a condition too."""
    for node in body:
        if isinstance(node, ast.If | ast.Try):
            handlers = [handler.body for handler in getattr(node, "handlers", [])]
            for part in (node.body, *handlers, node.orelse, getattr(node, "finalbody", [])):
                yield from _statements(part)
        else:
            yield node


def _lines(node: ast.AST, lines: list[str]) -> str:
    """The lines of a statement that are neither comments, a docstring nor blank."""
    first = min(getattr(n, "lineno", 10**9) for n in ast.walk(node))
    last: int = getattr(node, "end_lineno", first)
    kept = {number: lines[number - 1] for number in range(first, last + 1)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef) and ast.get_docstring(inner, clean=False) is not None:
            text = inner.body[0]
            for number in range(text.lineno, (text.end_lineno or text.lineno) + 1):
                kept.pop(number, None)
    found = (line for _, line in sorted(kept.items()))
    return "\n".join(ln for ln in found if ln.strip() and not ln.lstrip().startswith("#"))
