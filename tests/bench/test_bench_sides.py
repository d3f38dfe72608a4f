import json

import numpy as np
import pytest

from bench import data as bench_data
from bench.facts_split import parts_of
from bench.recbole_side.run import TimedBatches, write_atomic_file
from bench.report import Stopwatch, print_report


@pytest.mark.parametrize(("limit", "handed", "timed"), [(2, 3, 2), (None, 5, 4), (9, 5, 4)])
def test_timed_batches_hand_out_what_is_measured(limit, handed, timed):
    clock = Stopwatch()
    clock.restart = lambda: started.append(len(got))
    started, got = [], []
    batches = TimedBatches([10, 11, 12, 13, 14], warmup=1, limit=limit, clock=clock)
    for batch in batches:
        got += [batch]
    assert len(got) == handed
    assert batches.timed == timed
    assert started == [1]
    assert len(batches) == 5
    assert batches.index(12) == 2


def test_atomic_file_keeps_the_order_of_equal_times(tmp_path, monkeypatch):
    user, item, time = np.array([2, 1, 2, 2]), np.array([7, 8, 9, 5]), np.array([4, 1, 4, 3])
    monkeypatch.setattr("bench.recbole_side.run.events", lambda name: (user, item, time))
    write_atomic_file("toy", tmp_path)
    lines = (tmp_path / "toy" / "toy.inter").read_text().splitlines()
    assert lines[0] == "user_id:token\titem_id:token\ttimestamp:float"
    assert lines[1:] == ["1\t8\t0", "2\t5\t0", "2\t7\t1", "2\t9\t2"]


def test_report_extrapolates_to_an_epoch(capsys):
    print_report(
        wall=2.0,
        cpu=3.0,
        steps=4,
        steps_per_epoch=10,
        examples_per_epoch=7,
        versions={},
        threads=1,
        loss=0.5,
    )
    report = json.loads(capsys.readouterr().out)
    assert (report["epoch_seconds"], report["epoch_cpu_seconds"]) == (5.0, 7.5)
    assert report["peak_memory_bytes"] > 1 << 20
    assert report["loss"] == 0.5


@pytest.mark.data
def test_shared_sequences_have_the_published_counts(shared_data, monkeypatch):
    monkeypatch.setattr(bench_data, "data_folder", lambda: shared_data)
    beauty = bench_data.sequences("beauty")
    assert (len(beauty), beauty.catalog, len(beauty.items)) == (22_363, 12_101, 198_502)


def test_fixed_parts_take_a_tenth_of_each_user():
    user = np.repeat(np.arange(3), [40, 10, 4])
    part = parts_of(user)
    counts = [np.bincount(part[user == u], minlength=3).tolist() for u in range(3)]
    assert counts == [[32, 4, 4], [8, 1, 1], [4, 0, 0]]
    assert np.array_equal(part, parts_of(user))
