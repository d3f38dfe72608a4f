"""A built-in typed graph made from a seed, in the columns of PrimeKG, with planted structure.

``medicine``: genes, pathways, diseases and drugs with hidden mechanisms. A gene belongs to one
mechanism, a pathway contains genes of one; a disease is associated with genes of two; a drug
targets genes of one, and is indicated for diseases that share it. Genes interact within a
mechanism. Some edges of every relation are random. Only a drug's targets together with the
disease's genes predict an indication. Every edge is written in both directions.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hasten.arrays import Int64
from hasten.data.samples.base import SampleSet, uniform
from hasten.errors import DataError

_MECHANISMS = 12
_GENES, _PATHWAYS, _DISEASES, _DRUGS = 720, 60, 160, 240
#: the share of edges that follow no mechanism
_NOISE = 0.08
_GENE, _PATHWAY, _DISEASE, _DRUG = "gene/protein", "pathway", "disease", "drug"
_COLUMNS = ("index", "id", "type", "name", "source")
_IDS = {
    _GENE: ("", "NCBI"), _PATHWAY: ("R-", "REACTOME"),
    _DISEASE: ("", "MONDO"), _DRUG: ("DB", "DrugBank"),
}  # fmt: skip


def make_medicine(genes: int | None = None, seed: int = 0) -> SampleSet:
    """The sample ``medicine``: a table with the columns of PrimeKG's kg.csv.

    genes: their number; the other types follow in proportion.

    Raises:
        DataError: fewer than five genes a mechanism.
    """
    count = _GENES if genes is None else genes
    if count < 5 * _MECHANISMS:
        raise DataError(f"{count} genes: at least {5 * _MECHANISMS} are needed")
    sizes = {
        _GENE: count,
        _PATHWAY: max(_MECHANISMS, count * _PATHWAYS // _GENES),
        _DISEASE: max(_MECHANISMS, count * _DISEASES // _GENES),
        _DRUG: max(_MECHANISMS, count * _DRUGS // _GENES),
    }
    draws = _Draws(seed)
    group = {kind: np.arange(size) % _MECHANISMS for kind, size in sizes.items()}
    #: the second mechanism of a disease
    second = (group[_DISEASE] + 1 + draws.below(_MECHANISMS - 1, sizes[_DISEASE])) % _MECHANISMS
    of = [np.flatnonzero(group[_GENE] == m) for m in range(_MECHANISMS)]
    edges: list[tuple[str, str, str, Int64]] = []

    def genes_of(mechanism: Int64, each: int) -> Int64:
        """[rows, each] genes of each row's mechanism, some of any."""
        shape = (len(mechanism), each)
        width = min(map(len, of))
        table = np.stack([members[:width] for members in of])
        inside = table[mechanism[:, None], draws.below(width, shape)]
        noise = draws.uniform(shape) < _NOISE
        return np.where(noise, draws.below(count, shape), inside)

    def add(relation: str, first: str, other: str, columns: Int64) -> None:
        rows = np.repeat(np.arange(len(columns)), columns.shape[1])
        pairs = np.unique(np.stack([rows, columns.reshape(-1)], axis=1), axis=0)
        if first == other:
            pairs = pairs[pairs[:, 0] != pairs[:, 1]]
            pairs = np.unique(np.sort(pairs, axis=1), axis=0)
        edges.append((relation, first, other, pairs))

    add("protein_protein", _GENE, _GENE, genes_of(group[_GENE], 4))
    add("pathway_protein", _PATHWAY, _GENE, genes_of(group[_PATHWAY], 12))
    halves = [genes_of(group[_DISEASE], 6), genes_of(second, 4)]
    add("disease_protein", _DISEASE, _GENE, np.concatenate(halves, axis=1))
    add("drug_protein", _DRUG, _GENE, genes_of(group[_DRUG], 5))
    treated = [np.flatnonzero((group[_DISEASE] == m) | (second == m)) for m in range(_MECHANISMS)]
    width = min(map(len, treated))
    table = np.stack([members[:width] for members in treated])
    inside = table[group[_DRUG][:, None], draws.below(width, (sizes[_DRUG], 5))]
    noise = draws.uniform(inside.shape) < _NOISE
    add("indication", _DRUG, _DISEASE,
        np.where(noise, draws.below(sizes[_DISEASE], inside.shape), inside))  # fmt: skip
    return SampleSet(_table(edges, sizes, draws), {})


class _Draws:
    """Uniform numbers, one stream after the other."""

    def __init__(self, seed: int) -> None:
        self.seed, self.number = seed, 40

    def uniform(self, shape: int | tuple[int, ...]) -> NDArray[np.float64]:
        self.number += 1
        return uniform(int(np.prod(shape)), self.number, self.seed).reshape(shape)

    def below(self, high: int, shape: int | tuple[int, ...]) -> Int64:
        return np.floor(self.uniform(shape) * high).astype(np.int64)


def _table(
    edges: list[tuple[str, str, str, Int64]], sizes: dict[str, int], draws: _Draws
) -> pa.Table:
    """The edges in both directions, in a random order."""
    start, first = {}, 0
    for kind, size in sizes.items():
        start[kind], first = first, first + size
    columns: dict[str, list[str]] = {
        name: [] for name in (
            "relation", "display_relation",
            *(f"{end}_{suffix}" for end in "xy" for suffix in _COLUMNS),
        )
    }  # fmt: skip
    for relation, one, other, pairs in edges:
        for kinds, ends in (((one, other), pairs), ((other, one), pairs[:, ::-1])):
            columns["relation"] += [relation] * len(pairs)
            columns["display_relation"] += [relation.replace("_", " ")] * len(pairs)
            for end, kind, numbers in zip("xy", kinds, ends.T.tolist(), strict=True):
                prefix, source = _IDS[kind]
                columns[f"{end}_index"] += [str(start[kind] + n) for n in numbers]
                columns[f"{end}_id"] += [f"{prefix}{n + 1:04d}" for n in numbers]
                columns[f"{end}_type"] += [kind] * len(pairs)
                columns[f"{end}_name"] += [
                    f"{kind.split('/')[0].capitalize()} {n + 1}" for n in numbers
                ]
                columns[f"{end}_source"] += [source] * len(pairs)
    order = np.argsort(draws.uniform(len(columns["relation"])), kind="stable")
    return pa.table(
        {name: pa.array(column).take(pa.array(order)) for name, column in columns.items()}
    )
