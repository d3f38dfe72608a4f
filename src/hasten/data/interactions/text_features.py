"""Item features from texts: TF-IDF, then a truncated SVD.

This is latent semantic analysis (Deerwester et al. 1990) by scikit-learn, which is an extra:
``pip install 'hasten[text]'``. Words and pairs of words, sublinear counts, a fixed seed.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hasten.atomic_write import atomic_path
from hasten.data.readers.names import read_names
from hasten.data.tables import Matrix
from hasten.errors import DataError, UsageError


def write_text_features(texts: Path, out: Path, width: int = 128, seed: int = 0) -> dict[str, Any]:
    """Write the features of a file of item and text as Parquet with an item column.

    texts: as files of names are read: id<separator>text, a header, or RecBole's .item. width: at
    most so many features. Returns what was written, for ``--json``.

    Raises:
        DataError: texts that hold no words, or too few of them.
        UsageError: the file is there already, or scikit-learn is not.
    """
    if out.exists():
        raise UsageError(f"{out} exists already")
    if out.suffix not in (".parquet", ".pq"):
        raise UsageError(f"{out}: features are written as Parquet: give a name in .parquet")
    found = read_names(texts)
    values, explained = text_features(list(found.values()), width, seed, str(texts))
    out.parent.mkdir(parents=True, exist_ok=True)
    flat = pa.array(values.reshape(-1), pa.float32())
    vectors = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    with atomic_path(out) as temporary:
        pq.write_table(pa.table({"item_id": list(found), "text": vectors}), temporary)
    return {
        "features": str(out),
        "items": len(values),
        "width": values.shape[1],
        "explained_variance": explained,
        "empty": int((~values.any(axis=1)).sum()),
        "seed": seed,
    }


def text_features(
    texts: list[str], width: int, seed: int = 0, source: str = "texts"
) -> tuple[Matrix, float]:
    """float32 [n, at most width], and which share of the variance they explain.

    A text without known words has a row of zeros.
    """
    if find_spec("sklearn") is None:
        raise UsageError("features of texts need scikit-learn: pip install 'hasten[text]'")
    from sklearn.decomposition import TruncatedSVD  # noqa: PLC0415 - an extra, and slow to import
    from sklearn.feature_extraction.text import TfidfVectorizer  # noqa: PLC0415

    vectorizer = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), dtype=np.float32)
    try:
        counts = vectorizer.fit_transform(texts)
    except ValueError as error:
        problem = f"no words of two letters or more in {len(texts):,} texts"
        raise DataError(f"{source}: {problem}") from error
    width = min(width, counts.shape[0] - 1, counts.shape[1] - 1)
    if width < 1:
        raise DataError(
            f"{source}: {counts.shape[0]:,} texts with {counts.shape[1]:,} words are too few"
        )
    decomposition = TruncatedSVD(width, random_state=seed)
    values = decomposition.fit_transform(counts).astype(np.float32)
    return values, float(decomposition.explained_variance_ratio_.sum())
