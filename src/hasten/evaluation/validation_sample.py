"""The ranking task of the evaluations during training: all queries, or a sample of them."""

from __future__ import annotations

from hasten.config import EvaluationOptions
from hasten.evaluation.protocols import AnyTask, RankingTask, sampled_rows


def while_training(task: AnyTask, options: EvaluationOptions, seed: int) -> AnyTask:
    """The task, or a sample of it: ``evaluation.users`` users or ``evaluation.triples`` triples.

    The sample depends on the seed only, not on the number of processes.
    """
    if isinstance(task, RankingTask):
        return task.sampled(options.users, seed) if isinstance(options.users, int) else task
    count = options.triples
    if not isinstance(count, int) or count >= task.triples:
        return task
    return task.of_triples(sampled_rows(task.triples, count, seed))
