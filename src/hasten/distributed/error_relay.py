"""Raise an error of one process on all processes; exit if the others are lost."""

from __future__ import annotations

import os
import sys
from typing import Any

from hasten.errors import HastenError


def describe_error(error: HastenError) -> dict[str, Any]:
    """The error as JSON, to send to the other processes."""
    return {"error": str(error), "code": error.code, "exit_code": error.exit_code}


def relayed_error(described: dict[str, Any], where: str) -> HastenError:
    """The error of another process, to raise here; where: a prefix of the message."""
    error = HastenError(where + described["error"])
    error.code, error.exit_code = described["code"], described["exit_code"]
    error.agreed = True
    return error


def exit_code_of(error: BaseException | None) -> int:
    """The exit code of a process that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return 130
    return error.exit_code if isinstance(error, HastenError) else 1


def exit_now(code: int) -> None:
    """Exit at once: collectives with a lost process would block a regular exit."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
