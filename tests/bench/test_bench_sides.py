import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import data as bench_data
from bench.book_graph import BookGraph
from bench.data import Sequences
from bench.facts_split import parts_of
from bench.kgat_side import dataset_of
from bench.lightgcn_side import L2, PlainLightGCN
from bench.plain_sasrec import PlainSASRec, evaluate, padded, sample_negatives
from bench.plain_tisasrec import PlainTiSASRec, padded_times
from bench.recbole_side.run import TimedBatches, write_atomic_file
from bench.report import Stopwatch, print_report
from hasten.config import RunConfig, TrainingOptions
from hasten.data.tables import Histories
from hasten.models.collaborative.lightgcn import LightGCN, LightGCNOptions
from hasten.models.interface import Sizes
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.tisasrec import TiSASRec, TiSASRecOptions, TiSASRecPhase


@pytest.fixture
def toy():
    """Three users: 1 2 3 4 5, then 2 1, then 5 4 3."""
    items = np.array([1, 2, 3, 4, 5, 2, 1, 5, 4, 3])
    times = np.array([10, 10, 14, 16, 90, 3, 4, 7, 7, 7])
    return Sequences(np.array([0, 5, 7, 10]), items, 6, times)


def test_padded_puts_the_last_events_on_the_right(toy):
    inputs, targets = padded(toy, length=3, drop=0)
    assert inputs.tolist() == [[2, 3, 4], [0, 0, 2], [0, 5, 4]]
    assert targets.tolist() == [[3, 4, 5], [0, 0, 1], [0, 4, 3]]
    inputs, targets = padded(toy, length=3, drop=2)
    assert targets.tolist() == [[0, 2, 3], [0, 0, 0], [0, 0, 0]]


def test_negatives_stand_at_targets_and_were_never_met(toy):
    _, targets = padded(toy, length=4, drop=0)
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(50):
        negatives = sample_negatives(toy, targets, generator)
        assert ((negatives != 0) == (targets != 0)).all()
        seen |= set(negatives[2][negatives[2] > 0].tolist())
    assert set(negatives[0].tolist()) == {6}
    assert seen == {1, 2, 6}


def test_state_depends_on_no_later_item():
    torch.manual_seed(0)
    model = PlainSASRec(9, width=8, blocks=2, heads=2, length=5, dropout=0.5).eval()
    one, other = torch.tensor([[0, 3, 4, 5, 6]]), torch.tensor([[0, 3, 4, 8, 9]])
    with torch.no_grad():
        torch.testing.assert_close(model(one)[:, :3], model(other)[:, :3])
        assert not torch.allclose(model(one)[:, 3], model(other)[:, 3])


def test_times_are_those_of_the_inputs_in_the_smallest_gap(toy):
    assert padded_times(toy, 4, drop=0).tolist() == [[1, 1, 3, 4], [0, 0, 0, 1], [0, 0, 1, 1]]
    assert padded_times(toy, 2, drop=2).tolist() == [[1, 1], [0, 0], [0, 0]]


def test_plain_tisasrec_is_ours_where_nothing_is_dropped():
    """The same loss as hasten's model with the same weights: the bench compares the same work."""
    torch.manual_seed(0)
    plain = PlainTiSASRec(9, width=8, blocks=2, heads=2, length=5, dropout=0.0, span=6).double()
    options = TiSASRecOptions(
        width=8, heads=2, max_length=5, dropout=0.0, span=6, loss="bce", embedding_l2=0.3
    )
    ours = TiSASRec(options, Sizes(users=2, items=9)).double()
    with torch.no_grad():
        ours.items.weight.copy_(plain.items.weight[1:])
        for table, theirs in zip(
            (ours.key_positions, ours.value_positions), plain.positions, strict=True
        ):
            table.weight.copy_(theirs.weight.flip(0))
        for table, theirs in zip(
            (ours.key_intervals, ours.value_intervals), plain.intervals, strict=True
        ):
            table.weight.copy_(theirs.weight)
        for block, theirs in zip(ours.blocks, plain.blocks, strict=True):
            block.query_key_value.copy_(theirs.attention.query_key_value.weight)
            theirs.attention.query_key_value.bias.zero_()
            for mine, other in (
                (block.output, theirs.attention.out),
                (block.inner, theirs.feed_forward.first),
                (block.outer, theirs.feed_forward.second),
            ):
                mine.load_state_dict(other.state_dict())
    items, times = np.array([2, 5, 3, 8, 1, 7, 4]), np.array([0, 2, 3, 9, 40, 5, 6])
    data = Sequences(np.array([0, 5, 7]), items, 9, times)
    inputs, targets = padded(data, 5, drop=0)
    negatives = np.where(targets == 0, 0, 6)
    batch = (inputs, padded_times(data, 5, drop=0), targets, negatives)
    theirs = plain.loss(*(torch.from_numpy(part) for part in batch), 0.3)
    own = personal_times(Histories(data.offsets, items - 1, times), 5, unseen=1)
    phase = TiSASRecPhase(ours, own, items=9, batch_size=2, max_length=5, negatives=1)
    planned = phase.plan(0, 0, 0)
    laid_out = phase.lay_out(planned, planned.ids.numpy())
    laid_out = replace(laid_out, negatives=torch.full_like(laid_out.targets, 5)[:, None])
    squares = plain.items.weight[0].square().sum()
    assert squares == 0
    (regularizer,) = phase.regularizers((), planned)
    mean = ours.next_item_loss(laid_out) / len(laid_out.targets) + 0.3 * regularizer.numerator
    assert mean.item() == pytest.approx(theirs.item(), rel=1e-6)


def test_plain_model_learns_a_cycle_and_is_ranked(toy):
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    items = np.concatenate([(np.arange(8) + start) % 40 + 1 for start in range(40)])
    cycle = Sequences(np.arange(0, 321, 8), items, 40, np.zeros_like(items))
    inputs, targets = padded(cycle, length=6, drop=2)
    model = PlainSASRec(40, width=16, blocks=1, heads=1, length=6, dropout=0.0)
    before = evaluate(model, cycle, 6)["ndcg@10"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model.train()
    for _ in range(60):
        negatives = sample_negatives(cycle, targets, generator)
        optimizer.zero_grad()
        batch = (torch.from_numpy(part) for part in (inputs, targets, negatives))
        model.loss(*batch).backward()
        optimizer.step()
    after = evaluate(model, cycle, 6)
    assert after["ndcg@10"] > max(0.6, before)
    assert after["hr@10"] > 0.9


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
    assert (len(beauty), beauty.catalogue, len(beauty.items)) == (22_363, 12_101, 198_502)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_plain_lightgcn_has_the_loss_of_ours():
    none = np.zeros(0, np.int64)
    data = BookGraph(
        np.array([0, 0, 1, 2, 2]), np.array([0, 1, 1, 2, 0]), none, none, none, 3, 4, 4, 0
    )
    torch.manual_seed(0)
    plain = PlainLightGCN(data)
    dataset = dataset_of(data)
    options = LightGCNOptions(l2=L2)
    model = LightGCN(options, Sizes.of(dataset))
    config = RunConfig(model=options, training=TrainingOptions(batch_size=4))
    (phase,) = model.phases(dataset, config.training)
    with torch.no_grad():  # items first here, users first there
        model.nodes.weight.copy_(torch.cat([plain.table[3:], plain.table[:3]]))
    batch = phase.plan(0, 0, 0)
    found = phase.pairs(batch, batch.ids)
    terms = phase.terms(phase.encode(batch), batch, batch.ids)
    ours = sum(t.numerator * t.weight / t.denominator for t in terms)
    torch.testing.assert_close(ours, plain.loss(found.user, found.positive, found.negative))


def test_fixed_parts_take_a_tenth_of_each_user():
    user = np.repeat(np.arange(3), [40, 10, 4])
    part = parts_of(user)
    counts = [np.bincount(part[user == u], minlength=3).tolist() for u in range(3)]
    assert counts == [[32, 4, 4], [8, 1, 1], [4, 0, 0]]
    assert np.array_equal(part, parts_of(user))
