"""The documentation is true: links lead somewhere, commands and messages exist, examples run."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer

import hasten
from hasten import registry
from hasten.cli import options
from hasten.cli.main import app, main
from hasten.config_loading.build import EVERYDAY, build_config, data_options, parse_changes
from hasten.config_loading.keys import known_keys
from hasten.data.samples.files import write_sample
from hasten.registry import BUILT_IN

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_TESTED = re.compile(r"<!-- tested(?:: model (\w+))? -->\n```python\n(.*?)^```", re.DOTALL | re.M)


def without_code(text: str) -> str:
    return _BLOCK.sub("", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.M)
    plain = (re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


@each_page
def test_links_lead_somewhere(page):
    broken = []
    for link in _LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every command in a block of shell."""
    for language, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        if language == "sh":
            for line in block.replace("\\\n", " ").splitlines():
                if words := shlex.split(line, comments=True):
                    yield words


def inline_commands(page: Path) -> Iterator[list[str]]:
    """The words of every whole command within a sentence or a table; fragments are left out."""
    for code in re.findall(r"`(hasten [^`]+)`", without_code(page.read_text(encoding="utf-8"))):
        words = shlex.split(code.replace("\\|", "|"))
        if len(words) > 3 and not re.search(r"\.\.\.|…|\||\[", code):
            yield words


def problem(words: list[str]) -> str | None:
    """What is wrong with a command of hasten: its words, or the configuration that they make."""
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["make"]:
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        return None if words[1] in targets else f"no target {words[1]}"
    if words[:1] != ["hasten"]:
        return None
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            return f"no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    if command.name == "doctor" and "--step" in rest:  # the options of train
        command = typer.main.get_command(app).commands["train"]  # type: ignore[attr-defined]
        rest.remove("--step")
    options = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    keys = set(known_keys(None)).union(*(known_keys(e.load().Options) for e in BUILT_IN))
    for word, following in pairwise([*rest, ""]):
        if word.startswith("--") and word not in options:
            return f"no option {word}"
        key = following.partition("=")[0]
        if word == "--set" and not {key, key.rpartition(".")[0]} & keys:
            return f"no key {key}"
    try:
        resolve(command.name, command.make_context(" ".join(words[:2]), rest).params)
    except typer.Exit:  # --help
        return None
    except Exception as error:  # noqa: BLE001 - of the grammar or of the configuration
        return str(error)
    return None


def resolve(command: str, given: dict[str, Any]) -> None:
    """Build the configuration that a command would work with; files need not exist."""
    sets = given.get("sets") or []
    if command in ("train", "tune", "import"):
        file = given["config"] if given["config"] and given["config"].is_file() else None
        if given["model"] in {entry.name for entry in BUILT_IN} or file:
            flags = options.configuration_flags(**{**given, "config": None, "out": None})
            if str(flags.get("recipe", "")).endswith(".yaml"):
                del flags["recipe"]
            build_config(given["model"], given["data"], file, sets, flags)
    elif command in ("resume", "evaluate"):
        flags = {name: given.get(name) for name in (*EVERYDAY, "metrics", "topk", "devices")}
        parse_changes(sets, options.configuration_flags(**flags))
    elif sets:
        data_options(given["path"], given["format"], sets)


@each_page
def test_commands_are_parsed_and_their_configuration_is_valid(page):
    wrong = {" ".join(words): found for words in commands(page) if (found := problem(words))}
    if page.name != "experiments.md":  # its commands are those of the versions that ran them
        wrong |= {" ".join(w): found for w in inline_commands(page) if (found := problem(w))}
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs/tutorials").glob("*.md")), ids=lambda p: p.stem
)
def test_the_commands_of_tutorials_run(page, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for words in commands(page):
        assert main(words[1:]) == 0, (" ".join(words), capfd.readouterr().err)


def test_wrong_commands_would_be_noticed():
    assert problem(["hasten", "trian"]) == "no command trian"
    assert problem(["hasten", "data", "check", "x.csv", "--loud"]) == "no option --loud"
    assert problem(["hasten", "train", "sasrec", "--set", "training.lrr=1"]) == (
        "no key training.lrr"
    )
    assert problem(["make", "tea"]) == "no target tea"
    assert "unexpected extra argument" in problem(["hasten", "train", "pop", "x.csv", "y.csv"])
    assert "must be a whole number" in problem(["hasten", "resume", "x", "--epochs", "two"])
    assert "model.width = 0" in problem(["hasten", "train", "sasrec", "--set", "model.width=0"])


@pytest.mark.parametrize("page", ["README.md", "docs/quick-start.md"])
def test_commands_run_one_after_the_other(page, tmp_path, monkeypatch, capfd):
    """All of hasten's commands of the page, with fewer epochs."""
    monkeypatch.chdir(tmp_path)
    for words in commands(ROOT / page):
        if words[0] != "hasten" or words[1] == "doctor":
            continue
        shorter = ["2" if b == "--epochs" else word for b, word in pairwise(words)]
        if words[1:3] == ["train", "sasrec"]:
            shorter += ["--epochs", "1"]
        assert main(shorter) == 0, (" ".join(words), capfd.readouterr().err)
    assert (tmp_path / "runs" / "mine" / "final").is_dir()


def templates() -> set[str]:
    """Every text of the source, with ``…`` for what is filled in."""
    found = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
                found.add(re.sub("…+", "…", "".join(parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.add(node.value)
    return found


def test_messages_of_the_troubleshooting_page_are_those_of_the_source():
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    known = templates()
    shown = re.findall(r"^### `(.+)`$", page, re.M)
    assert len(shown) > 50
    # an … at either end may stand for anything, also for the rest of a message; a function that
    # knows the file puts its name before the message of one that does not
    parts = {m: m.removeprefix("…: ").strip("… ") for m in shown}
    strange = [m for m in shown if not any(parts[m] in template for template in known)]
    assert not strange


@pytest.fixture
def example_folder(tmp_path, monkeypatch):
    """Where examples run: with a small events.csv."""
    write_sample("sequences", tmp_path / "events.csv", 120, 150, 2400)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def examples(page: Path) -> list[str]:
    """The marked examples of a page, in order, but for those that are models."""
    marked = _TESTED.findall(page.read_text(encoding="utf-8"))
    return [code for model, code in marked if not model]


@pytest.mark.parametrize("name", ["README.md", "docs/python.md", "docs/runs.md"])
@pytest.mark.usefixtures("example_folder")
def test_examples_run(name):
    found = examples(ROOT / name)
    assert found
    if "runs/mine" in "".join(found):
        hasten.train("sasrec", "events.csv", epochs=1, threads=1, out="runs/mine", quiet=True)
    for number, code in enumerate(found, 1):
        exec(compile(code, f"<{name}, example {number}>", "exec"), {"__name__": "example"})


def test_every_page_with_marked_examples_is_run():
    marked = {str(page.relative_to(ROOT)) for page in PAGES if examples(page)}
    assert marked == {"README.md", "docs/python.md", "docs/runs.md"}


def test_the_model_of_another_package_trains(example_folder, monkeypatch):
    """The whole example: written as a package, found by its entry point, trained."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    (code,) = [code for model, code in _TESTED.findall(page) if model == "mf"]
    package = example_folder / "package"
    about = package / "mf-0.1.dist-info"
    about.mkdir(parents=True)
    (package / "mf.py").write_text(code, encoding="utf-8")
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mf\nVersion: 0.1\n")
    (about / "entry_points.txt").write_text("[hasten.models]\nmf = mf:MF\n")
    monkeypatch.syspath_prepend(package)
    registry._foreign_entries.cache_clear()
    try:
        run = example_folder / "mf"
        result = hasten.train(
            "mf", example_folder / "events.csv", epochs=4, lr=1e-2, threads=1, out=run, quiet=True
        )
        assert result.metrics["ndcg@10"] > 0.01
        assert len(result.recommend(users=[1], topk=3)) == 3
        with pytest.raises(hasten.HastenError, match=r"model\.widht.*did you mean 'model\.width'"):
            hasten.train("mf", settings={"model.widht": 3})
    finally:
        registry._foreign_entries.cache_clear()


def test_every_result_is_of_a_commit():
    """Others cannot be repeated."""
    for path in sorted((ROOT / "bench" / "results").glob("*.json")):
        result = json.loads(path.read_text())
        if "commit" in result:
            assert not str(result["commit"]).endswith("+"), path.name
