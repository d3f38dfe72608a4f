"""A batch that is divided over processes: each finds the rows and pairs of its own examples."""

from dataclasses import replace

import pytest
import torch

from hasten.build import build_model, load_data
from hasten.config_loading.build import build_config
from hasten.objectives import prefetch, step_rows
from hasten.objectives.pairwise import PairwisePhase
from hasten.objectives.prefetch import BatchRequest, Prefetcher
from hasten.objectives.step_rows import StepRows
from tests.contract.cases import graph, sequences

CPU = torch.device("cpu")
CASES = {
    "bce": ("sasrec", {"loss": "bce"}),
    "gbce": ("sasrec", {"loss": "gbce", "negatives": 3}),
    "sampled-softmax": ("sasrec", {"loss": "sampled-softmax", "negatives": 4}),
    "mixed": ("sasrec", {"loss": "sampled-softmax", "negatives": 6, "sampling": "mixed"}),
    "complex": ("complex", {"loss": "sampled", "negatives": 2}),
    "complex-softmax": ("complex", {"loss": "sampled-softmax", "negatives": 6}),
    "bprmf": ("bprmf", {}),
}


def phase_of(case, monkeypatch, rows=True):
    if rows:
        monkeypatch.setattr(step_rows, "MANY_ROWS", 0)
        monkeypatch.setattr(step_rows, "MIN_TABLE_TO_READ_RATIO", 0)
    model, options = CASES[case]
    settings = {f"model.{name}": value for name, value in options.items()}
    config = build_config(model, None, None, (), {**settings, "training.batch_size": 10})
    data = load_data(config, graph(90) if model == "complex" else sequences(50, 300))
    (phase,) = build_model(config, data, CPU).phases(data, config.training)
    return phase


def divided(batch, rank, processes, accumulate=1):
    first = rank * accumulate
    return batch.for_process(range(first, first + accumulate), processes * accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("processes", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_rows_of_the_parts_are_those_of_the_batch(case, processes, accumulate, monkeypatch):
    phase = phase_of(case, monkeypatch)
    for index in (0, phase.steps() - 1):
        batch = phase.plan(3, 1, index)
        whole = set(phase.table.read(batch).tolist())
        parts = [divided(batch, rank, processes, accumulate) for rank in range(processes)]
        own = [phase.table.read(part).tolist() for part in parts]
        assert all(rows == sorted(set(rows)) for rows in own)
        # sequences are padded with item 0, more or less in other parts
        padding = {0} if isinstance(phase, StepRows) else set()
        assert set().union(*own) - padding == whole - padding
        if index == 0:
            assert all(len(rows) < len(whole) for rows in own)


@pytest.mark.parametrize("case", CASES)
def test_a_phase_with_a_union_reads_the_rows_of_all_processes(case, monkeypatch):
    phase = phase_of(case, monkeypatch)
    batch = phase.plan(3, 1, 0)
    own = [set(phase.table.read(divided(batch, rank, 2)).tolist()) for rank in range(2)]
    given = []

    def union(rows):
        given.append(set(rows.tolist()))
        return torch.tensor(sorted(own[0] | own[1]))

    for rank in range(2):
        phase = phase_of(case, monkeypatch)
        phase.union = union
        part = divided(batch, rank, 2)
        read = phase.table.read(part)
        assert phase.table.read(part) is read  # a collective: once in a step
        assert read.tolist() == sorted(own[0] | own[1])
        assert given[rank] <= own[rank]
    assert len(given) == 2
    phase.table.read(batch)
    assert len(given) == 2  # of an undivided batch each process knows all rows


def test_pairs_of_a_part_are_those_of_the_batch(monkeypatch):
    phase = phase_of("bprmf", monkeypatch, rows=False)
    assert type(phase) is PairwisePhase
    batch = phase.plan(3, 1, 0)
    whole = phase.pairs(batch, batch.ids)
    sampled = []
    sample = phase.sample

    def counted(batch, ids):
        sampled.append(len(ids))
        return sample(batch, ids)

    monkeypatch.setattr(phase, "sample", counted)
    part = divided(batch, 1, 3)
    ((_, ids),) = part.local_micro_batches
    pairs = phase.pairs(part, ids)
    assert sampled == [len(ids)]
    for name in ("user", "positive", "negative"):
        assert torch.equal(getattr(pairs, name), getattr(whole, name)[1::3])
    assert phase.encode_inputs(part) == ()
    assert sampled == [len(ids)]


def test_the_prefetcher_divides_batches_that_read_many_rows(monkeypatch):
    phase = phase_of("sampled-softmax", monkeypatch)
    request = BatchRequest(3, 1, 0, range(1, 2), 2)
    assert phase.table.expected_rows < prefetch.MANY_ROWS
    plain = Prefetcher(phase, CPU).take(request)
    assert plain.local_micro_batches is None
    assert torch.equal(plain.inputs[0], phase.encode_inputs(plain))
    monkeypatch.setattr(prefetch, "MANY_ROWS", 0)
    batch = Prefetcher(phase, CPU).take(request)
    ((number, ids),) = batch.local_micro_batches
    assert number == 1
    assert torch.equal(ids, plain.ids[1::2])
    expected = phase.encode_inputs(
        replace(plain, local_micro_batches=[(1, ids)], global_micro_batches=2)
    )
    assert torch.equal(batch.inputs[0], expected)
    assert len(expected) < len(plain.inputs[0])
