import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.clones import clone
from bench.data import Sequences
from bench.padded import NegativeSampler, padded
from bench.plain_blocks import TokenBatch
from bench.plain_dropout import Dropout
from bench.plain_interval_attention import future_mask, gathered, intervals, written_out
from bench.plain_sasrec import PlainSASRec, evaluate
from bench.plain_tisasrec import PlainTiSASRec
from bench.pmixer_side import HandedBatches, batch_of, run_clone
from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.sasrec import SASRec, SASRecOptions
from hasten.models.sequential.tisasrec import TiSASRec, TiSASRecOptions
from hasten.objectives.next_item import NextItemPhase
from hasten.ops.attention.interval_attention import interval_attention_reference
from hasten.ops.buckets import Bucket


@pytest.fixture
def toy():
    """Three users: 1 2 3 4 5, then 2 1, then 5 4 3."""
    items = np.array([1, 2, 3, 4, 5, 2, 1, 5, 4, 3])
    times = np.array([10, 10, 14, 16, 90, 3, 4, 7, 7, 7])
    return Sequences(np.array([0, 5, 7, 10]), items, 6, times)


def test_padded_holds_the_last_events_on_either_side(toy):
    right = padded(toy, length=3, drop=0)
    assert right.inputs.tolist() == [[2, 3, 4], [2, 0, 0], [5, 4, 0]]
    assert right.targets.tolist() == [[3, 4, 5], [1, 0, 0], [4, 3, 0]]
    left = padded(toy, length=3, drop=0, left=True)
    assert left.inputs.tolist() == [[2, 3, 4], [0, 0, 2], [0, 5, 4]]
    assert left.targets.tolist() == [[3, 4, 5], [0, 0, 1], [0, 4, 3]]
    fewer = padded(toy, length=3, drop=2)
    assert fewer.targets.tolist() == [[2, 3, 0], [0, 0, 0], [0, 0, 0]]
    assert fewer.trained().tolist() == [0]


def test_times_are_those_of_the_inputs_in_the_smallest_gap(toy):
    times = padded(toy, 4, drop=0, left=True).times
    assert times.tolist() == [[1, 1, 3, 4], [0, 0, 0, 1], [0, 0, 1, 1]]
    assert padded(toy, 2, drop=2).times.tolist() == [[1, 1], [0, 0], [0, 0]]


def test_negatives_were_never_met(toy):
    sampler, generator = NegativeSampler(toy), np.random.default_rng(0)
    users = np.repeat([0, 2], 50)
    drawn = sampler.draw(users, generator)
    assert set(drawn[users == 0].tolist()) == {6}
    assert set(drawn[users == 2].tolist()) == {1, 2, 6}


def batch_from(data, length, negative=1):
    """All users with a target, the same negative everywhere."""
    arrays = padded(data, length, drop=0)
    return TokenBatch.of(arrays, arrays.trained(), np.full(arrays.counts.sum(), negative))


def test_padding_and_later_items_are_not_seen(toy):
    torch.manual_seed(0)
    model = PlainSASRec(6, width=8, blocks=2, heads=2, length=4, dropout=0.5).eval()
    arrays = padded(toy, 4, drop=0)
    none = np.empty(0, np.int64)
    with torch.no_grad():
        together = model.states(TokenBatch.of(arrays, np.arange(3), none))
        alone = [model.states(TokenBatch.of(arrays, np.array([row]), none)) for row in range(3)]
        torch.testing.assert_close(together, torch.cat(alone))
        changed = replace(arrays, inputs=np.where(arrays.inputs == 4, 6, arrays.inputs))
        other = model.states(TokenBatch.of(changed, np.array([0]), none))
    torch.testing.assert_close(other[:3], alone[0][:3])
    assert not torch.allclose(other[3], alone[0][3])


def copy_blocks(ours, plain):
    """Give hasten's model the weights of the plain one."""
    with torch.no_grad():
        ours.items.weight.copy_(plain.items.weight)
        for block, theirs in zip(ours.blocks, plain.blocks, strict=True):
            block.query_key_value.copy_(theirs.query_key_value.weight)
            theirs.query_key_value.bias.zero_()
            block.output.load_state_dict(theirs.out.state_dict())
            block.inner.load_state_dict(theirs.feed_forward[0].state_dict())
            block.outer.load_state_dict(theirs.feed_forward[3].state_dict())


@pytest.fixture
def short():
    """Two users of five and two events, nine items."""
    items, times = np.array([2, 5, 3, 8, 1, 7, 4]), np.array([0, 2, 3, 9, 40, 5, 6])
    return Sequences(np.array([0, 5, 7]), items, 9, times)


def assert_same_loss(ours, theirs, our_table, their_table):
    """Loss and gradient of the item table."""
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    (mine,) = torch.autograd.grad(ours, [our_table.weight])
    (other,) = torch.autograd.grad(theirs, [their_table.weight])
    torch.testing.assert_close(mine, other)


@pytest.mark.parametrize("loss", ["ce", "bce"])
def test_plain_sasrec_is_ours_where_nothing_is_dropped(loss, short):
    """The same loss as hasten's model with the same weights: the bench compares the same work."""
    torch.manual_seed(0)
    settings = {"width": 8, "heads": 2, "dropout": 0.0, "loss": loss, "feedforward": 2}
    plain = PlainSASRec(9, blocks=2, length=5, **settings).double()
    ours = SASRec(SASRecOptions(max_length=5, **settings), Sizes(users=2, items=9)).double()
    copy_blocks(ours, plain)
    with torch.no_grad():
        ours.positions.weight.copy_(plain.positions.weight)
    phase = NextItemPhase(
        ours,
        Histories(short.offsets, short.items - 1, None),
        item_count=9,
        batch_size=2,
        max_length=5,
        negative_count=loss == "bce",
    )
    batch = phase.build_micro_batch(phase.plan(0, 0, 0), np.array([0, 1]))
    if loss == "bce":
        batch = replace(batch, negatives=torch.full_like(batch.targets, 5)[:, None])
    mean = ours.next_item_loss(batch) / len(batch.targets)
    assert_same_loss(mean, plain(batch_from(short, 5, 6)), ours.items, plain.items)


def test_plain_tisasrec_is_ours_where_nothing_is_dropped(short):
    torch.manual_seed(0)
    plain = PlainTiSASRec(9, width=8, blocks=2, length=5, dropout=0.0, span=6, l2=0.3).double()
    options = TiSASRecOptions(
        width=8, max_length=5, dropout=0.0, span=6, loss="bce", embedding_l2=0.3
    )
    ours = TiSASRec(options, Sizes(users=2, items=9)).double()
    copy_blocks(ours, plain)
    with torch.no_grad():
        mine = (ours.key_positions, ours.value_positions, ours.key_intervals, ours.value_intervals)
        for table, theirs in zip(mine, (*plain.positions, *plain.intervals), strict=True):
            table.weight.copy_(theirs.weight)
    own = personal_times(Histories(short.offsets, short.items - 1, short.times), 5, unseen=1)
    phase = NextItemPhase(ours, own, item_count=9, batch_size=2, max_length=5, negative_count=1)
    planned = phase.plan(0, 0, 0)
    batch = phase.build_micro_batch(planned, planned.ids.numpy())
    batch = replace(batch, negatives=torch.full_like(batch.targets, 5)[:, None])
    (regularizer,) = phase.regularizers((), planned)
    mean = ours.next_item_loss(batch) / len(batch.targets) + 0.3 * regularizer.numerator
    assert_same_loss(mean, plain(batch_from(short, 5, 6)), ours.items, plain.items)


@pytest.mark.parametrize("form", [written_out, gathered])
def test_interval_attention_is_its_reference(form):
    torch.manual_seed(0)
    rows, length, width, span = 2, 5, 4, 6
    shapes = [(rows, length, width)] * 3 + [(span + 1, width)] * 2
    leaves = [torch.randn(s, dtype=torch.float64, requires_grad=True) for s in shapes]
    times, upper = torch.randint(0, 3, (rows, length)).cumsum(1), torch.randn(rows, length, width)
    out = form(*leaves, intervals(times, times[:, None], span), future_mask(length))
    flat = [x.view(-1, width) for x in leaves[:3]]
    expected = interval_attention_reference(
        *flat, *leaves[3:], times.view(-1), [Bucket(0, rows, length)], heads=1
    ).view_as(out)
    torch.testing.assert_close(out, expected)
    found, wanted = (torch.autograd.grad((x * upper).sum(), leaves) for x in (out, expected))
    torch.testing.assert_close(found, wanted)


def test_dropout_keeps_the_mean():
    torch.manual_seed(0)
    dropped = Dropout(0.2)(torch.ones(100, 1001))
    assert dropped.unique().tolist() == [0, pytest.approx(1.25, rel=0.01)]
    assert dropped.mean().item() == pytest.approx(1, abs=0.01)
    assert Dropout(0.2).eval()(dropped) is dropped


def test_plain_model_learns_a_cycle_and_is_ranked():
    torch.manual_seed(0)
    items = np.concatenate([(np.arange(8) + start) % 40 + 1 for start in range(40)])
    cycle = Sequences(np.arange(0, 321, 8), items, 40, np.zeros_like(items))
    arrays, sampler = padded(cycle, length=6, drop=2), NegativeSampler(cycle)
    users, generator = arrays.trained(), np.random.default_rng(0)
    model = PlainSASRec(40, width=16, blocks=1, heads=1, length=6, dropout=0.0)
    before = evaluate(model, cycle, 6)["ndcg@10"]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, fused=True)
    model.train()
    for _ in range(60):
        negatives = sampler.draw(np.repeat(users, arrays.counts[users]), generator)
        optimizer.zero_grad()
        model(TokenBatch.of(arrays, users, negatives)).backward()
        optimizer.step()
    after = evaluate(model, cycle, 6)
    assert after["ndcg@10"] > max(0.6, before)
    assert after["hr@10"] > 0.9


def test_batches_of_the_port_have_its_sampler_s_format(toy):
    arrays = padded(toy, 3, drop=0, left=True)
    rows, generator = np.array([2, 0]), np.random.default_rng(0)
    sampler = NegativeSampler(toy)
    users, inputs, targets, negatives = batch_of(arrays, rows, sampler, generator, None)
    assert users == [3, 1]
    assert [row.tolist() for row in inputs] == [[0, 5, 4], [2, 3, 4]]
    assert [row.tolist() for row in targets] == [[0, 4, 3], [3, 4, 5]]
    assert negatives[0][0] == 0
    assert negatives[1].tolist() == [6, 6, 6]
    assert {each.dtype.name for each in (*inputs, *targets, *negatives)} == {"int32"}
    parts = batch_of(arrays, rows, sampler, generator, 2)
    assert len(parts) == 6
    assert parts[3][1].tolist() == [[0, 2, 2], [2, 0, 1], [2, 1, 0]]


MAIN = """
import argparse
from utils import *
parser = argparse.ArgumentParser()
for name in ("--dataset", "--train_dir", "--device"):
    parser.add_argument(name, required=True)
args = parser.parse_args()
training, valid, test, users, items = data_partition(args.dataset)
sampler = WarpSampler(training, users, items, n_workers=3)
while True:
    print("loss in epoch 1 iteration 0:", sampler.next_batch() + len(training) + items)
"""


def test_a_clone_runs_until_the_batches_are_used_up(tmp_path, monkeypatch, toy):
    (tmp_path / "utils.py").write_text("def data_partition(name):\n    raise ValueError\n")
    (tmp_path / "main.py").write_text(MAIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.delitem(sys.modules, "utils", raising=False)
    monkeypatch.chdir(tmp_path)
    batches = HandedBatches([0.25, 0.5, 0.75], warmup=1)
    loss = run_clone(tmp_path, ["--device", "cpu"], toy, np.array([0, 2]), batches)
    assert loss == 0.75 + 2 + 6
    assert batches.seconds[0] > 0


def test_a_side_without_its_clone_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.delenv("SASREC", raising=False)
    with pytest.raises(SystemExit) as ended:
        clone("SASREC", "pmixer/SASRec.pytorch")
    assert ended.value.code == 2
    assert "set SASREC to the folder of a clone of pmixer/SASRec.pytorch" in capsys.readouterr().err
    monkeypatch.setenv("SASREC", str(tmp_path))
    assert clone("SASREC", "pmixer/SASRec.pytorch") == tmp_path.resolve()
