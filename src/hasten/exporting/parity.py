"""Compare the answers of an export with those of hasten: rankings, scores and latency."""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass

import numpy as np

from hasten.arrays import Int64
from hasten.exporting.sample import Search

#: queries that are answered together, and single ones that are timed
_BATCH, _TIMED = 64, 50
#: relative difference below which two scores are equal
_TIED = 1e-5


@dataclass(frozen=True)
class Parity:
    """How far an export agrees with hasten.

    overlap: share of the k best of each query that are also hasten's k best; of candidates with the
    score of the k-th place, any may take it. difference: largest absolute difference of the scores
    of the same candidate. exported_ms, hasten_ms: median milliseconds of a single query, measured
    in turns.
    """

    queries: int
    k: int
    overlap: float
    difference: float
    exported_ms: float
    hasten_ms: float


def compare(count: int, k: int, exported: Search, hasten: Search) -> Parity:
    """Ask both for the ``k`` best candidates of ``count`` queries."""
    shared = total = 0
    difference = 0.0
    for rows in np.array_split(np.arange(count), math.ceil(count / _BATCH)):
        (ids, scores), (own, own_scores) = exported(rows), hasten(rows)
        for found, score, wanted, wanted_score in zip(ids, scores, own, own_scores, strict=True):
            real = wanted >= 0
            expected = dict(zip(wanted[real].tolist(), wanted_score[real].tolist(), strict=True))
            if not expected:
                continue
            least = min(expected.values())
            total += len(expected)
            for item, value in zip(found.tolist(), score.tolist(), strict=True):
                if item in expected:
                    shared += 1
                    difference = max(difference, abs(value - expected[item]))
                elif abs(value - least) <= _TIED * max(1.0, abs(least)):
                    shared += 1
    timed = np.linspace(0, count - 1, min(_TIMED, count)).astype(np.int64)
    seconds = [(_seconds(exported, row), _seconds(hasten, row)) for row in timed[:, None]]
    first, second = (1e3 * statistics.median(each) for each in zip(*seconds, strict=True))
    return Parity(count, k, min(1.0, shared / max(1, total)), difference, first, second)


def _seconds(search: Search, rows: Int64) -> float:
    begin = time.perf_counter()
    search(rows)
    return time.perf_counter() - begin
