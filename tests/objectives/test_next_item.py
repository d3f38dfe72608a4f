"""Next-item phases: the negatives of a target are items that its own user does not have."""

import numpy as np
import pytest

from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.models.sequential.tisasrec import TiSASRec, TiSASRecOptions
from hasten.objectives.next_item import NextItemPhase

#: users 0 and 3 have one event: they have no target, so examples and users are numbered differently
OWN = [[0], [0, 1, 2, 3], [4, 5, 6, 7, 4], [8], [8, 9, 10], [0, 4, 8, 11]]
ITEMS, LENGTH, NEGATIVES = 12, 4, 60


def phase_of(name):
    offsets = np.concatenate([[0], np.cumsum([len(items) for items in OWN])])
    histories = Histories(offsets, np.concatenate(OWN), np.arange(offsets[-1]))
    sizes = Sizes(users=len(OWN), items=ITEMS)
    options = {"width": 4, "max_length": LENGTH}
    arguments = {
        "item_count": ITEMS,
        "batch_size": 4,
        "max_length": LENGTH,
        "negative_count": NEGATIVES,
    }
    if name == "sasrec":
        return NextItemPhase(SASRec(SASRecOptions(**options), sizes), histories, **arguments)
    model = TiSASRec(TiSASRecOptions(**options), sizes)
    return NextItemPhase(model, personal_times(histories, LENGTH, unseen=1), **arguments)


@pytest.mark.parametrize("name", ["sasrec", "tisasrec"])
def test_negatives_avoid_the_items_of_the_user_itself(name):
    """All its items and no others: those of another user are drawn."""
    phase = phase_of(name)
    for epoch in range(2):
        batch = phase.plan(0, epoch, 0)
        rows = batch.ids.numpy()
        found = phase.build_micro_batch(batch, rows)
        users = np.repeat(phase.users[rows], phase.target_counts[rows])
        assert set(users) == {1, 2, 4, 5}
        for user, target, negatives in zip(users, found.targets, found.negatives, strict=True):
            assert int(target) in OWN[user]
            assert set(negatives.tolist()) == set(range(ITEMS)) - set(OWN[user])
