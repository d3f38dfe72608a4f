"""From a device that fails to the CPU, said aloud: Apple's MPS runs out of memory or lacks things.

``PYTORCH_ENABLE_MPS_FALLBACK=1`` lets torch compute single operations on the CPU, and
``PYTORCH_MPS_HIGH_WATERMARK_RATIO`` is how much of the memory MPS may take (0: all of it, and the
machine may freeze); both are read when torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")
_SIGNS = ("out of memory", "mps", "metal", "not implemented for", "not supported")


def failed_on_device(error: BaseException) -> bool:
    """Whether an error is that of a device, not of what was asked of it."""
    if isinstance(error, NotImplementedError):  # torch's word for an operation a device lacks
        return True
    return isinstance(error, RuntimeError) and any(s in str(error).lower() for s in _SIGNS)


def goes_to_cpu(error: BaseException, device: str, chosen: str, processes: int) -> bool:
    """Whether a run on this kind of device goes on with the CPU after this error.

    chosen: what the configuration says: a device that was named is not left.
    """
    return device == "mps" and chosen == "auto" and processes == 1 and failed_on_device(error)


def retreat_message(error: BaseException, device: str, run: str) -> str:
    """What is said of it: what failed, what happens now, and how to stay on the device."""
    return (
        f"warning: {device} failed ({_first_line(error)}): {run} goes on with the CPU from its "
        "last checkpoint (from the beginning where there is none). To stay on the device: a "
        "smaller --batch-size, --accumulate or --recompute where memory ran out, "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO for a larger share of it, PYTORCH_ENABLE_MPS_FALLBACK=1 "
        "where an operation is missing, and hasten resume RUN --set device=mps"
    )


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__


def with_retreat(
    attempt: Callable[[str], Found], device: str, chosen: bool, say: Callable[[str], None]
) -> tuple[Found, str]:
    """What the attempt gives on the device, or on the CPU where the device fails; and which it was.

    chosen: the user named the device: then its error is raised, not hidden.
    """
    try:
        return attempt(device), device
    except RuntimeError as error:  # NotImplementedError is one
        if chosen or device == "cpu" or not failed_on_device(error):
            raise
        say(
            f"{device} failed ({_first_line(error)}): going on with the CPU, from the beginning. "
            f"To stay on {device}: a smaller edge_sample_size or more accumulation_steps, or, for "
            "missing operations of MPS, PYTORCH_ENABLE_MPS_FALLBACK=1"
        )
    return attempt("cpu"), "cpu"
