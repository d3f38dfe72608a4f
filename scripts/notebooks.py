"""Write the notebooks of docs/notebooks from the pages beside them.

python -m scripts.notebooks
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "notebooks"
_CODE = re.compile(r"^```python\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def cells(page: str) -> Iterator[dict[str, object]]:
    """The text and the blocks of Python of a page, in order."""
    for number, part in enumerate(_CODE.split(page)):
        if not part.strip():
            continue
        common: dict[str, object] = {"id": f"cell-{number}", "metadata": {}, "source": part.strip()}
        if number % 2:
            yield {"cell_type": "code", "execution_count": None, "outputs": [], **common}
        else:
            yield {"cell_type": "markdown", **common}


def notebook(page: str) -> str:
    """The notebook of a page, without outputs (nbformat 4.5)."""
    name = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {
        "cells": list(cells(page)),
        "metadata": {"kernelspec": name, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(made, indent=1) + "\n"


def main() -> None:
    """Write them all."""
    for page in sorted(FOLDER.glob("*.md")):
        text = notebook(page.read_text(encoding="utf-8"))
        page.with_suffix(".ipynb").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
