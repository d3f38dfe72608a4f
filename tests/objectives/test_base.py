"""Batches of numbered examples: each once per epoch, the same from the same arguments."""

import pytest
import torch

from hasten.objectives.base import Batch, ExampleBatches


class Examples(ExampleBatches):
    """Without a loss."""

    name = "examples"

    def terms(self, encoded, batch, ids):
        return ()

    def parameters(self):
        return ()


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize(("count", "size", "steps"), [(10, 4, 3), (8, 4, 2), (3, 5, 1)])
def test_each_example_once_per_epoch(count, size, steps, shuffle):
    phase = Examples(count, size, shuffle=shuffle)
    assert phase.steps() == steps
    batches = [phase.plan(0, 1, index) for index in range(steps)]
    ids = torch.cat([batch.ids for batch in batches])
    assert torch.equal(ids.sort().values, torch.arange(count))
    assert torch.equal(ids, torch.arange(count)) != shuffle
    assert [phase.examples(batch) for batch in batches] == [len(batch.ids) for batch in batches]


def test_a_batch_depends_on_its_arguments_only():
    used, fresh = Examples(20, 6), Examples(20, 6)
    used.plan(0, 0, 0)
    used.plan(1, 3, 2)
    assert torch.equal(used.plan(0, 2, 1).ids, fresh.plan(0, 2, 1).ids)
    assert not torch.equal(used.plan(0, 2, 1).ids, used.plan(1, 2, 1).ids)
    assert not torch.equal(used.plan(0, 2, 1).ids, used.plan(0, 3, 1).ids)


def test_micro_batches_have_whole_groups():
    batch = Batch(torch.arange(9), 0, 0, 0, group=4)
    assert [batch.micro_batch_ids(part, 3).tolist() for part in range(3)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7, 8],
        [],
    ]
