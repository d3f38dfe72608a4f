"""Standard output and standard error that tolerate a closed terminal or pipe.

A terminal can close and a pipe can end while a run trains. The run has its log files, so what
people would have read on the screen is dropped instead.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import TextIO


def open_streams() -> None:
    """Let a stream that was closed before the start (``2>&-``) go nowhere, not to another file.

    The characters that stdout cannot encode are escaped, as Python does on stderr.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # takes the lowest free descriptor, which is that of the closed stream
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    with suppress(AttributeError):  # another kind of stream, as in tests
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def write_stderr(line: str) -> bool:
    """Write a line; False if nobody reads it any more. Later lines are dropped then."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # broken, closed, or None
        silence(sys.stderr)
        return False
    return True


def escape_controls(text: str, keep: str = "") -> str:
    """Escape control characters and direction marks, as in ``\\n``, except those in ``keep``."""
    return "".join(c if c in keep or c.isprintable() else ascii(c)[1:-1] for c in text)


def silence(stream: TextIO) -> None:
    """Send to nowhere what is written to this stream from now on."""
    with suppress(OSError, ValueError, AttributeError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
