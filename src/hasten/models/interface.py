"""The interface between a model and what is written once: training, evaluation, export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hasten.data.graph.node_types import type_sizes
from hasten.data.tables import AnyDataset, KnowledgeGraph
from hasten.ops.ranking.scorer import Scorer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from hasten.config import RunConfig
    from hasten.objectives.base import Phase


@dataclass(frozen=True)
class Sizes:
    """What a model must know of the data to be built, and to be rebuilt from a run folder.

    relations: those of the data, without their reciprocals. modalities: (name, width) of the
    features of the items. node_features: widths of the given features by type of node, 0 where a
    type has none; () where none has.
    """

    users: int = 0
    items: int = 0
    entities: int = 0
    relations: int = 0
    node_types: tuple[int, ...] = ()
    modalities: tuple[tuple[str, int], ...] = ()
    node_features: tuple[int, ...] = ()

    @classmethod
    def of(cls, dataset: AnyDataset) -> Sizes:
        if isinstance(dataset, KnowledgeGraph):
            entities, relations = len(dataset.entities), len(dataset.relations)
            kinds = type_sizes(dataset)
            given = {number: each.width for number, each in dataset.features}
            widths = tuple(given.get(t, 0) for t in range(len(kinds))) if given else ()
            return cls(
                entities=entities, relations=relations, node_types=kinds, node_features=widths
            )
        facts = dataset.facts
        return cls(
            users=len(dataset.users),
            items=len(dataset.items),
            entities=0 if facts is None else len(facts.entities),
            relations=0 if facts is None else len(facts.relations),
            modalities=tuple((m.name, m.width) for m in dataset.modalities),
        )


class Model(Protocol):
    """A scorer plus its training phases. Implementations are ``nn.Module`` classes.

    ``reads`` declares the data that a model reads: ``"interactions"`` (the default), ``"pairs"``
    (users and items without order), ``"facts"`` (with a knowledge graph about the items),
    ``"features"`` (with item features), ``"triples"``, or ``"typed_graph"`` (with node features);
    see :data:`hasten.registry.READS`. One to which the times of a history
    matter has ``reads_times = True``. One that may start from the weights of another model has
    ``adopt(weights)``, which takes them and returns whether they were such. One declares which
    options of a run it supports as ``supports``, a :class:`hasten.models.supports.Supports`.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    Options: ClassVar[type[BaseModel]]
    #: training defaults that differ from the general ones, e.g. {"lr": 1e-3}; keys of other
    #: sections are written whole: {"evaluation.metrics": ("mrr",)}
    defaults: ClassVar[Mapping[str, Any]]
    #: the built-in sample that is used when no data are named
    sample: ClassVar[str]
    #: models of users and items: whether a user who was not trained on can be scored by a history
    scores_new_users: ClassVar[bool]

    def phases(self, dataset: Any, config: RunConfig) -> Sequence[Phase]:
        """Its training phases over this dataset, in the order of an epoch.

        dataset: a Dataset, or a KnowledgeGraph for models that read triples. A model without
        gradient steps has none, and a method ``fit(dataset)`` instead.
        """
        ...

    def scorer(self, queries: Any) -> Scorer:
        """Scores of these queries against the catalogue, block by block.

        queries: RecommenderQueries, or TripleQueries for models that read triples. A model that
        encodes its whole graph offers a context manager ``encoded_once()`` beside this method: the
        ranker enters it once for all the queries of an evaluation.
        """
        ...
