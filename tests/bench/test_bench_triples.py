"""The plain sides of ConvE and of influence compute what they are compared for."""

import json

import numpy as np
import torch
from torch.nn import functional as F

from bench import influence_growth, plain_complex
from bench.plain_conve import OneToN, PlainConvE, rows_of
from bench.plain_influence import PlainTracIn


def test_rows_are_the_distinct_queries_with_their_answers():
    head, relation, tail = np.array([[0, 0, 2], [1, 1, 0], [3, 2, 3]])
    entity, asked, offsets, answers = rows_of(head, relation, tail, 4, 2)
    found = {
        (e, r): sorted(answers[a:b].tolist())
        for e, r, a, b in zip(entity, asked, offsets[:-1], offsets[1:], strict=True)
    }
    assert found == {(0, 1): [2, 3], (2, 0): [3], (3, 3): [0], (2, 3): [0], (3, 2): [2]}


def test_the_loss_of_residuals_is_the_cross_entropy_of_smoothed_labels():
    scores = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    place = torch.tensor([0, 3, 9, 20, 21, 34])
    labels = torch.zeros(35, dtype=torch.float64).index_fill_(0, place, 1.0).view(5, 7)
    wanted = F.binary_cross_entropy_with_logits(scores, 0.9 * labels + 0.1 / 7)
    found = OneToN.apply(scores, place, 0.1)
    torch.testing.assert_close(found, wanted)
    (grad,) = torch.autograd.grad(3 * found, scores)
    torch.testing.assert_close(grad, torch.autograd.grad(3 * wanted, scores)[0])


def test_the_plain_softmax_counts_every_answer_and_the_sample():
    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    scores = torch.randn(5, generator=draw, dtype=torch.float64)
    row = torch.tensor([0, 0, 1, 2, 2])
    totals = [torch.logsumexp(torch.cat([logits[r], scores[row == r]]), 0) for r in range(3)]
    wanted = sum(totals[r] - score for r, score in zip(row.tolist(), scores, strict=True))
    torch.testing.assert_close(plain_complex.row_loss(logits, scores, row), wanted)


def test_the_first_plain_step_by_rows_is_that_of_the_whole_table(monkeypatch):
    for name, value in {"WIDTH": 6, "BATCH": 3, "DROPOUT": 0.0}.items():
        monkeypatch.setattr(plain_complex, name, value)
    read, row = torch.tensor([1, 2, 4, 7, 8]), torch.tensor([0, 1, 1, 2])
    answer, item = torch.tensor([3, 1, 4, 0]), torch.tensor([0, 2, 3])
    batch = (read, torch.tensor([0, 1, 1]), answer, item, torch.tensor([2, 0, 3]), row,
             torch.tensor([2, 6]), torch.tensor([0.1, 0.5, 0.2]))  # fmt: skip
    found = []
    for by_rows in (False, True):
        torch.manual_seed(0)
        model = plain_complex.PlainComplEx(9, 2, 0.1, by_rows)
        before = model.table.detach().clone()
        found.append((model.step(batch), model.table.detach(), model.asked.detach(), model.bias))
        moved = (model.table.detach() != before).any(1)
        assert moved.nonzero()[:, 0].tolist() == read.tolist()
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other))


def test_scores_are_products_of_gradients_written_out():
    torch.manual_seed(0)
    relations, label = 2, 0.91
    model = PlainConvE(6, 2 * relations, channels=2).eval()
    for norm in (model.input_norm, model.feature_norm, model.hidden_norm):
        torch.nn.init.uniform_(norm.running_mean, -0.1, 0.1)
        torch.nn.init.uniform_(norm.running_var, 0.5, 1.5)
        torch.nn.init.uniform_(norm.weight, 0.5, 1.5)
    train = torch.tensor([[0, 1, 2], [3, 0, 0], [4, 1, 4], [2, 1, 5], [0, 1, 3]])
    tests = torch.tensor([[0, 1, 4], [4, 1, 2], [5, 0, 1]])

    def gradient(triple):
        total = 0.0
        for entity, relation, answer in (triple, (triple[2], triple[1] + relations, triple[0])):
            vector = model.vectors(entity[None], relation[None])
            score = vector @ model.entities(answer) + model.bias[answer]
            total = total + F.binary_cross_entropy_with_logits(score, torch.full((1,), label))
        found = torch.autograd.grad(total, list(model.parameters()))
        return torch.cat([each.flatten() for each in found])

    wanted = torch.stack([gradient(t) for t in tests]) @ torch.stack([gradient(t) for t in train]).T
    found = PlainTracIn(model, relations, label).scores(tests, train, chunk=2)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_side_ends_where_its_next_size_would_take_too_long(tmp_path, monkeypatch):
    asked = []

    def run_side(side, threads, keep_pages, timeout):
        words = side.command.split()
        how, train = words[words.index("--how") + 1], int(words[words.index("--train") + 1])
        asked.append((how, train))
        seconds = (train or 5000) * {"captum": 0.1, "plain": 0.01, "hasten": 0.001}[how]
        return {"epoch_seconds": seconds, "examples_per_epoch": 20 * (train or 5000)}

    monkeypatch.setattr(influence_growth, "run_side", run_side)
    arguments = ["--sizes", "100", "1000", "2000", "0", "--rounds", "2", "--limit", "15"]
    assert influence_growth.main([*arguments, "--provisional"], tmp_path) == 0
    sides = ["captum", "plain", "hasten"]
    assert asked[:6] == [(how, 100) for how in (*sides, *reversed(sides))]
    assert asked[6:] == [
        *((how, 1000) for how in ("plain", "hasten", "hasten", "plain")),
        *((how, 2000) for how in ("hasten", "hasten")),
        *((how, 0) for how in ("hasten", "hasten")),
    ]
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["lines"][1]["seconds"]["plain"]["median"] == 10.0
    assert "| 1,000 |  | 10 | 1 |" in path.with_suffix(".md").read_text()
