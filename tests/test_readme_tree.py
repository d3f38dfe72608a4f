"""The annotated tree of the README is that of the source."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "hasten"
#: names of files and folders at the beginning of a line; what follows is the annotation
_NAME = re.compile(r"[A-Za-z0-9_./-]*(?:/|\.py|\.typed)(?=\s|$)")


def listed() -> set[Path]:
    """Every path of the tree, by its indentation."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    tree = re.search(r"## The tree\n+```\n(.*?)```", readme, re.DOTALL)
    assert tree is not None, "README.md has no tree"
    folders: list[tuple[int, Path]] = []
    found = set()
    for line in tree[1].splitlines():
        depth = len(line) - len(line.lstrip())
        while folders and folders[-1][0] >= depth:
            folders.pop()
        above = folders[-1][1] if folders else ROOT
        rest = line.lstrip()
        assert _NAME.match(rest), f"no file or folder in the line: {line}"
        while name := _NAME.match(rest):
            path = above / name[0]
            found.add(path)
            if name[0].endswith("/"):
                folders.append((depth, path))
            rest = rest[name.end() :].lstrip()
    return found


def test_everything_listed_is_there():
    absent = [str(path.relative_to(ROOT)) for path in sorted(listed()) if not path.exists()]
    assert not absent, f"the tree in README.md lists what does not exist: {absent}"


def test_every_room_and_top_level_module_is_listed():
    there = {
        path
        for path in SOURCE.iterdir()
        if path.suffix in (".py", ".typed") or (path / "__init__.py").is_file()
    }
    missing = [str(path.relative_to(ROOT)) for path in sorted(there - listed())]
    assert not missing, f"the tree in README.md lacks: {missing}"


def test_every_module_is_listed():
    there = {path for path in SOURCE.rglob("*.py") if path.name != "__init__.py"}
    missing = [str(path.relative_to(ROOT)) for path in sorted(there - listed())]
    assert not missing, f"the tree in README.md lacks: {missing}"
