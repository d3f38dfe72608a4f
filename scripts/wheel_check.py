"""Install the wheel into empty environments, and run there what the README runs first.

    python -m scripts.wheel_check                                             # make test-wheel
    python -m scripts.wheel_check --python 3.11 --python 3.12 --lowest tests  # as make test-matrix

``--lowest`` adds an environment of the oldest Python with the lowest version that
``pyproject.toml`` allows of every dependency. Tests named as arguments run in each environment
against the installed wheel. uv makes the environments, and downloads an interpreter that is
missing. Every environment is tried; the exit status is 1 if one failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from scripts.package_check import ROOT, build

OLDEST = "3.11"
#: what the tests of the core import
_TEST_TOOLS = (
    "pytest", "datasets", "duckdb", "hypothesis", "httpx", "matplotlib", "pandas", "polars",
    "scikit-learn", "scipy", "tensorboard", "torchmetrics",
)  # fmt: skip


def first_example(page: str) -> list[str]:
    """The commands of the README's section on your own data."""
    section = page.partition("\n## Your own data\n")[2]
    block = re.search(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    if block is None:
        raise SystemExit("README.md has no block of commands under 'Your own data'")
    return block[1].splitlines()


def uv(*words: str | Path) -> str:
    """Run uv and return what it printed."""
    called = [sys.executable, "-m", "uv", "--quiet", *map(str, words)]
    return subprocess.run(called, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout


def check(folder: Path, wheel: Path, python: str, lowest: bool, asked: argparse.Namespace) -> None:
    """Make one environment and run everything in it.

    Raises:
        subprocess.CalledProcessError: of the first command that fails.
    """
    flags = shlex.split(asked.uv_flags)
    if lowest:
        limits = folder / "lowest.txt"
        words = ["pip", "compile", "pyproject.toml", "--no-deps", "--resolution", "lowest-direct"]
        limits.write_text(uv(*words, "--python", python, *flags))
        flags += ["--constraint", str(limits)]
    environment = folder / "environment"
    uv("venv", "--python", python, environment)
    tools = _TEST_TOOLS if asked.tests else ()
    uv("pip", "install", "--python", environment, *flags, wheel, *tools)
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["PATH"] = f"{environment / 'bin'}{os.pathsep}{variables['PATH']}"

    work = folder / "work"
    work.mkdir()
    for line in first_example((ROOT / "README.md").read_text(encoding="utf-8")):
        print(f"$ {line}", flush=True)
        subprocess.run(shlex.split(line), cwd=work, env=variables, check=True)
    if asked.tests:
        interpreter = str(environment / "bin" / "python")
        called = [interpreter, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        if lowest:  # old packages use what newer ones, below them, deprecate
            called += ["-W", "ignore::DeprecationWarning"]
        subprocess.run([*called, *asked.tests], cwd=ROOT, env=variables, check=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Try the wheel in empty environments.")
    parser.add_argument("tests", nargs="*", help="tests to run in each environment")
    parser.add_argument("--python", action="append", help="version or path; this one if left out")
    parser.add_argument("--lowest", action="store_true", help="add the lowest versions")
    parser.add_argument("--uv-flags", default="", help="more options for uv's installations")
    asked = parser.parse_args(arguments)
    pythons = [(python, False) for python in asked.python or [sys.executable]]
    results = []
    with TemporaryDirectory() as folder:
        _, wheel = build(Path(folder))
        for python, lowest in [*pythons, *([(OLDEST, True)] if asked.lowest else [])]:
            label = f"Python {python}{', lowest versions' if lowest else ''}"
            print(f"== {label}", flush=True)
            with TemporaryDirectory() as place:
                try:
                    check(Path(place), wheel, python, lowest, asked)
                    results.append((label, "passed"))
                except subprocess.CalledProcessError as error:
                    results.append((label, f"failed: {shlex.join(map(str, error.cmd))}"))
    print(*(f"{label}: {result}" for label, result in results), sep="\n")
    return any(result != "passed" for _, result in results)


if __name__ == "__main__":
    sys.exit(main())
