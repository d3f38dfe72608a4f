"""Note the functions of the repository that the timed part of a benchmarked process calls.

The harness puts this folder on the path of every process and names a folder in BENCH_FUNCTIONS.
The timed part lasts from ``Stopwatch.restart`` to ``Stopwatch.seconds``, or in ``hasten train``
from the first step of an epoch to its last.
"""

import atexit
import os
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType

_ROOT = f"{Path(__file__).resolve().parent.parent.parent}{os.sep}"
_TRAINER = "src/hasten/training/trainer.py"
#: whether a call of these functions begins the timed part; else it ends it
_BEGINS = {
    ("bench/report.py", "Stopwatch.restart"): True,
    ("bench/report.py", "Stopwatch.seconds"): False,
    (_TRAINER, "Trainer.train_phase"): True,
    (_TRAINER, "Trainer.finish_epoch"): False,
}

_timed = False
#: by identity: equal code objects at two places are two functions
_called: dict[int, CodeType] = {}
_markers: dict[CodeType, bool | None] = {}


def _place(code: CodeType) -> tuple[str, str]:
    """The file, from the root of the repository, and the function inside it."""
    return code.co_filename.removeprefix(_ROOT), code.co_qualname


def _watch(frame: FrameType, event: str, _argument: object) -> None:
    global _timed  # noqa: PLW0603 - a profile function has no other place for its state
    if event != "call":
        return
    code = frame.f_code
    if code not in _markers:
        _markers[code] = _BEGINS.get(_place(code))
    begins = _markers[code]
    if begins is not None:
        _timed = begins
    if begins:
        # the functions of a side that wait for the timed part to end have their part in it
        caller = frame.f_back
        while caller is not None:
            if caller.f_code.co_filename.startswith(f"{_ROOT}bench{os.sep}"):
                _called[id(caller.f_code)] = caller.f_code
            caller = caller.f_back
    if _timed:
        _called[id(code)] = code


def _note(folder: Path) -> None:
    sys.setprofile(None)
    places = {_place(code) for code in _called.values() if code.co_filename.startswith(_ROOT)}
    (folder / f"{os.getpid()}.txt").write_text(
        "\n".join(sorted(f"{file}:{name}" for file, name in places))
    )


if os.environ.get("BENCH_FUNCTIONS"):
    atexit.register(_note, Path(os.environ["BENCH_FUNCTIONS"]))
    threading.setprofile(_watch)
    sys.setprofile(_watch)
