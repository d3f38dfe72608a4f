"""Batches that are prepared ahead are those that are asked for."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

from hasten.objectives.base import ExampleBatches, Term
from hasten.objectives.prefetch import BatchRequest, Prefetcher
from tests.device.recorder import recording
from tests.device.simulation import simulated

FIRST = BatchRequest(0, 0, 0, range(2), 2)


class Numbers(ExampleBatches):
    """Eight examples in batches of two; the inputs are ten times their numbers."""

    name = "numbers"

    def __init__(self):
        super().__init__(8, 2, shuffle=False)
        self.threads = {}
        self.errors = {}

    def parameters(self):
        return []

    def terms(self, encoded, batch, ids):
        return [Term("loss", ids.sum(), 1.0)]

    def term_inputs(self, batch, ids):
        self.threads[batch.index] = threading.current_thread()
        if batch.index in self.errors:
            raise self.errors[batch.index]
        return 10 * ids


def test_the_next_batch_is_prepared_by_a_thread_with_its_inputs_on_the_device():
    with simulated("cuda") as device, recording() as recorder:
        prefetcher = Prefetcher(phase := Numbers(), device)
        for index in range(4):
            batch = prefetcher.take(replace(FIRST, index=index))
            assert batch.ids.tolist() == [2 * index, 2 * index + 1]
            shared, *parts = batch.inputs
            assert shared == ()
            assert [each.cpu().tolist() for each in parts] == [[20 * index], [20 * index + 10]]
        assert recorder.uploads.total() == 4
    assert threading.main_thread() not in phase.threads.values()
    assert sorted(phase.threads) == [0, 1, 2, 3]


def test_another_batch_than_the_following_one_is_prepared_when_it_is_asked_for():
    with simulated("cuda") as device, recording():
        prefetcher = Prefetcher(Numbers(), device)
        assert len(prefetcher.take(FIRST).inputs) == 3
        more = replace(FIRST, index=1, numbers=range(1), count=1)  # other micro-batches
        assert prefetcher.take(more).inputs[1].cpu().tolist() == [20, 30]
        assert prefetcher.take(replace(FIRST, epoch=1)).epoch == 1


def test_an_error_is_that_of_the_step_and_lack_of_memory_leaves_the_inputs_to_it():
    with simulated("cuda") as device, recording():
        prefetcher = Prefetcher(phase := Numbers(), device)
        phase.errors = {1: KeyError("lost"), 2: MemoryError()}
        assert prefetcher.take(FIRST).inputs is not None
        with pytest.raises(KeyError, match="lost"):
            prefetcher.take(replace(FIRST, index=1))
        batch = prefetcher.take(replace(FIRST, index=2))
        assert batch.inputs is None
        assert batch.index == 2
        assert prefetcher.take(replace(FIRST, index=3)).inputs is not None
