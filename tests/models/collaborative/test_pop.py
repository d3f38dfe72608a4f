"""The popularity baseline."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import torch

from hasten.config import EvaluationOptions, TrainingOptions
from hasten.data.tables import TEST, TRAIN, VALID, Dataset, Interactions, Source, Vocabulary
from hasten.evaluation.protocols import ranking_task
from hasten.evaluation.ranker import evaluate
from hasten.models.collaborative.pop import Pop, PopOptions
from hasten.models.interface import Sizes
from hasten.ops.ranking.topk_all import topk_all
from hasten.registry import load_model

#: item 2 three times in train, 0 twice, 1 once; item 3 only outside of train
EVENTS = [
    (0, 2, TRAIN), (0, 0, TRAIN), (0, 3, VALID), (0, 3, TEST),
    (1, 2, TRAIN), (1, 0, TRAIN), (1, 2, TRAIN), (1, 1, TRAIN), (1, 2, VALID), (1, 0, TEST),
]  # fmt: skip


def dataset() -> Dataset:
    user, item, part = np.array(EVENTS).T
    return Dataset(
        "made",
        Vocabulary(pa.array(["a", "b"])),
        Vocabulary(pa.array(["p", "q", "r", "s"])),
        Interactions(user, item),
        part.astype(np.int8),
        "given",
        Source("made"),
    )


def fitted() -> Pop:
    model = Pop(PopOptions(), Sizes.of(dataset()))
    assert model.phases(dataset(), TrainingOptions()) == ()
    model.fit(dataset())
    return model


def test_counts_the_training_events_alone() -> None:
    model = fitted()
    assert model.counts.tolist() == [2, 1, 3, 0]
    model.fit(dataset())
    assert model.counts.tolist() == [2, 1, 3, 0]
    again = Pop(PopOptions(), Sizes.of(dataset()))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again.counts, model.counts)


def test_recommends_the_most_popular_to_everyone() -> None:
    task = ranking_task(dataset(), TEST, EvaluationOptions(), 0)
    scorer = fitted().scorer(task.queries)
    ids, scores = topk_all(scorer, 2, 4, 4, columns=3)
    assert ids.tolist() == [[2, 0, 1, 3]] * 2
    assert scores.tolist() == [[3.0, 2.0, 1.0, 0.0]] * 2


def test_is_evaluated_like_any_model() -> None:
    task = ranking_task(dataset(), TEST, EvaluationOptions(), 0)
    found = evaluate(fitted(), task, ["mr", "hr@2"], device=torch.device("cpu"))
    # user 0 knows 2, 0 and 3 (its target all the same): behind item 1 alone; user 1 first of 0, 3
    assert found.values == {"mr": 3.0, "hr@2": 0.5, "mr/masked": 1.5, "hr@2/masked": 1.0}


def test_is_registered() -> None:
    assert load_model("pop") is Pop
