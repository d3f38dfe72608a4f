"""Every error that hasten raises on purpose: a message, a machine-readable code, an exit code.

The message says what is wrong, where, and what to do about it; the command line prints it alone.
Anything that is not a ``HastenError`` is a defect in hasten and keeps its traceback.
"""

from __future__ import annotations

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
