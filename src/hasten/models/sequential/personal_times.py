"""Times counted in each user's own unit (Li et al. 2020, section 3.2).

``t' = round((t - t_min) / smallest non-zero gap) + 1`` over the events that the model sees, so that
someone who acts every minute and someone who acts every month have intervals of the same kind.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hasten.data.tables import Histories

_NEVER = np.iinfo(np.int64).max


def personal_times(history: Histories, limit: int, unseen: int = 0) -> Histories:
    """The histories with personalised times, one unit being the smallest gap between two events.

    limit: how many events the model sees; unseen: how many at the end it does not (a last event
    that is only a target). What is outside keeps the unit of what is seen. Where all times are
    equal every event has time 1; where there are none, events count as evenly spaced.
    """
    offsets, lengths = history.offsets, history.lengths
    index = np.arange(len(history.items), dtype=np.int64)
    if history.times is None:
        return replace(history, times=index - np.repeat(offsets[:-1], lengths) + 1)
    times, some = history.times, lengths > 0
    stops = offsets[1:] - unseen
    starts = np.minimum(np.maximum(offsets[:-1], stops - limit), offsets[1:] - 1)
    gaps = np.diff(times, prepend=times[:1])
    seen = (index > np.repeat(starts, lengths)) & (index < np.repeat(stops, lengths)) & (gaps > 0)
    units = np.ones(len(history), np.int64)
    if some.any():
        units[some] = np.minimum.reduceat(np.where(seen, gaps, _NEVER), offsets[:-1][some])
    units[units == _NEVER] = 1
    firsts = np.zeros(len(history), np.int64)
    firsts[some] = times[starts[some]]
    since = times - np.repeat(firsts, lengths)
    return replace(history, times=np.rint(since / np.repeat(units, lengths)).astype(np.int64) + 1)
