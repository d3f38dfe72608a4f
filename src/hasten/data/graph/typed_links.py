"""Normalize typed edges: one direction, and one pair of node types per relation.

A file may hold every edge in both directions (PrimeKG does). An edge and its reverse must never
be in different parts. So edges between two types are kept in the direction of the first edge of
their relation. Edges within one type have a direction, unless the relation is symmetric: then both
directions are stored, always in the same part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64, among
from hasten.config import TripleOptions
from hasten.data.columns.checks import counted
from hasten.data.graph.node_types import symmetric_relations, type_codes
from hasten.data.readers.interface import Read
from hasten.data.readers.node_table import NodeTable
from hasten.data.tables import TYPE_MARK, Triples, Vocabulary
from hasten.errors import DataError, did_you_mean

Mask = NDArray[np.bool_]


def chosen_edges(
    read: Read,
    nodes: NodeTable | None,
    triples: Triples,
    entities: Vocabulary,
    relations: Vocabulary,
    options: TripleOptions,
    notes: list[str],
) -> Int64:
    """The rows of the edges with the types and relations that the options choose.

    triples: all that were read; nodes: the table of nodes, if there is one.

    Raises:
        DataError: a type or relation that does not exist, or nothing left of a file or a type.
    """
    where, (names, code) = read.where, type_codes(entities.labels)
    texts = relations.labels.cast(pa.string()).to_pylist()
    of_types, of_relations = chosen_kinds(options, names, texts, nodes, where)
    chosen = of_types[code]
    keep = chosen[triples.head] & chosen[triples.tail] & of_relations[triples.relation]
    end = 0
    for source in read.sources:
        begin, end = end, end + len(source)
        if not keep[begin:end].any():
            raise nothing_left(source.source)
    notes += left_out_notes(int((~keep).sum()))
    used, _ = triples.take(keep).used(len(entities), len(relations))
    notes += node_notes(options, names, code, entities.labels, used, nodes, where)
    return np.flatnonzero(keep)


def chosen_kinds(
    options: TripleOptions,
    names: tuple[str, ...],
    texts: list[str],
    nodes: NodeTable | None,
    where: str,
) -> tuple[Mask, Mask]:
    """Which types of nodes and which relations the options choose.

    names, texts: of all types and relations that were read. Raises DataError for unknown ones.
    """
    kinds = {*names, *(() if nodes is None else nodes.types)}
    _check_known("data.node_types", options.node_types, kinds, "node type", where)
    _check_known("data.edge_types", options.edge_types, {*texts}, "relation", where)
    of_types, of_relations = np.ones(len(names), bool), np.ones(len(texts), bool)
    if options.node_types is not None:
        of_types = np.isin(names, options.node_types)
    if options.edge_types is not None:
        of_relations = np.isin(texts, options.edge_types)
    return of_types, of_relations


def nothing_left(source: str) -> DataError:
    """The error about a file none of whose edges is chosen."""
    return DataError(f"{source}: no edge is left by data.node_types and data.edge_types")


def left_out_notes(left_out: int) -> list[str]:
    """The note about edges that are not chosen."""
    note = f"{left_out:,} edges of other types left out (data.node_types, data.edge_types)"
    return [note] if left_out else []


def node_notes(
    options: TripleOptions,
    names: tuple[str, ...],
    code: NDArray[Any],
    labels: pa.Array,
    used: Mask,
    nodes: NodeTable | None,
    where: str,
) -> list[str]:
    """The note about nodes of the table without edges.

    names: of the types; code: the type of every node; used: the nodes of the chosen edges.

    Raises:
        DataError: a type without edges.
    """
    kinds = {*names, *(() if nodes is None else nodes.types)}
    node_types = kinds if options.node_types is None else set(options.node_types)
    bare = sorted(node_types - {names[i] for i in np.unique(code[used])})
    if options.edge_types is None and bare:
        table = where if nodes is None else str(nodes.path)
        raise DataError(
            f"{table}: nodes of type {', '.join(map(repr, bare))} have no edges in {where}: "
            "leave the type out with data.node_types, or add its edges"
        )
    if nodes is None:
        return []
    listed = [v for v in nodes.labels.values() if v.split(TYPE_MARK)[0] in node_types]
    joined = set(labels.filter(pa.array(used)).to_pylist())
    isolated = len(listed) - len(joined.intersection(listed))
    note = f"{isolated:,} of {len(listed):,} nodes have no edge and were left out"
    return [note] if isolated else []


def _check_known(
    key: str, chosen: tuple[str, ...] | None, known: set[str], what: str, where: str
) -> None:
    for name in chosen or ():
        if name not in known:
            raise DataError(
                f"{where}: {key}: unknown {what} {name!r}{did_you_mean(name, known)} "
                f"(there are {', '.join(sorted(known))})"
            )
    if chosen is not None and not chosen:
        raise DataError(f"{key} names nothing: leave it out for all")


def stored_links(
    triples: Triples,
    entities: Vocabulary,
    relations: Vocabulary,
    symmetric: tuple[str, ...],
    notes: list[str],
) -> tuple[Triples, Vocabulary, Int64]:
    """Turn edges into the direction of their relation, and leave out reverses of stored edges.

    symmetric: relations without direction, besides those whose edges all occur in both directions.
    Returns the stored triples, the relations, and the row that each triple came from [n].

    Raises:
        DataError: a symmetric relation that does not exist, or that joins two types.
    """
    names, code = type_codes(entities.labels)
    count = len(entities)
    relation, labels, turned = _one_pair_each(triples, relations, code, names)
    head = np.where(turned, triples.tail, triples.head)
    tail = np.where(turned, triples.head, triples.tail)
    row = np.arange(len(head))
    if turned.any():
        keys = (relation * count + head) * count + tail
        is_repeated = turned.copy()
        is_repeated[turned] = among(keys[turned], np.sort(keys[~turned]))
        notes += turned_notes(int(turned.sum()), int(is_repeated.sum()))
        keep = ~is_repeated
        head, tail, relation, row = head[keep], tail[keep], relation[keep], row[keep]
    links = Triples(head, relation, tail)
    within = np.zeros(len(labels), bool)
    within[relation[code[head] == code[tail]]] = True
    is_symmetric = symmetric_relations(links, len(labels), code)
    mark_symmetric(is_symmetric, within, labels, symmetric)
    add = is_symmetric[relation] & (head != tail)
    if add.any():
        links, row = _in_both_directions(links, row, add, count)
    return links, Vocabulary(pa.array(labels, pa.string())), row


def turned_notes(turned: int, repeated: int) -> list[str]:
    """The note about edges that were turned."""
    note = (
        f"{counted(turned, 'edge')} against the direction of the relation: {repeated:,} are "
        "reverses of others and were left out, the rest was turned"
    )
    return [note] if turned else []


def mark_symmetric(
    is_symmetric: Mask, within: Mask, labels: list[str], symmetric: tuple[str, ...]
) -> None:
    """Mark the relations that an option names; within: those between nodes of one type.

    Raises:
        DataError: a relation that does not exist, or that joins two types.
    """
    for name in symmetric:
        if name not in labels:
            raise DataError(f"data.symmetric: no relation {name!r} (there are {', '.join(labels)})")
        if not within[labels.index(name)]:
            raise DataError(f"data.symmetric: {name!r} joins two types of nodes")
        is_symmetric[labels.index(name)] = True


def _one_pair_each(
    triples: Triples, relations: Vocabulary, code: Int64, names: tuple[str, ...]
) -> tuple[Int64, list[str], np.ndarray]:
    """Relations that each join one pair of types, their labels, and which edges to turn."""
    types = len(names)
    first, second = code[triples.head], code[triples.tail]
    kind = (triples.relation * types + first) * types + second
    encoded = pa.array(kind).dictionary_encode()  # in the order of their first edges
    kinds = encoded.dictionary.to_pylist()
    labels, relation, turned = one_pair_each(
        kinds, relations.labels.cast(pa.string()).to_pylist(), names
    )
    codes = np.asarray(encoded.indices)
    return relation[codes], labels, turned[codes]


def one_pair_each(
    kinds: list[int], texts: list[str], names: tuple[str, ...]
) -> tuple[list[str], Int64, Mask]:
    """Relations that each join one pair of types, from the kinds of edges that occur.

    kinds: ``(relation * types + type of the head) * types + type of the tail``, in the order of
    their first edges; texts, names: of relations and types. Returns the labels, and of every kind
    its relation and whether its edges are turned.
    """
    types = len(names)
    signatures: dict[int, list[tuple[int, int]]] = {}
    target: dict[int, tuple[str, bool]] = {}
    for number in kinds:
        relation, pair = number // types**2, (number // types % types, number % types)
        seen = signatures.setdefault(relation, [])
        if pair[::-1] in seen and pair[0] != pair[1]:
            stored, against = pair[::-1], True
        else:
            stored, against = pair, False
            seen.append(pair)
        label = texts[relation]
        if seen.index(stored):  # a second pair of types under the same name
            label += f" ({names[stored[0]]} - {names[stored[1]]})"
        target[number] = label, against
    labels = sorted({label for label, _ in target.values()})
    number_of = {label: number for number, label in enumerate(labels)}
    of_kind = np.array([number_of[target[k][0]] for k in kinds], np.int64)
    return labels, of_kind, np.array([target[k][1] for k in kinds], bool)


def _in_both_directions(
    triples: Triples, row: Int64, add: np.ndarray, count: int
) -> tuple[Triples, Int64]:
    """The marked edges and their reverses, each once; others stay as they are."""
    head, relation, tail = triples.head, triples.relation, triples.tail
    keys = (relation * count + head) * count + tail
    more = (relation[add] * count + tail[add]) * count + head[add]
    reversed_rows = np.flatnonzero(add)[~among(more, np.sort(keys))]
    rows = np.concatenate([row, row[reversed_rows]])
    both_directions = Triples(
        np.concatenate([head, tail[reversed_rows]]),
        np.concatenate([relation, relation[reversed_rows]]),
        np.concatenate([tail, head[reversed_rows]]),
    )
    order = np.argsort(rows, kind="stable")
    return both_directions.take(order), rows[order]
