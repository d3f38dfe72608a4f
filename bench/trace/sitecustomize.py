"""Note the files of the repository that a benchmarked process loaded, when it ends.

The harness puts this folder on the path of every process and names a folder in BENCH_SOURCES.
"""

import atexit
import os
import sys
from pathlib import Path


def _note() -> None:
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    root = f"{Path(__file__).resolve().parent.parent.parent}{os.sep}"
    inside = sorted(file.removeprefix(root) for file in files if file.startswith(root))
    target = Path(os.environ["BENCH_SOURCES"]) / f"{os.getpid()}.txt"
    target.write_text("\n".join(inside))


if os.environ.get("BENCH_SOURCES"):
    atexit.register(_note)
