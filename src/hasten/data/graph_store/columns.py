"""Last passes: write links, messages and endpoints as the files of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hasten.arrays import Int64, order_by
from hasten.data.graph.messages import narrow
from hasten.data.graph.node_types import NodeTypes
from hasten.data.graph_store import manifest
from hasten.data.store_folder.buckets import Buckets, Divided, load, spans

#: scratch files of the links of the training part, in any order
RAW = {
    "train.relation": np.int32, "train.low": np.int32, "train.high": np.int32,
    "train.directions": np.uint8,
}  # fmt: skip
#: chunks are smaller than those of other stores: many columns are computed of each
_PARTS = 8
_FORWARD, _BACK = np.uint8(1), np.uint8(2)
#: the final number of each
Places = NDArray[Any]
#: what is reported: (how much is done, all of it)
Progress = Callable[[int, int], None]
Span = tuple[int, int]


@dataclass(frozen=True, eq=False)
class RawLinks:
    """The links of the training part, in the files RAW of a folder of scratch files.

    numbers: the final numbers of entities and of relations; types: of the stored ones; slices:
    int32 [N] the slice of each stored node.
    """

    folder: Path
    numbers: tuple[Places, Places]
    types: NodeTypes
    slices: Places

    @property
    def cells(self) -> int:
        """The number of slices."""
        return int(self.slices.max()) + 1


def files(folder: Path) -> list[str]:
    """The files of columns in the folder of a store, in the order of its manifest."""
    names = (*manifest.TRIPLES, *manifest.LINKS, *manifest.MESSAGES, *manifest.ENDPOINTS)
    return [path.name for name in names for path in folder.glob(f"{name}.i?")]


def file_of(name: str, bound: int = 0) -> str:
    """The file of a column whose numbers are below a bound."""
    return f"{name}.{'i4' if bound <= np.iinfo(np.int32).max else 'i8'}"


def write_links(raw: RawLinks, folder: Path, report: Progress) -> Int64:
    """The links, sorted by relation, head and tail; returns the first of each relation [R + 1].

    Of a symmetric relation, a link has head <= tail; of others, there is a link for each direction.
    The directions of their training triples are written to the file "ways" of the scratch folder.
    """
    (entity, relation_at), types, slices, scratch = raw.numbers, raw.types, raw.slices, raw.folder
    relations, cells = len(types.source), raw.cells
    count = (scratch / "train.directions").stat().st_size

    def links(span: Span) -> list[NDArray[Any]]:
        relation, low, high, ways = (load(scratch / n, kind, *span) for n, kind in RAW.items())
        relation, low, high = relation_at[relation], entity[low], entity[high]
        both = types.symmetric[relation]
        ahead = both | ((ways & _FORWARD) > 0)
        back = ~both & ((ways & _BACK) > 0)
        columns = ((relation, relation), (low, high), (high, low), (ways, np.full_like(ways, 1)))
        ways[~both] = _FORWARD
        return [np.concatenate([a[ahead], b[back]]) for a, b in columns]

    def divide(span: Span) -> Divided:
        columns = links(span)
        return columns[0] * cells + slices[columns[1]], columns

    kinds = dict(zip(("relation", "head", "tail", "ways"), RAW.values(), strict=True))
    divided, sizes = _divided(scratch / "links", kinds, relations * cells, count, divide)
    for name in RAW:
        (scratch / name).unlink()

    def ordered(_: int, columns: list[NDArray[Any]]) -> list[NDArray[Any]]:
        relation, head, tail, ways = columns
        order = order_by(relation, head, tail)
        return [head[order], tail[order], ways[order]]

    paths = [*(folder / file_of(name) for name in manifest.LINKS), scratch / "ways"]
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in paths]
        done = 0
        for columns in divided.map(ordered):
            _append(files, columns)
            done += len(columns[0])
            report(done, int(sizes.sum()))
    divided.remove()
    return np.append(0, np.cumsum(sizes.reshape(relations, cells).sum(1)))


def write_messages(
    raw: RawLinks, bounds: Int64, folder: Path, report: Progress
) -> tuple[Int64, int]:
    """The messages along the links, sorted by relation, destination and source, and by destination.

    Returns the first message of each relation [2R + 1], and the number of distinct (entity,
    relation) of the training triples in both directions. bounds: of the links.
    """
    types, slices, scratch, cells = raw.types, raw.slices, raw.folder, raw.cells
    relations, count, nodes = len(types.source), int(bounds[-1]), int(types.offsets[-1])
    link_files = [folder / file_of(name) for name in manifest.LINKS]

    def messages(span: Span) -> list[NDArray[Any]]:
        head, tail = (load(path, "int32", *span) for path in link_files)
        ways, link = load(scratch / "ways", np.uint8, *span), np.arange(*span)
        kind = np.searchsorted(bounds, link, "right") - 1
        symmetric = types.symmetric[kind]
        proper = (head != tail) | ~symmetric
        back = np.where(symmetric, kind, kind + relations)
        # whether there is a triple from the source to the destination, and one back
        loop = symmetric & (head == tail)
        there = np.where(symmetric & ~loop, ways, np.where(loop, _FORWARD | _BACK, _FORWARD))
        other = np.where(symmetric, ((ways & 1) << 1) | (ways >> 1), _BACK).astype(np.uint8)
        columns = ((kind, back), (tail, head), (head, tail), (link, link), (there, other))
        return [np.concatenate([a, b[proper]]) for a, b in columns]

    def divide(span: Span) -> Divided:
        columns = messages(span)
        return columns[0] * cells + slices[columns[1]], columns

    kinds: dict[str, Any] = dict.fromkeys(("relation", "target", "source"), np.int32)
    kinds |= {"link": narrow(np.zeros(0, np.int64), count).dtype, "ways": np.uint8}
    divided, sizes = _divided(scratch / "messages", kinds, 2 * relations * cells, count, divide)
    total = int(sizes.sum())

    def ordered(_: int, columns: list[NDArray[Any]]) -> tuple[list[NDArray[Any]], int]:
        relation, target, source, link, ways = columns
        order = order_by(relation, target, source)
        relation, target, ways = relation[order], target[order], ways[order]
        new = np.ones(len(order), bool)
        new[1:] = (relation[1:] != relation[:-1]) | (target[1:] != target[:-1])
        either = np.bitwise_or.reduceat(ways, np.flatnonzero(new)) if len(ways) else ways
        queries = int(np.sum(either & 1) + np.sum(either >> 1))
        return [source[order], target, link[order]], queries

    by_target = Buckets(
        scratch / "targets",
        {"target": np.int32, "place": np.int64},
        sizes.reshape(-1, cells).sum(0),
    )
    offsets, queries = np.zeros(nodes + 1, np.int64), 0
    names = (file_of("source"), file_of("target"), file_of("link", count))

    def written() -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        nonlocal queries
        place = 0
        with ExitStack() as stack:
            files = [stack.enter_context((folder / name).open("wb")) for name in names]
            for columns, asked in divided.map(ordered):
                _append(files, columns)
                queries += asked
                target = columns[1]
                offsets[1:] += np.bincount(target, minlength=nodes)
                yield target, np.arange(place, place + len(target))
                place += len(target)
                report(place, total)

    by_target.fill(written(), lambda each: (slices[each[0]], list(each)))
    divided.remove()
    (scratch / "ways").unlink()
    np.cumsum(offsets, out=offsets)
    _write_places(by_target, folder / file_of("by_target", total), total)
    offsets.tofile(folder / "offsets.i8")
    return np.append(0, np.cumsum(sizes.reshape(2 * relations, cells).sum(1))), queries


def write_endpoints(raw: RawLinks, links: int, folder: Path) -> None:
    """The endpoints of the links sorted by node, and their offsets."""
    slices, nodes = raw.slices, len(raw.slices)
    offsets, sizes = np.zeros(nodes + 1, np.int64), np.zeros(raw.cells, np.int64)
    paths = [folder / file_of(name) for name in manifest.LINKS]
    chunks = [
        (path, *span, k * links) for k, path in enumerate(paths) for span in spans(0, links, _PARTS)
    ]
    for path, begin, end, _ in chunks:
        node = load(path, "int32", begin, end)
        offsets[1:] += np.bincount(node, minlength=nodes)
        sizes += np.bincount(slices[node], minlength=len(sizes))

    def divide(chunk: tuple[Path, int, int, int]) -> Divided:
        path, begin, end, shift = chunk
        node = load(path, "int32", begin, end)
        return slices[node], [node, np.arange(shift + begin, shift + end)]

    by_node = Buckets(raw.folder / "nodes", {"node": np.int32, "place": np.int64}, sizes)
    by_node.fill(chunks, divide)
    _write_places(by_node, folder / file_of("endpoints", 2 * links), 2 * links)
    np.cumsum(offsets).tofile(folder / "endpoint_offsets.i8")


def _divided(
    folder: Path, kinds: dict[str, Any], cells: int, count: int, divide: Callable[[Span], Divided]
) -> tuple[Buckets, Int64]:
    """The rows of so many links by cells, and the number of rows of each cell."""
    sizes = np.zeros(cells, np.int64)
    for span in spans(0, count, _PARTS):
        sizes += np.bincount(divide(span)[0], minlength=cells)
    divided = Buckets(folder, kinds, sizes)
    divided.fill(spans(0, count, _PARTS), divide)
    return divided, sizes


def _write_places(divided: Buckets, path: Path, bound: int) -> None:
    """The places, sorted by their node. They are below the bound, and in order for each node."""

    def ordered(_: int, columns: list[NDArray[Any]]) -> NDArray[Any]:
        node, place = columns
        return narrow(place[np.argsort(node, kind="stable")], bound)

    with path.open("wb") as file:
        for column in divided.map(ordered):
            column.tofile(file)
    divided.remove()


def _append(files: Sequence[IO[bytes]], columns: list[NDArray[Any]]) -> None:
    for file, column in zip(files, columns, strict=True):
        column.tofile(file)
