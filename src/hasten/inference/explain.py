"""Explain recommendations by the graph paths with the largest attention.

The weight of a path user -> ... -> item in the training graph is the product of the attention
scores of its edges. The paths with the largest weights are found exactly. They show where the model
attends, not what it would recommend without an edge.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hasten.data.tables import Dataset, Vocabulary
from hasten.errors import UsageError
from hasten.inference.recommend import Recommendations
from hasten.models.interface import Model, PathExplainer
from hasten.ops.graph.best_paths import PathGraph, WeighedPath, best_paths, bounds_to

if TYPE_CHECKING:
    from hasten.loaded_run import LoadedRun

#: the relation between users and items
EVENT = "event"
_EDGE = ("relation", "node")


def require_paths(model: Model) -> PathExplainer:
    """The model, if it has attention over a graph. UsageError if it has not."""
    if not isinstance(model, PathExplainer):
        raise UsageError(
            f"{model.name} has no attention over a graph, so there are no paths to explain its "
            "recommendations by (kgat has): leave --explain out"
        )
    return model


def explain(loaded: LoadedRun, recommendations: Recommendations, paths: int = 3) -> pa.Table:
    """A table with the ``paths`` largest-weight paths to each recommended item.

    Columns: those of the recommendations; path: 1, 2, ...; attention: the weight of the path;
    explanation: the path as text; relation_1, node_1, relation_2, ...: its edges, empty beyond its
    end. A path has at most as many edges as the model has layers. ``^`` marks a relation that is
    followed from tail to head. An item without a path has one row with an empty path.
    Raises UsageError for a model without attention.
    """
    if paths < 1:
        raise UsageError(f"paths {paths}: must be 1 or more")
    model = require_paths(loaded.model)
    dataset = loaded.dataset
    assert isinstance(dataset, Dataset)
    graph = model.path_graph()
    longest = len(list(loaded.model.get_submodule("layers").children()))
    names = PathNames(dataset)
    users = dataset.users.index(recommendations.users)[recommendations.user]
    rows, numbers, lines = [], [], []
    # item by item: the bounds of the search are the same for all users
    order = np.argsort(recommendations.item, kind="stable")
    bounds = None
    for previous, row in zip([None, *order[:-1].tolist()], order.tolist(), strict=True):
        item = int(recommendations.item[row])
        if previous is None or recommendations.item[previous] != item:
            bounds = bounds_to(graph, item, longest)
        source = len(names.entities) + int(users[row])
        best: list[WeighedPath | None] = []
        best += islice(best_paths(graph, source, item, longest, bounds), paths)
        for number, path in enumerate(best or [None], start=1):
            rows.append(row)
            numbers.append(None if path is None else number)
            lines.append(names.of(graph, source, path, longest))
    back = np.argsort(np.asarray(rows, np.int64), kind="stable")
    table = recommendations.to_table().take(pa.array(np.asarray(rows, np.int64)[back]))
    table = table.append_column("path", pa.array([numbers[i] for i in back], pa.int32()))
    attention = [lines[i][0] for i in back]
    table = table.append_column("attention", pa.array(attention, pa.float64()))
    texts = ["explanation", *(f"{w}_{k}" for k in range(1, longest + 1) for w in _EDGE)]
    for place, name in enumerate(texts, start=1):
        table = table.append_column(name, pa.array([lines[i][place] for i in back], pa.string()))
    return table


class PathNames:
    """The names of the nodes and relations of the collaborative graph."""

    def __init__(self, dataset: Dataset) -> None:
        facts = dataset.facts
        assert facts is not None
        self.entities = _names(facts.entities)
        items = _names(dataset.items)
        self.entities[: len(items)] = items
        self.users = _names(dataset.users)
        self.relations = _names(facts.relations)

    def node(self, number: int) -> str:
        count = len(self.entities)
        return self.entities[number] if number < count else self.users[number - count]

    def relation(self, number: int) -> str:
        """The name of a relation, numbered as in the collaborative graph."""
        if number < 2:
            return (EVENT, f"^{EVENT}")[number]
        count = len(self.relations)
        known = self.relations[(number - 2) % count]
        return known if number - 2 < count else f"^{known}"

    def of(
        self, graph: PathGraph, source: int, path: WeighedPath | None, longest: int
    ) -> tuple[Any, ...]:
        """The attention, the text, then the relation and node of each edge."""
        if path is None:
            return (None, None, *([None] * 2 * longest))
        cells: list[str | None] = []
        text = self.node(source)
        for edge in path.edges:
            relation, node = self.relation(int(graph.kind[edge])), self.node(int(graph.tail[edge]))
            cells += [relation, node]
            text += f" -[{relation}]-> {node}"
        return (path.weight, text, *cells, *([None] * (2 * longest - len(cells))))


def _names(vocabulary: Vocabulary) -> list[str]:
    """Names, or labels if there are no names."""
    labels = [str(label) for label in vocabulary.labels.to_pylist()]
    if vocabulary.names is None:
        return labels
    names = vocabulary.names.to_pylist()
    return [name or label for name, label in zip(names, labels, strict=True)]
