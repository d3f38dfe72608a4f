"""Help and completion: the examples of every command are valid, and the shells complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import pytest
import typer

from hasten.cli.main import app, main


def commands(group: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    found = {}
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found |= commands(command, (*path, name)) if inner else {(*path, name): command}
    return found


COMMANDS = commands(typer.main.get_command(app))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_examples_that_its_parser_takes(path):
    paragraphs = [" ".join(text.split()) for text in COMMANDS[path].help.split("\n\n")]
    examples = [text.split() for text in paragraphs if text.startswith("hasten ")]
    assert examples
    for example in examples:
        assert tuple(example[1 : len(path) + 1]) == path
        COMMANDS[path].make_context(path[-1], example[len(path) + 1 :])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_asks_the_command(shell, capsys):
    assert main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_HASTEN_COMPLETE=complete_{shell}" in script
    if shell == "bash":
        subprocess.run(["bash", "-n", "-c", script], check=True)


def test_an_unknown_shell_is_refused(capsys):
    assert main(["--print-completion", "tcsh"]) == 2
    assert "must be one of bash, zsh, fish" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("hasten rec", {"recommend", "recipes"}),
        ("hasten data ins", {"inspect"}),
        ("hasten train tisas", {"tisasrec"}),
        ("hasten train sasrec --warm", {"--warmup-steps"}),
    ],
)
def test_bash_completes(words, expected, capsys, tmp_path):
    """The function of the script, called as bash does when Tab is pressed."""
    assert main(["--print-completion", "bash"]) == 0
    script = capsys.readouterr().out
    function = re.search(r"-F (\w+) hasten", script)[1]
    program = tmp_path / "hasten"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hasten "$@"\n')
    program.chmod(0o755)
    call = (
        f"{script}COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); "
        f"{function} hasten; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    paths = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    shown = subprocess.run(
        ["bash", "-c", call], capture_output=True, text=True, check=True, env=os.environ | paths
    )
    assert set(shown.stdout.split()) == expected
