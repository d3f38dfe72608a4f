"""Times in units of each user's smallest gap (Li et al. 2020, section 3.2).

``t' = round((t - t_min) / smallest non-zero gap) + 1`` over the interactions that the model sees,
so that intervals of very active and of rarely active users are comparable.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hasten.data.tables import Histories

_NEVER = np.iinfo(np.int64).max


def personal_times(history: Histories, limit: int, unseen: int = 0) -> Histories:
    """The histories with personalized times: the unit is the smallest gap of the user.

    limit: number of interactions that the model sees. unseen: number of interactions at the end
    that it does not see, such as a target. Other interactions use the same unit. If all times are
    equal, every interaction has time 1; without times, interactions are evenly spaced.
    """
    offsets, lengths = history.offsets, history.lengths
    index = np.arange(len(history.items), dtype=np.int64)
    if history.times is None:
        return replace(history, times=index - np.repeat(offsets[:-1], lengths) + 1)
    times, has_events = history.times, lengths > 0
    stops = offsets[1:] - unseen
    starts = np.minimum(np.maximum(offsets[:-1], stops - limit), offsets[1:] - 1)
    gaps = np.diff(times, prepend=times[:1])
    seen = (index > np.repeat(starts, lengths)) & (index < np.repeat(stops, lengths)) & (gaps > 0)
    units = np.ones(len(history), np.int64)
    if has_events.any():
        units[has_events] = np.minimum.reduceat(
            np.where(seen, gaps, _NEVER), offsets[:-1][has_events]
        )
    units[units == _NEVER] = 1
    firsts = np.zeros(len(history), np.int64)
    firsts[has_events] = times[starts[has_events]]
    since = times - np.repeat(firsts, lengths)
    return replace(history, times=np.rint(since / np.repeat(units, lengths)).astype(np.int64) + 1)
