"""Write the table of measured quality into README.md, from the recipes and the kept results.

python -m experiments.quality [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import ROOT
from bench.table import replaced
from experiments.recipes import measured
from experiments.summary import RESULTS, load_configurations
from hasten.recipes.load import Recipe, recipes

BEGIN = "<!-- quality: written by make docs -->"
END = "<!-- end of quality -->"

DATA = {
    "beauty": "Amazon Beauty",
    "ml-1m": "MovieLens-1M",
    "ml-100k-facts": "MovieLens-100k with triples",
    "umls": "UMLS",
    "kinship": "Kinship",
    "fb15k-237": "FB15k-237",
    "redda-k": "REDDA-K",
    "hetionet": "Hetionet (part)",
    "tiktok": "TikTok",
}
PAGES = {"distmult": "complex", "degree": "hgt", "bprmf": "kgat"}
METRICS = {"mrr": "MRR", "link_auroc": "link AUROC", "hr": "HR", "ndcg": "NDCG"}
#: seeds that a figure needs
ENOUGH = 3

Records = Mapping[str, Sequence[Mapping[str, Any]]]


def table(found: Sequence[Recipe], records: Records) -> str:
    """One row for each recipe and headline metric."""
    lines = [
        "| model | data | metric | as it comes | with recipe | `--recipe` | seeds | training "
        "| record |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for recipe in found:
        page = f"docs/models/{PAGES.get(recipe.model, recipe.model)}.md"
        for metric in headlines(recipe):
            name, _, cut = metric.partition("@")
            shown = METRICS.get(name, name.capitalize()) + (f"@{cut}" if cut else "")
            cells = [
                f"[`{recipe.model}`]({page})",
                DATA[recipe.data],
                shown,
                as_it_comes(recipe, metric, records),
                figure(recipe.expected[metric]),
                f"`{recipe.key}`",
                f"{len(recipe.seeds)}" + " (provisional)" * (len(recipe.seeds) < ENOUGH),
                f"{recipe.training_seconds:,} s",
                f"[{recipe.records}](docs/experiments.md#{recipe.records})",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def headlines(recipe: Recipe) -> Iterator[str]:
    """The metric that selected the checkpoint, and the AUROC of held-out links."""
    yield next(iter(recipe.expected))
    if "link_auroc" in recipe.expected:
        yield "link_auroc"


def as_it_comes(recipe: Recipe, metric: str, records: Records) -> str:
    """The figure of the model without options, linked to its record, or "not measured"."""
    if all(key.startswith("data.") or key == "evaluation.metrics" for key in recipe.configuration):
        return figure(recipe.expected[metric])
    name = f"{recipe.model}-{recipe.data}-as-it-comes"
    found = measured(records.get(name, ()))
    if len(found.get("seeds", ())) < ENOUGH or metric not in found["expected"]:
        return "not measured"
    return f"[{figure(found['expected'][metric])}](docs/experiments.md#{name})"


def figure(values: Sequence[float]) -> str:
    """Mean and standard deviation to four places: ``.0352 ± .0012``."""
    return " ± ".join(f"{value:.4f}".removeprefix("0") for value in values)


def main(arguments: Sequence[str], readme: Path = ROOT / "README.md") -> int:
    text = readme.read_text()
    wanted = replaced(text, table(recipes(), load_configurations(RESULTS)), BEGIN, END)
    if "--check" not in arguments:
        readme.write_text(wanted)
    elif wanted != text:
        print("README.md is stale: run make docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
