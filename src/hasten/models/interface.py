"""The model interface: what training, evaluation, inference and the command line call.

A model is a subclass of :class:`Model`. It must define the class attributes without a default and
``scorer``; every other method is a hook that does nothing by default. Capabilities of some models
are separate protocols: :class:`NodeEmbedder`, :class:`PathExplainer` and :class:`ExampleLosses`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hasten.config import ModelOptions, RunConfig, TrainingOptions
from hasten.data.graph.node_types import NodeTypes, type_sizes
from hasten.data.tables import AnyDataset, KnowledgeGraph
from hasten.models.data_size import DataSize
from hasten.models.rows import Rows
from hasten.models.search_space import SearchSpace
from hasten.models.supports import Supports
from hasten.objectives.base import Phase
from hasten.ops.ranking.scorer import Scorer

if TYPE_CHECKING:
    from hasten.ops.graph.best_paths import PathGraph

#: the data that a model trains on: interactions; sequences of them, with item features; user-item
#: pairs; pairs with a knowledge graph about the items; pairs with item features; triples; typed
#: graphs with node features (see ``hasten.config.data.READS``)
Reads = Literal["interactions", "sequences", "pairs", "facts", "features", "triples", "typed_graph"]


@dataclass(frozen=True)
class Sizes:
    """The sizes of the data that a model is built from, also when a run folder is loaded.

    relations: without their reciprocals. modalities: (name, width) of the item features.
    node_features: widths of the given features by node type, 0 for a type without features; () if
    no type has any. item_values: values of the item features of sequences.
    """

    users: int = 0
    items: int = 0
    entities: int = 0
    relations: int = 0
    node_types: tuple[int, ...] = ()
    modalities: tuple[tuple[str, int], ...] = ()
    node_features: tuple[int, ...] = ()
    item_values: int = 0

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
            item_values=0 if dataset.item_features is None else len(dataset.item_features.values),
        )


class Model(nn.Module, ABC):
    """Base class of all models: a scorer, and the phases that train it."""

    #: the name on the command line
    name: ClassVar[str]
    #: a one-line description
    summary: ClassVar[str]
    #: its options, a subclass of ``ModelOptions`` with the field ``name: Literal["<name>"]``
    Options: ClassVar[type[ModelOptions]]
    #: defaults that differ from the general ones: keys of ``training``, as {"lr": 1e-3}, or full
    #: keys of other sections, as {"evaluation.metrics": ("mrr",)}
    defaults: ClassVar[Mapping[str, Any]] = {}
    #: the keys that :meth:`defaults_for` chooses
    defaults_from_data: ClassVar[tuple[str, ...]] = ()
    #: the options that ``hasten tune`` searches
    search: ClassVar[SearchSpace] = {}
    #: the built-in sample to train on if no data are given
    sample: ClassVar[str]
    #: which options have an effect on the model; the others are errors
    supports: ClassVar[Supports] = Supports()
    #: the kind of data that it trains on
    reads: ClassVar[Reads] = "interactions"
    #: whether scores depend on the times of a history, not only on its order
    reads_times: ClassVar[bool] = False
    #: whether a user who is not in the training data can be scored from a history
    scores_new_users: ClassVar[bool] = False
    #: whether ``scorer`` needs what ``phases`` builds from the data, such as a graph
    scores_need_phases: ClassVar[bool] = False

    #: activation checkpointing (``training.recompute``); set by ``phases``
    recompute: bool = False

    def __init__(self, options: Any, sizes: Sizes) -> None:
        super().__init__()
        self.options, self.sizes = options, sizes

    @classmethod
    def defaults_for(cls, size: DataSize, config: RunConfig) -> Mapping[str, Any]:
        """Defaults that follow from the size of the data, by dotted key.

        They apply to keys that were left out: ``config.given(key, default)`` tells what was given.
        """
        return {}

    @abstractmethod
    def scorer(self, queries: Any) -> Scorer:
        """Scores of these queries for all candidates, block by block.

        queries: ``RecommenderQueries``, or ``TripleQueries`` for models that read triples.
        """

    def phases(self, dataset: Any, training: TrainingOptions) -> Sequence[Phase]:
        """The training phases over this dataset, in the order of an epoch.

        dataset: a ``Dataset``, or a ``KnowledgeGraph`` for models that read triples. A model
        without gradient steps has no phases, and overrides :meth:`fit`.
        """
        return ()

    def fit(self, dataset: Any) -> None:
        """Train a model that has no phases (without gradient steps)."""

    def attach(self, dataset: Any) -> None:
        """Take what the model needs from the data besides their sizes.

        Called once after the model is built, for training and for a loaded run, before the model
        is moved to its device.
        """

    def adopt(self, weights: Mapping[str, Tensor]) -> bool:
        """Initialize from the weights of another model (``--init-from``).

        False if the model cannot convert them; hasten then loads them as the model's own weights.
        """
        return False

    def rows_of(self) -> Mapping[str, Rows]:
        """What the rows of weights stand for, by the name of the weight in ``state_dict``.

        A run can be updated with new ids (``hasten update``), and start from the weights of a run
        on other data, if all weights whose shape follows from the data are declared.
        """
        return {}

    def encoded_once(self) -> AbstractContextManager[None]:
        """Within this context :meth:`scorer` may reuse one encoding of the whole graph.

        Entered once per evaluation, or once per ``recommend`` or ``predict``.
        """
        return nullcontext()

    def diagnosed_embeddings(self) -> tuple[Tensor, NodeTypes] | None:
        """[N, D] embeddings whose diagnostics an evaluation reports, and the types of the nodes."""
        return None

    def compile_with(self, wrap: Callable[[Any], Any]) -> bool:
        """Replace the most expensive function of a step by ``wrap(function)``.

        False if the model has nothing to compile.
        """
        return False

    def checkpointed(self, function: Callable[..., Any], *args: Any) -> Any:
        """``function(*args)``; with activation checkpointing, computed again in backward."""
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(function, *args, use_reentrant=False)
        return function(*args)

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(chain(self.parameters(), self.buffers())).device


@runtime_checkable
class NodeEmbedder(Protocol):
    """A model with one embedding for each node: ``hasten embed`` and ``check-embeddings``."""

    def embed(self, block: int = ...) -> Tensor:
        """[N, D] embeddings of all nodes, ``block`` nodes at a time."""
        ...


@runtime_checkable
class PathExplainer(Protocol):
    """A model with attention over a graph: ``hasten recommend --explain``.

    A path has at most as many edges as its submodule ``layers`` has children. From Python 3.12 on
    ``isinstance`` does not see submodules, so this is no member.
    """

    def path_graph(self) -> PathGraph:
        """The graph with the attention of its edges."""
        ...


@runtime_checkable
class ExampleLosses(Protocol):
    """A model whose training loss is a sum over examples: ``hasten influence``."""

    def example_losses(self, batch: Any) -> Tensor:
        """The loss of each example of a batch, without reduction.

        batch: a ``CompletionMicroBatch``: [B], one loss per query; or a ``NextItemMicroBatch``:
        [S], one loss per target. Use PyTorch's own operations: ``hasten influence`` differentiates
        them in forward mode.
        """
        ...
