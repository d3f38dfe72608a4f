"""The exceptions of hasten: each has a message, a machine-readable code and an exit code.

The message says what is wrong, where, and what to do about it; the command line prints it alone.
Anything that is not a ``HastenError`` is a defect in hasten and keeps its traceback.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches


class HastenError(Exception):
    """A failure with a message meant for the person who runs hasten."""

    code = "failed"
    exit_code = 1
    #: whether every process of the run raises it at the same point, so that the first says it alone
    agreed = False


class UsageError(HastenError):
    """The command line was used wrongly."""

    code = "usage"
    exit_code = 2


class ConfigurationError(UsageError):
    """A configuration key or value is wrong."""

    code = "configuration"


class DataError(UsageError):
    """The data cannot be used as they are."""

    code = "data"


class RunFolderError(UsageError):
    """A run folder is missing, occupied, locked or does not fit the request."""

    code = "run_folder"


class CheckpointError(HastenError):
    """A checkpoint is missing, damaged or does not fit the run."""

    code = "checkpoint"


class NonFiniteError(HastenError):
    """Training kept producing non-finite gradients; no bad step reached the weights."""

    code = "non_finite"


class OutOfMemoryError(HastenError, RuntimeError):
    """Memory ran out with the settings that need least of it."""

    code = "memory"


class ProcessesError(HastenError):
    """Several processes cannot work together, or one of them failed, died or hangs."""

    code = "processes"


class Interrupted(HastenError):
    """A signal ended the run after its state was saved (exit code 128 + signal)."""

    code = "interrupted"

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.signal_number = signal_number
        self.agreed = True
        self.exit_code = 128 + signal_number


#: error numbers of a full disk, a quota and the largest file
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_MEMORY = re.compile(
    "can't allocate memory|not enough memory|out of memory|bad_alloc|ALLOC_FAILED"
    "|size calculation overflowed",
    re.IGNORECASE,
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed: in torch on any device, in its libraries, or in numpy."""
    if type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and bool(_NO_MEMORY.search(str(error)))


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if it has none."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the nearest of the names, or an empty text."""
    near = get_close_matches(name, list(names), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


@contextmanager
def os_errors_as(kind: type[HastenError], problem: str, path: object) -> Iterator[None]:
    """Raise an ``OSError`` from this block as ``kind``: "FILE: PROBLEM: REASON".

    path: named if the error itself names no file.
    """
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise kind(f"{where}: {problem}: {error.strerror or error}") from error
