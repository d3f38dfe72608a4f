"""``hasten data make`` and ``hasten data features``: generated data sets and text features."""

from __future__ import annotations

from pathlib import Path

from hasten.cli import options, output
from hasten.cli.data.inspect import FIRST_MODEL
from hasten.cli.options import argument, option
from hasten.errors import UsageError

#: what a sample of a graph consists of, instead of users, items and events
_COUNTS = {
    "families": ("entities", "relations", "triples"),
    "medicine": ("nodes", "types", "edges", "relations"),
}


def features(
    texts: Path = argument("TEXTS", "A file of item and text.", default=...),
    out: Path = option("FILE", "NAME_feat.parquet.", default=...),
    width: int = option("N", "Maximum number of features.", default=128, min=1),
    seed: int = option("N", "Seed of the decomposition.", default=0, min=0),
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Compute item features from texts (TF-IDF and SVD), for models that read features.

    hasten data features descriptions.csv --out text.npy
    """
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
    """Generate a data set with known structure: a CSV file and the items' names.

    hasten data make sequences --out events.csv --users 5000 --items 1000
    """
    from hasten.data.samples.files import write_sample  # noqa: PLC0415 - slow to import
    from hasten.data.sources.catalog import CATALOG  # noqa: PLC0415

    sizes: tuple[int | None, ...] = (users, items, events)
    for flag, sample, size in (("families", "families", families), ("genes", "medicine", genes)):
        if kind == sample and sizes != (None, None, None):
            raise UsageError(f"{kind} has no users, items or events: its size is --{flag} N")
        if kind != sample and size is not None:
            raise UsageError(f"--{flag} is the size of {sample}, and has no effect on {kind}")
    if kind in _COUNTS:
        sizes = (families if kind == "families" else genes,)
    written = write_sample(kind, out, *sizes, seed=seed)
    counts = _COUNTS.get(kind, ("users", "items", "events"))
    output.say(f"{written['data']}: " + ", ".join(f"{written[name]:,} {name}" for name in counts))
    if written.get("names"):
        output.say(f"{written['names']}: the names")
    model = "tisasrec" if kind == "sittings" else FIRST_MODEL[CATALOG[kind].kind]
    output.say(f"next: hasten train {model} {written['data']}")
    if json:
        output.write_json(written)
