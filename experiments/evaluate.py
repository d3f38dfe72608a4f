"""Evaluate finished runs by the command line: one part, by one protocol."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

Part = Literal["valid", "test"]


def evaluate(command: Sequence[str], run: Path, part: Part, options: str = "") -> dict[str, Any]:
    """The metrics of one part of a run, and their protocol. options: those of the protocol."""
    arguments = ["evaluate", str(run), *options.split(), "--part", part, "--json"]
    done = subprocess.run([*command, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return {"protocol": result["protocol"], part: result[part]}


def check_embeddings(command: Sequence[str], run: Path, part: Part) -> dict[str, Any]:
    """Diagnostics of a run's embeddings, and the quality of the held-out links of one part."""
    arguments = [*command, "check-embeddings", str(run), "--part", part, "--json"]
    done = subprocess.run(arguments, check=False, stdout=subprocess.PIPE, text=True)
    # 1 with a result: a criterion is not met
    if done.returncode not in (0, 1) or not done.stdout:
        raise subprocess.CalledProcessError(done.returncode, arguments)
    checked = json.loads(done.stdout.splitlines()[-1])
    kept = ("part", "health", "random", "links", "problems", "warning")
    return {name: checked[name] for name in kept}
