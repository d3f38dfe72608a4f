"""Write the annotated source trees of README.md and docs/source-tree.md from the docstrings.

python -m scripts.annotated_tree [--check]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "hasten"
#: page -> whether its tree lists the modules of packages too
PAGES = {ROOT / "README.md": False, ROOT / "docs" / "source-tree.md": True}
_TREE = re.compile(r"(<!-- tree: written by make docs -->\n).*?(<!-- end of tree -->\n)", re.DOTALL)


def summary(path: Path) -> str:
    """The first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n", 1)[0].removesuffix(".")


def lines(folder: Path, modules: bool, depth: int = 1) -> Iterator[tuple[str, str]]:
    """Name, indented, and annotation of what a package holds: packages first, then modules."""
    indent = "  " * depth
    for path in sorted(folder.iterdir()):
        if (path / "__init__.py").is_file():
            yield f"{indent}{path.name}/", summary(path / "__init__.py")
            yield from lines(path, modules, depth + 1)
    if modules or depth == 1:
        for path in sorted(folder.glob("*.py")):
            if path.name != "__init__.py":
                yield f"{indent}{path.name}", summary(path)


def tree(modules: bool) -> str:
    """The tree as a block of text."""
    found = [("src/hasten/", summary(SOURCE / "__init__.py")), *lines(SOURCE, modules)]
    width = max(len(name) for name, _ in found) + 2
    return "```\n" + "".join(f"{name:<{width}}{text}\n" for name, text in found) + "```\n"


def main(arguments: Sequence[str]) -> int:
    """Write the trees; with --check only say which page is not current, and exit 1 then."""
    stale = []
    for page, modules in PAGES.items():
        old = page.read_text(encoding="utf-8")
        place = _TREE.search(old)
        if place is None:
            raise ValueError(f"{page} has no place for the tree")
        new = old[: place.end(1)] + tree(modules) + old[place.start(2) :]
        if new != old:
            stale.append(page.name)
            if "--check" not in arguments:
                page.write_text(new, encoding="utf-8")
    if stale and "--check" in arguments:
        sys.stderr.write(f"not current, run make docs: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
