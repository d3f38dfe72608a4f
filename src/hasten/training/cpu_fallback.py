"""CPU fallback with a warning, for Apple's MPS: it runs out of memory or lacks an operation.

``PYTORCH_ENABLE_MPS_FALLBACK=1`` lets torch compute single operations on the CPU, and
``PYTORCH_MPS_HIGH_WATERMARK_RATIO`` is how much of the memory MPS may take (0: all of it, and the
machine may freeze); both are read when torch is imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hasten.errors import first_line

Found = TypeVar("Found")
_SIGNS = ("out of memory", "mps", "metal", "not implemented for", "not supported")


def failed_on_device(error: BaseException) -> bool:
    """Whether the device caused an error."""
    if isinstance(error, NotImplementedError):  # raised for an operation that a device lacks
        return True
    return isinstance(error, RuntimeError) and any(s in str(error).lower() for s in _SIGNS)


def falls_back_to_cpu(error: BaseException, device: str, chosen: str, processes: int) -> bool:
    """Whether a run on this kind of device continues on the CPU after this error.

    chosen: the configured device. One that the user named is kept.
    """
    return device == "mps" and chosen == "auto" and processes == 1 and failed_on_device(error)


def fallback_message(error: BaseException, device: str, run: str) -> str:
    """The warning: what failed, what happens now, and how to stay on the device."""
    return (
        f"warning: {device} failed ({first_line(error)}): {run} goes on with the CPU from its "
        "last checkpoint (from the beginning where there is none). To stay on the device: a "
        "smaller --batch-size, --accumulate or --recompute where memory ran out, "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO for a larger share of it, PYTORCH_ENABLE_MPS_FALLBACK=1 "
        "where an operation is missing, and hasten resume RUN --set device=mps"
    )


def with_cpu_fallback(
    attempt: Callable[[str], Found], device: str, chosen: bool, say: Callable[[str], None]
) -> tuple[Found, str]:
    """The result on the device, or on the CPU if the device fails, and the device that was used.

    chosen: the user named the device, so its error is raised.
    """
    try:
        return attempt(device), device
    except RuntimeError as error:  # NotImplementedError is one
        if chosen or device == "cpu" or not failed_on_device(error):
            raise
        say(
            f"{device} failed ({first_line(error)}): going on with the CPU, from the beginning. "
            f"To stay on {device}: a smaller edge_sample_size or more accumulation_steps, or, for "
            "missing operations of MPS, PYTORCH_ENABLE_MPS_FALLBACK=1"
        )
    return attempt("cpu"), "cpu"
