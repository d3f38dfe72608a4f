"""Row-wise Adam on a mapped file takes the steps that it takes in memory; events under a limit."""

from __future__ import annotations

import torch

from bench.mapped_tables import RECORD, STEPS, MappedFile, draw, measure
from bench.stored_events import run


def test_steps_on_a_file_are_those_in_memory(tmp_path):
    file = MappedFile(tmp_path / "table", 3000)
    assert (tmp_path / "table").stat().st_size == 3000 * RECORD
    table = file.tensor.clone()
    file.close()
    before = table.clone()
    found, distinct = measure(table, "uniform", 200, None, "memory")
    assert found.written == 0
    for memory in ("quarter", "ahead"):
        again = MappedFile(tmp_path / memory, 3000)
        measure(again.tensor, "uniform", 200, again, memory)
        assert torch.equal(again.tensor, table)
        again.close()
    changed = (table != before).any(2).any(1).sum()
    touched = torch.cat([draw("uniform", 3000, 200, step) for step in range(STEPS + 1)])
    assert changed == len(touched.unique())
    assert 150 < distinct <= 200


def test_laws_differ_in_how_often_and_where_rows_are_read():
    uniform, scattered, sorted_ = (
        draw(law, 10_000, 4000, 0) for law in ("uniform", "zipf, scattered", "zipf, sorted")
    )
    assert len(scattered) == len(sorted_) < 0.7 * len(uniform)
    assert (sorted_ < 2500).float().mean() > 1.5 * (scattered < 2500).float().mean()


def test_a_command_in_a_limited_address_space():
    assert run(["data", "list"], None).status == 0
    limited = run(["data", "list"], 10_000_000)
    assert limited.status != 0
