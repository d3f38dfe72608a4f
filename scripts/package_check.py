"""Build the sdist and the wheel, and check what is in them (part of ``make check``).

    python -m scripts.package_check [--out DIR]

The sdist holds the package and the files that its page and its build need. The wheel, built from
the sdist, holds every file of ``src/hasten`` and nothing else. Both have complete metadata and
the version of ``CITATION.cff``. Every problem is printed, and the exit status is then 1.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

ROOT = Path(__file__).parent.parent
#: what the sdist holds beside ``src``; PKG-INFO and setup.cfg are written by the build
_BESIDE_SRC = {
    "CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md",
    "pyproject.toml", "setup.cfg",
}  # fmt: skip
_FIELDS = (
    "Name", "Version", "Summary", "Author", "License-Expression", "License-File", "Keywords",
    "Classifier", "Requires-Python", "Requires-Dist", "Description-Content-Type",
)  # fmt: skip


def build(out: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, of the files that git knows; return their paths.

    A copy is built: old files in ``build`` or ``src/hasten.egg-info`` cannot get into it.
    """
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    with TemporaryDirectory() as copy:
        for name in listed.stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                target = Path(copy, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, target)
        called = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), copy]
        done = subprocess.run(called, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the package cannot be built:\n{done.stdout}{done.stderr}")
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


def _differences(what: str, found: set[str], expected: set[str]) -> list[str]:
    return [f"{what} lacks {name}" for name in sorted(expected - found)] + [
        f"{what} holds {name}, which is not part of the package"
        for name in sorted(found - expected)
    ]


def sdist_problems(names: Iterable[str]) -> list[str]:
    """What is wrong with the files of an sdist, without the folder that holds them all."""
    beside = {name for name in names if not name.startswith(("src/hasten/", "src/hasten.egg-info"))}
    return _differences("the sdist", beside, _BESIDE_SRC)


def wheel_problems(names: Iterable[str], source: Iterable[str]) -> list[str]:
    """What is wrong with the files of a wheel, apart from its metadata."""
    inside = {name for name in names if ".dist-info/" not in name}
    return _differences("the wheel", inside, set(source))


def metadata_problems(metadata: Message, citation: dict[str, object]) -> list[str]:
    """Which fields are missing, and what differs between the metadata and ``CITATION.cff``."""
    problems = [f"the metadata lacks {name}" for name in _FIELDS if not metadata[name]]
    for field, key in (("Version", "version"), ("License-Expression", "license")):
        if metadata[field] != citation.get(key):
            problems.append(f"CITATION.cff: {key} is {citation.get(key)}, not {metadata[field]}")
    return problems


def problems(sdist: Path, wheel: Path) -> list[str]:
    """Everything that is wrong with the two files."""
    with tarfile.open(sdist) as archive:
        names = [entry.name.partition("/")[2] for entry in archive if entry.isfile()]
    source = ROOT / "src"
    files = (path for path in source.joinpath("hasten").rglob("*") if path.is_file())
    expected = {str(path.relative_to(source)) for path in files if path.suffix != ".pyc"}
    with zipfile.ZipFile(wheel) as archive:
        inside = archive.namelist()
        metadata = archive.read(next(name for name in inside if name.endswith("/METADATA")))
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    found = [
        *sdist_problems(names),
        *wheel_problems(inside, expected),
        *metadata_problems(message_from_bytes(metadata), citation),
    ]
    called = [sys.executable, "-m", "twine", "check", "--strict", str(sdist), str(wheel)]
    done = subprocess.run(called, capture_output=True, text=True, check=False)
    return [*found, done.stdout + done.stderr] if done.returncode else found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Build the package and check it.")
    parser.add_argument("--out", type=Path, help="folder that keeps the sdist and the wheel")
    out = parser.parse_args(arguments).out
    with TemporaryDirectory() as folder:
        sdist, wheel = build(out or Path(folder))
        found = problems(sdist, wheel)
        print(*found, f"{sdist.name}, {wheel.name}: {len(found)} problems", sep="\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
