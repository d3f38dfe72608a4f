"""Operators that MPS lacks, as torch's own table says.

The source is ``native_functions.yaml``, which torch ships and from which its dispatcher is made:
https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/README.md (section "dispatch"). An
operator is missing if its entry has kernels for backends, and neither MPS nor a composite kernel is
among them. https://docs.pytorch.org/docs/stable/notes/mps.html says what then happens: an error,
or with PYTORCH_ENABLE_MPS_FALLBACK=1 a detour over the CPU.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

_KEYS = re.compile(r"^    ([A-Za-z, ]+?): *\S")


@cache
def _entries() -> dict[str, tuple[frozenset[str], str | None]]:
    """For each operator ``name.overload``: the keys of its kernels, and to which it delegates."""
    import torchgen

    table = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
    found: dict[str, tuple[frozenset[str], str | None]] = {}
    for block in re.split(r"^- func: ", table.read_text("utf-8"), flags=re.MULTILINE)[1:]:
        name = block.split("(", 1)[0]
        keys = {
            key.strip()
            for line in block.splitlines()
            if (match := _KEYS.match(line))
            for key in match[1].split(",")
        }
        delegate = re.search(r"^  structured_delegate: (\S+)", block, re.MULTILINE)
        found[name] = frozenset(keys), delegate[1] if delegate else None
    return found


@cache
def missing_on_mps(function: Any) -> bool:
    """Whether MPS has no kernel of this operator (an ``OpOverload``)."""
    if not function._schema.name.startswith("aten::"):
        return False
    name = function._schema.name.removeprefix("aten::")
    overload = function._schema.overload_name
    keys, delegate = _entries().get(f"{name}.{overload}" if overload else name, (frozenset(), None))
    if delegate is not None:
        keys, _ = _entries()[delegate]
    return bool(keys) and not any(key == "MPS" or key.startswith("Composite") for key in keys)
