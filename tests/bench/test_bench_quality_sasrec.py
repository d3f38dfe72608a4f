import numpy as np
import pytest
import torch

from bench.quality_sasrec import METRICS, Network, Scores, metrics, read, states
from hasten.evaluation.metrics import metrics_per_query
from hasten.ops.graph.csr import CSR
from hasten.ops.ranking.lists import RankingLists
from hasten.ops.ranking.rank_all import rank_all


class Given:
    """Scores that are at hand."""

    def __init__(self, scores):
        self.scores = scores

    def block(self, start, stop):
        return self.scores[:, start:stop].clone()


def test_its_metrics_are_those_of_hasten():
    torch.manual_seed(0)
    scores = torch.randint(0, 12, (40, 31)).float()  # many ties
    histories = [1 + torch.randperm(30)[:length] for length in torch.randint(1, 9, (40,)).tolist()]
    targets = torch.randint(1, 31, (40,))
    histories[0][0] = targets[0]  # a repeated item
    queries = np.arange(41)
    lengths = np.cumsum([0, *map(len, histories)])
    counts = rank_all(
        Given(scores[:, 1:]),
        30,
        RankingLists.of(
            CSR(queries, targets.numpy() - 1), CSR(lengths, torch.cat(histories).numpy() - 1)
        ),
    )
    counts = counts.masked()
    theirs = metrics_per_query(METRICS, queries, counts.higher.numpy(), counts.tied.numpy())
    found = metrics(scores.clone(), targets, histories)
    for name, column in zip(METRICS, found.T, strict=True):
        np.testing.assert_allclose(column, theirs[name].values, rtol=1e-12)
    assert 0 < found[:, 1].mean() < 1


def test_scores_of_sampled_items_and_their_gradients_are_those_of_gathered_rows():
    torch.manual_seed(0)
    given = torch.randn(50, 8, requires_grad=True)
    table = torch.randn(20, 8, requires_grad=True)
    items, grad = torch.randint(0, 20, (50, 7)), torch.randn(50, 7)
    found, plain = Scores.apply(given, table, items), (given[:, None] * table[items]).sum(2)
    torch.testing.assert_close(found, plain)
    gradients = (torch.autograd.grad(each, (given, table), grad) for each in (found, plain))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_states_depend_neither_on_padding_nor_on_later_items():
    torch.manual_seed(0)
    model = Network(9, 8).eval()
    sequences = [1 + torch.randint(9, (length,)) for length in (5, 1, 3, 50)]
    with torch.no_grad():
        together = states(model, sequences).split([5, 1, 3, 50])
        for sequence, state in zip(sequences, together, strict=True):
            torch.testing.assert_close(model([sequence]), state)
        changed = sequences[0].clone()
        changed[-1] = changed[-1] % 9 + 1
        torch.testing.assert_close(model([changed])[:-1], together[0][:-1])
        assert not torch.allclose(model([changed])[-1], together[0][-1])


def test_events_are_read_by_time_and_then_as_in_the_file(tmp_path):
    (tmp_path / "Beauty_item_org_rank.txt").write_text("1 7 8 9\n2 3 4\n")
    (tmp_path / "Beauty_time_org_rank.txt").write_text("1 20 10 20\n2 5 5\n")
    assert [each.tolist() for each in read(tmp_path)] == [[8, 7, 9], [3, 4]]


@pytest.mark.parametrize("held_out", [1, 2])
def test_evaluation_ranks_the_held_out_item_after_those_before_it(held_out, monkeypatch):
    import bench.quality_sasrec as bench

    histories, seen = [torch.tensor([1, 2, 3, 4]), torch.tensor([5, 6, 7])], []

    def noted(scores, targets, known):
        seen.append((targets.tolist(), [each.tolist() for each in known]))
        return metrics(scores, targets, known)

    monkeypatch.setattr(bench, "metrics", noted)
    found = bench.evaluate(Network(40, 8), histories, held_out)
    targets, known = ([4, 7], [[1, 2, 3], [5, 6]]) if held_out == 1 else ([3, 6], [[1, 2], [5]])
    assert seen == [(targets, known)]
    assert set(found) == set(METRICS)
