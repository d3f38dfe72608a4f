"""Filtered ranking of both directions: against a second implementation, one candidate at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import nn

from hasten.config import EvaluationOptions
from hasten.data.tables import TEST, TRAIN, VALID, KnowledgeGraph, Source, Triples, Vocabulary
from hasten.evaluation.completion import completion_task
from hasten.evaluation.protocols import ranking_task
from hasten.evaluation.ranker import evaluate, values_by_query
from hasten.evaluation.validation_sample import validation_task
from hasten.models.interface import Model, Sizes
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.table import EmbeddingTable
from hasten.scoring import Catalog, FactorScorer, TripleQueries
from tests.evaluation.shares import metrics_of_shares

CPU = torch.device("cpu")
NAMES = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")
ENTITIES, RELATIONS = 40, 3


class Rounded(Model):
    """Scores rounded to quarters, so that many are equal."""

    def __init__(self) -> None:
        super().__init__(None, Sizes(entities=ENTITIES, relations=RELATIONS))
        torch.manual_seed(0)
        self.entities = EmbeddingTable(ENTITIES, 4)
        self.relations = EmbeddingTable(2 * RELATIONS, 4)
        for table in (self.entities, self.relations):
            table.weight.data.mul_(8).round_().div_(2)
        self.bias = nn.Parameter(torch.randint(-2, 3, (ENTITIES,)) / 4)
        self.encoded = 0

    def vectors(self, entity: torch.Tensor, relation: torch.Tensor) -> torch.Tensor:
        return self.entities.rows(entity) + self.relations.rows(relation)

    def scorer(self, queries: TripleQueries) -> Scorer:
        entity, relation = torch.from_numpy(queries.entity), torch.from_numpy(queries.relation)
        return FactorScorer(self.vectors(entity, relation), Catalog(self.entities, self.bias))


def make_graph(rank_last: bool = False) -> KnowledgeGraph:
    generator = np.random.default_rng(1)
    rows = np.unique(
        np.stack([generator.integers(0, n, 900) for n in (ENTITIES, RELATIONS, ENTITIES)], 1),
        axis=0,
    )
    rows = generator.permutation(rows)
    part = np.sort(generator.choice(3, len(rows), p=[0.7, 0.15, 0.15])).astype(np.int8)
    last = (part == TEST) & (rows[:, 0] % 7 == 0) if rank_last else np.zeros(len(rows), bool)
    return KnowledgeGraph(
        "made",
        Vocabulary(pa.array([f"e{i}" for i in range(ENTITIES)])),
        Vocabulary(pa.array([f"r{i}" for i in range(RELATIONS)])),
        Triples(*(rows[:, i].astype(np.int64) for i in range(3))),
        part,
        "given parts",
        Source("made"),
        last,
    )


def by_hand(model: Rounded, graph: KnowledgeGraph, part: int, ties: str) -> dict[str, float]:
    """Every triple and direction by itself, from a dense score row and sets of known triples."""
    facts = list(zip(*(c.tolist() for c in (
        graph.triples.head, graph.triples.relation, graph.triples.tail
    )), strict=True))  # fmt: skip
    known = set(facts)
    ranks, expected = [], []
    table, bias = model.entities.weight, model.bias
    with torch.no_grad():
        for number in np.flatnonzero(graph.part == part):
            head, relation, tail = facts[number]
            for asks_tail in (True, False):
                given = (head, relation) if asks_tail else (tail, relation + RELATIONS)
                answer = tail if asks_tail else head
                vector = model.vectors(torch.tensor([given[0]]), torch.tensor([given[1]]))[0]
                scores = (table @ vector + bias).tolist()
                rivals = [
                    scores[e] for e in range(ENTITIES)
                    if e != answer
                    and ((head, relation, e) if asks_tail else (e, relation, tail)) not in known
                ]  # fmt: skip
                greater = sum(s > scores[answer] for s in rivals)
                equal = sum(s == scores[answer] for s in rivals)
                if graph.rank_last[number]:
                    greater, equal = len(rivals), 0
                share = {"realistic": 0.5, "optimistic": 0, "pessimistic": 1}[ties]
                ranks.append(1 + greater + share * equal)
                expected.append((len(rivals) + 2) / 2)  # the mean of 1 .. rivals + 1
    found = np.array(ranks)
    hits = {f"hits@{k}": float((found <= k).mean()) for k in (1, 3, 10)}
    amri = 1 - (found.mean() - 1) / (np.mean(expected) - 1)
    return {"mrr": float((1 / found).mean()), **hits, "mr": float(found.mean()), "amri": amri}


@pytest.mark.parametrize("ties", ["realistic", "optimistic", "pessimistic"])
@pytest.mark.parametrize("part", [VALID, TEST])
def test_equals_one_candidate_at_a_time(part, ties):
    model, graph = Rounded(), make_graph()
    task = ranking_task(graph, part, EvaluationOptions(ties=ties), 0)
    found = evaluate(model, task, NAMES, device=CPU)
    assert found.values == pytest.approx(by_hand(model, graph, part, ties), rel=1e-12)
    assert f"{ties} ties" in found.protocol
    assert "filtered ranking of 40 entities by train, valid and test" in found.protocol


def test_misses_rank_behind_all_competitors():
    model, graph = Rounded(), make_graph(rank_last=True)
    task = completion_task(graph, TEST, EvaluationOptions())
    found = evaluate(model, task, NAMES, device=CPU)
    assert found.values == pytest.approx(by_hand(model, graph, TEST, "realistic"), rel=1e-12)
    assert f"ranked last ({2 * int(graph.rank_last.sum())} of test)" in found.protocol


def test_sharing_changes_nothing(monkeypatch):
    model = Rounded()
    task = completion_task(make_graph(), TEST, EvaluationOptions())
    whole = evaluate(model, task, NAMES, device=CPU).values
    for parts in (2, 3):
        assert metrics_of_shares(model, task, NAMES, parts, CPU) == whole


def test_sampled_triples_have_the_ranks_of_the_full_ranking():
    model, options = Rounded(), EvaluationOptions(triples=15)
    task = completion_task(make_graph(rank_last=True), TEST, options)
    sample = validation_task(task, options, 0)
    chosen, counts = np.unique(sample.triple, return_counts=True)
    assert (len(chosen), set(counts.tolist())) == (15, {2})
    assert not np.array_equal(chosen, np.unique(validation_task(task, options, 1).triple))
    whole, found = (evaluate(model, each, NAMES, device=CPU) for each in (task, sample))
    kept = np.isin(task.triple, chosen)
    for one, other in zip(
        vars(found.rank_counts).values(), vars(whole.rank_counts).values(), strict=True
    ):
        assert np.array_equal(one, other[kept])
    assert "ties, a sample of 15 triples" in found.protocol
    for parts in (2, 3):  # the same for any number of processes
        assert metrics_of_shares(model, sample, NAMES, parts, CPU) == found.values
    reciprocal = values_by_query(sample, found.rank_counts, ["mrr"])["mrr"].sums
    of_triples = [reciprocal[sample.triple == triple].mean() for triple in chosen]
    assert found.values["mrr"] == pytest.approx(np.mean(of_triples))
    assert found.margins["mrr"] == pytest.approx(1.96 * np.std(of_triples) / np.sqrt(15))
    assert validation_task(task, EvaluationOptions(triples=task.triples), 0) is task


def test_a_random_model_has_an_amri_near_zero_and_a_constant_one_exactly():
    model = Rounded()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    task = completion_task(make_graph(), TEST, EvaluationOptions())
    found = evaluate(model, task, ["amri", "hits@1"], device=CPU).values
    assert found == {"amri": 0.0, "hits@1": 0.0}


def test_a_diverged_model_ranks_last():
    model = Rounded()
    with torch.no_grad():
        model.bias.fill_(torch.nan)
    task = completion_task(make_graph(), TEST, EvaluationOptions())
    found = evaluate(model, task, ["mrr", "amri"], device=CPU).values
    assert found["amri"] == -1.0
    assert found["mrr"] < 0.05


def test_the_graph_is_encoded_once_for_all_queries(monkeypatch):
    from contextlib import contextmanager

    model = Rounded()

    @contextmanager
    def encoded_once():
        assert torch.is_inference_mode_enabled()
        model.encoded += 1
        yield

    model.encoded_once = encoded_once
    task = completion_task(make_graph(), TEST, EvaluationOptions())
    evaluate(model, task, ["mrr"], device=CPU)
    assert model.encoded == 1


def test_without_triples_there_are_no_queries():
    graph = make_graph()
    train = graph.part == TRAIN
    only = replace(
        graph, triples=graph.of(TRAIN), part=graph.part[train], rank_last=graph.rank_last[train]
    )
    assert len(completion_task(only, TEST, EvaluationOptions()).queries) == 0
