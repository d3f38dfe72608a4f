"""RotatE as another package would write it."""

from __future__ import annotations

from typing import Literal

import torch
from torch.nn import functional as F

from hasten.config import ModelOptions
from hasten.models.interface import Model
from hasten.objectives.completion import CompletionPhase
from hasten.objectives.triple_examples import TripleExamples
from hasten.ops.table import EmbeddingTable


class RotationOptions(ModelOptions):
    name: Literal["rotation"] = "rotation"


class Rotation(Model):
    """RotatE with self-adversarial negatives, as another package would write it."""

    name = "rotation"
    summary = "rotations in the complex plane (Sun et al. 2019)"
    Options = RotationOptions
    defaults = {"evaluation.metrics": ("mrr",)}  # noqa: RUF012
    sample = "families"
    reads = "triples"
    group = 1
    moments = ()

    def __init__(self, options, sizes) -> None:
        super().__init__(options, sizes)
        self.entities = EmbeddingTable(sizes.entities, 6)
        self.angles = EmbeddingTable(2 * sizes.relations, 3)

    def phases(self, dataset, training):
        return [CompletionPhase(self, TripleExamples(dataset, 2), training.batch_size)]

    def scorer(self, queries):
        return _Scorer(self, *(torch.from_numpy(x) for x in (queries.entity, queries.relation)))

    def scores(self, entity, relation, candidates):
        """[B, k] for int64 [B, k] candidates."""
        real, imaginary = self.entities.rows(entity).chunk(2, -1)
        phase = self.angles.rows(relation)
        turned = torch.cat(
            [real * phase.cos() - imaginary * phase.sin(),
             real * phase.sin() + imaginary * phase.cos()], -1
        )  # fmt: skip
        distance = (turned[:, None] - self.entities.rows(candidates)).unflatten(-1, (2, -1))
        return 2.0 - distance.square().sum(-2).add(1e-12).sqrt().sum(-1)

    def example_losses(self, batch):
        if batch.answer_query is not None:  # all answers of a query
            everything = torch.arange(len(self.entities)).expand(len(batch.entity), -1)
            scores = self.scores(batch.entity, batch.relation, everything)
            labels = torch.zeros_like(scores)
            labels[batch.answer_query, batch.answer] = 1
            return F.binary_cross_entropy_with_logits(scores, labels, reduction="none").sum(1)
        candidates = torch.cat([batch.target[:, None], batch.negatives], 1)
        scores = self.scores(batch.entity, batch.relation, candidates)
        positive, negative = scores[:, 0], scores[:, 1:]
        weight = torch.softmax(negative.detach(), 1)
        return -F.logsigmoid(positive) - (weight * F.logsigmoid(-negative)).sum(1)

    def completion_loss(self, batch):
        return self.example_losses(batch).sum()

    def losses(self, batch):
        return [("loss", self.completion_loss(batch), 1.0)]


class _Scorer:
    def __init__(self, model, entity, relation) -> None:
        self.model, self.entity, self.relation = model, entity, relation

    def block(self, start, stop):
        candidates = torch.arange(start, stop).expand(len(self.entity), -1)
        return self.model.scores(self.entity, self.relation, candidates)
