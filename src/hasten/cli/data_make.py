"""``hasten data make`` and ``hasten data features``: generated data sets and text features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hasten.cli import options, output
from hasten.cli.data import FIRST_MODEL
from hasten.cli.options import argument, option
from hasten.errors import UsageError

#: users, items and interactions of a sample, or its only size; None: the sample's default
_Sizes = tuple[int | None, ...]


def features(
    texts: Path = argument("TEXTS", "A file of item and text.", default=...),
    out: Path = option("FILE", "NAME_feat.parquet.", default=...),
    width: int = option("N", "Maximum number of features.", default=128, min=1),
    seed: int = option("N", "Seed of the decomposition.", default=0, min=0),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Compute item features from texts (TF-IDF and SVD), for models that read features."""
    from hasten.data.interactions.text_features import write_text_features  # noqa: PLC0415 - slow to import

    written = write_text_features(texts, out, width, seed)
    output.say(
        f"{written['features']}: {written['items']:,} items, {written['width']:,} features, "
        f"{written['explained_variance']:.0%} of the variance"
    )
    if written["empty"]:
        output.say(f"note: {written['empty']:,} items without a known word: rows of zeros")
    if json:
        output.write_json(written)


def make(
    kind: str = argument(
        "KIND", "sequences, sittings, library, gallery, families, medicine.", default=...
    ),
    out: Path = option("PATH", "A .csv file, or a folder for it.", default=...),
    users: int | None = option("N", "Number of users (1200)."),
    items: int | None = option("N", "Number of items (400)."),
    events: int | None = option("N", "Number of interactions (24000)."),
    families: int | None = option("N", "Size of families (48)."),
    genes: int | None = option("N", "Size of medicine (720)."),
    seed: int = option("N", "Seed of the generator.", default=0, min=0),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Generate a data set with known structure: a CSV file and the items' names."""
    from hasten.data.sources.catalogue import CATALOGUE  # noqa: PLC0415 - slow to import

    graphs = {"families": families, "medicine": genes}
    if kind in graphs and (users, items, events) != (None, None, None):
        name = "families" if kind == "families" else "genes"
        raise UsageError(f"{kind} has no users, items or events: its size is --{name} N")
    if families is not None and kind != "families":
        raise UsageError(f"--families is the size of families, and has no effect on {kind}")
    if genes is not None and kind != "medicine":
        raise UsageError(f"--genes is the size of medicine, and has no effect on {kind}")
    written, said = _written(kind, out, (users, items, events), graphs.get(kind), seed)
    output.say(said)
    model = "tisasrec" if kind == "sittings" else FIRST_MODEL[CATALOGUE[kind].kind]
    output.say(f"next: hasten train {model} {written['data']}")
    if json:
        output.write_json(written)


def _written(
    kind: str, out: Path, sizes: _Sizes, size: int | None, seed: int
) -> tuple[dict[str, Any], str]:
    """Write a sample; return its path and a description."""
    from hasten.data.samples.files import write_sample  # noqa: PLC0415 - slow to import

    counts: tuple[str, ...] = ("users", "items", "events")
    if kind == "families":
        sizes, counts = (size,), ("entities", "relations", "triples")
    elif kind == "medicine":
        sizes, counts = (size,), ("nodes", "types", "edges", "relations")
    found = write_sample(kind, out, *sizes, seed=seed)
    said = f"{found['data']}: " + ", ".join(f"{found[name]:,} {name}" for name in counts)
    names = found.get("names")
    return found, f"{said}\n{names}: the names" if names else said
