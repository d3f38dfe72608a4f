"""Hash the labels of a vocabulary by their content."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def add_labels(digest: Any, labels: pa.Array, names: pa.Array | None) -> None:
    """Add the labels of a vocabulary, and their names, to a hash."""
    columns = [("labels", labels)]
    if names is not None:
        columns.append(("names", names))
    for role, values in columns:
        digest.update(f"{role} {len(values)} {values.null_count}\n".encode())
        if pa.types.is_integer(values.type):
            digest.update(np.ascontiguousarray(values.to_numpy(), "<i8").data)
            continue
        known = values.is_valid().to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(known, np.uint8).data)
        texts = values.fill_null("").cast(pa.large_binary())
        digest.update(np.ascontiguousarray(pc.binary_length(texts), "<i8").data)
        digest.update(_bytes(texts))


def _bytes(texts: pa.LargeBinaryArray) -> memoryview:
    """The bytes of all texts of an Arrow array, concatenated."""
    _, offsets, data = texts.buffers()
    if data is None:
        return memoryview(b"")
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(data)[int(ends[0]) : int(ends[-1])]
