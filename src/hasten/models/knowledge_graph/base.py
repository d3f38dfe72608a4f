"""Base classes of knowledge graph models: tables, reciprocal relations, losses, the scorer.

A model scores the answers of a query (h, r, ?). The query (?, r, t) for heads is (t, r + R, ?) with
the reciprocal relation r + R. There are five losses:

- ``1-n`` (KvsAll): binary cross-entropy over all entities, with all training answers of (h, r) as
  positives and label smoothing (Dettmers et al. 2018);
- ``1vsall``: cross-entropy of one answer among all entities (Lacroix et al. 2018);
- ``1-n-softmax``: the sum of the cross-entropies of ``1vsall`` over all training answers of (h, r).
  It computes q(h, r) once for all of them;
- ``sampled-softmax``: an estimate of ``1-n-softmax`` from the answers and k sampled entities, which
  all queries of a step share (:mod:`hasten.ops.losses.query_softmax`);
- ``sampled``: binary cross-entropy of one answer and k sampled entities that are not known answers.

The cost of the last two does not depend on the number of entities. An example, also called a query,
is a triple in one direction for ``1vsall`` and ``sampled``, else a distinct (entity, relation). The
methods below return sums over the queries of a batch, and the phase divides by their number. All
losses but ``sampled`` need a score of the form ``q(h, r) · e_t + b_t``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hasten.config import TrainingOptions
from hasten.data.tables import KnowledgeGraph
from hasten.models.interface import Model, Sizes
from hasten.models.knowledge_graph.triple_options import NEGATIVES, TripleOptions
from hasten.models.rows import Rows
from hasten.models.self_links import self_link_scores
from hasten.objectives.base import Phase
from hasten.objectives.completion import CompletionMicroBatch, CompletionPhase
from hasten.objectives.step_rows import StepRowsCompletionPhase, by_rows
from hasten.objectives.triple_examples import (
    KvsAllExamples,
    SampledKvsAllExamples,
    TripleExamples,
)
from hasten.ops.dense.group_moments import GroupMoments
from hasten.ops.ranking.scorer import Scorer
from hasten.ops.sharded_table import shardable_table
from hasten.ops.table import EmbeddingTable, Table
from hasten.ops.transfer import to_device
from hasten.scoring import PairScorer, TripleQueries, with_self_score

METRICS = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")


class TripleModel(Model):
    """Embeddings of entities, relations and reciprocal relations, for any score function.

    A subclass defines :meth:`scores`. With it alone only ``loss="sampled"`` works: declare
    ``loss: Literal["sampled"] = "sampled"`` in the subclass's options. For the losses over all
    entities see :class:`~hasten.models.knowledge_graph.factorized.FactorizedTripleModel`.
    """

    reads = "triples"
    sample = "families"
    defaults = {"evaluation.metrics": METRICS}
    #: queries that BatchNorm normalizes together; 1: the model has no BatchNorm
    group = 1
    #: added to the score of h as an answer to (h, r, ?), by relation: float32 [2R], or None
    self_link_scores: Tensor | None
    options: TripleOptions

    def __init__(self, options: TripleOptions, sizes: Sizes) -> None:
        super().__init__(options, sizes)
        self.entities: Table = shardable_table(sizes.entities, options.width)
        self.relations: Table = EmbeddingTable(2 * sizes.relations, options.width)
        self.register_buffer("self_link_scores", None, persistent=False)

    def attach(self, dataset: KnowledgeGraph) -> None:
        """With ``exclude_self``, find the relations that link no entity to itself in training."""
        if self.options.exclude_self:
            self.self_link_scores = self_link_scores(dataset)

    def rows_of(self) -> Mapping[str, Rows]:
        relation_rows = Rows.of("relations", "relations")
        return {"entities.weight": Rows.of("entities"), "relations.weight": relation_rows}

    @abstractmethod
    def scores(self, entity: Tensor, relation: Tensor, answers: Tensor) -> Tensor:
        """[B, K] float32 scores of int64 [B, K] answers to the queries (entity, relation, ?).

        entity: int64 [B]; relation: int64 [B], r + R for the reciprocal of r.
        """

    @property
    def biases_of_entities(self) -> tuple[str, ...]:
        """The names of the biases [N] that losses over all entities add to the scores."""
        return ()

    @property
    def reads_answers(self) -> bool:
        """Whether :meth:`losses` read the rows of the answers, beside the whole table."""
        return False

    @property
    def shards_loss(self) -> bool:
        """Whether the loss can be computed from a sharded entity table: no process has all rows."""
        return True

    @property
    def moments(self) -> Sequence[GroupMoments]:
        """The statistics that BatchNorm updates in training."""
        return [part for part in self.modules() if isinstance(part, GroupMoments)]

    def phases(self, dataset: KnowledgeGraph, training: TrainingOptions) -> Sequence[Phase]:
        """One phase: queries with all answers (KvsAll), or single triples in both directions."""
        options, entities, size = self.options, self.entities, training.batch_size
        examples: KvsAllExamples | TripleExamples
        negatives, draws = options.negatives or NEGATIVES.get(options.loss, 0), 0.0
        if options.loss == "sampled-softmax":
            examples = SampledKvsAllExamples(dataset, negatives)
            draws = size * (1 + examples.answers.lengths.mean()) + negatives
        elif options.loss in ("1-n", "1-n-softmax"):
            examples = KvsAllExamples(dataset, softmax=options.loss == "1-n-softmax")
        else:
            examples = TripleExamples(dataset, negatives)
            draws = size * (2 + negatives) if negatives else 0.0
        shard = training.shard_tables if self.shards_loss else "never"
        # large or sharded table: each step gathers the rows that its batch reads. Losses over all
        # entities (no draws) read the whole table, so they use this only for sharding
        if isinstance(entities, EmbeddingTable) and by_rows(entities, shard, whole=not draws):
            return [StepRowsCompletionPhase(self, examples, size, entities, draws, shard)]
        return [CompletionPhase(self, examples, size)]

    def losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        """:meth:`completion_loss` and :meth:`auxiliary_losses`, as (name, sum, weight) of each."""
        return [("loss", self.completion_loss(batch), 1.0), *self.auxiliary_losses(batch)]

    def completion_loss(self, batch: CompletionMicroBatch) -> Tensor:
        """The sum of the loss ``model.loss`` over the queries."""
        assert batch.negatives is not None, "losses over all entities need a factorized score"
        assert batch.target is not None
        ids = torch.cat([batch.target[:, None], batch.negatives], dim=1)
        scores = self.scores(batch.entity, batch.relation, ids)
        return self.sampled_loss(scores[:, 0], scores[:, 1:])

    def sampled_loss(self, true: Tensor, sampled: Tensor) -> Tensor:
        """The sum over triples of binary cross-entropy: scores [B] of answers, [B, k] of others."""
        return softplus(-true).sum() + softplus(sampled).sum()

    def auxiliary_losses(self, batch: CompletionMicroBatch) -> Sequence[tuple[str, Tensor, float]]:
        """Further losses of the queries: (name, sum over the queries, weight) of each."""
        return ()

    def example_losses(self, batch: CompletionMicroBatch) -> Tensor:
        """[B] the loss of each query of the batch, for ``hasten influence``."""
        assert batch.target is not None
        assert batch.negatives is not None
        ids = torch.cat([batch.target[:, None], batch.negatives], dim=1)
        # [B, 1, 1 + k]: for sampled_loss, each query is a batch of one
        scores = self.scores(batch.entity, batch.relation, ids)[:, None]
        losses: Tensor = torch.func.vmap(self.sampled_loss)(scores[..., 0], scores[..., 1:])
        return losses

    def scorer(self, queries: TripleQueries) -> Scorer:
        """The scores of all entities, block by block."""
        entity, relation = self._ids(queries)
        scorer = PairScorer(self.scores, entity, relation)
        return with_self_score(scorer, entity, self.self_scores(relation))

    def self_scores(self, relation: Tensor) -> Tensor | None:
        """[B] what is added to the score of an entity as an answer to its own query; None: 0."""
        added = self.self_link_scores
        return None if added is None else added.index_select(0, relation)

    def _ids(self, queries: TripleQueries) -> tuple[Tensor, Tensor]:
        ids = torch.from_numpy(queries.entity), torch.from_numpy(queries.relation)
        return to_device(ids, self.device)
