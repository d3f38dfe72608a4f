"""Write the tables of measured quality into README.md and docs/quality.md.

The figures are those of the recipes, and the kept results of models without options.

python -m experiments.quality [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.machine import ROOT
from bench.table import replaced, write_pages
from experiments.constant_defaults import CHANGED
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
UNMEASURED, PROVISIONAL = "not measured", " (provisional)"
COLUMNS = "model | data | metric | defaults | with recipe"
#: the recipes in the README; the first of a model and a data set that has none of them
HEADLINES = ("best", "minute")

PAGE = """# Measured quality

Every recipe with the metrics that were measured with it. A recipe is a stored set of options:
`hasten train conve fb15k-237 --recipe fb15k-237/best` trains with one, and
`hasten recipes show conve fb15k-237/best` shows it.

How to read the table:

- All metrics are of the test set, by full ranking, for the checkpoint that was selected on
  validation: mean ± standard deviation over seeds. A result from fewer than three seeds is marked
  *provisional*.
- The column *defaults* is the model trained without any option.
- The defaults of `complex` and `conve` rank the entity of a query last
  ([exclude_self](models/complex.md#entities-that-are-no-answers-to-themselves)); their recipes rank
  it like any other entity, as most published results do, except `fb15k-237/best` of `complex` and
  `fb15k-237/wide` of `conve`.
- *History masked*: items that the user already has are left out of the ranking. *History kept*:
  they are ranked too. The default of a run [depends on the data](evaluation.md).
- Among the recipes of one data set, the one with the best validation metric when it was chosen is
  named `best`. Recipes that were measured later, and recipes that were selected by the other
  treatment of the history, can be better in a row. hasten computes the defaults from the size of
  the data, by rules that are newer than most recipes, so in some rows the defaults are better.
- `degree` learns nothing at random: its seed selects only the training, validation and test links.
- Link AUROC measures how well scores separate held-out links from sampled pairs that are not links
  (`hasten check-embeddings`).
- The training time is that of one run with the recipe, averaged over the seeds. Some machines were
  busy with other work: for speed see [benchmarks](benchmarks.md).
- *MovieLens-100k with triples* is the split on which KGAT is measured. `bprmf` and `lightgcn`
  ignore the triples.
- Each figure links to its record: the command, the protocol, the machine and the learning curves.

{table}
"""

Records = Mapping[str, Sequence[Mapping[str, Any]]]


def headline_table(found: Sequence[Recipe], records: Records) -> str:
    """One row for each model and data set, or two: the recipes of the README.

    Both figures need three seeds; the others are in the page of all recipes.
    """
    of_pair: dict[tuple[str, str], list[Recipe]] = {}
    for recipe in found:
        metric = next(headlines(recipe, records))
        if len(recipe.seeds) >= ENOUGH and not _unsure(as_it_comes(recipe, metric, records)):
            of_pair.setdefault((recipe.model, recipe.data), []).append(recipe)
    lines = [
        f"| {COLUMNS} | `--recipe` | recipe's training time |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for recipes_of_pair in of_pair.values():
        named = [r for r in recipes_of_pair if r.key.partition("/")[2] in HEADLINES]
        for recipe in named or recipes_of_pair[:1]:
            cells = [*_cells(recipe, next(headlines(recipe, records)), records), _training(recipe)]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(found: Sequence[Recipe], records: Records) -> str:
    """One row for each recipe and headline metric."""
    lines = [
        f"| {COLUMNS} | `--recipe` | seeds | recipe's training time |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for recipe in found:
        for metric in headlines(recipe, records):
            cells = [
                *_cells(recipe, metric, records),
                f"{len(recipe.seeds)}",
                _training(recipe),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(recipe: Recipe, metric: str, records: Records) -> list[str]:
    """Model, data, metric, both figures and the name of the recipe."""
    name, _, cut = metric.partition("@")
    linked = f"[{figure(recipe.expected[metric])}](docs/experiments.md#{recipe.records})"
    return [
        f"[`{recipe.model}`](docs/models/{PAGES.get(recipe.model, recipe.model)}.md)",
        DATA[recipe.data],
        METRICS.get(name, name.capitalize()) + (f"@{cut}" if cut else "") + _history(recipe),
        as_it_comes(recipe, metric, records),
        linked + PROVISIONAL * (len(recipe.seeds) < ENOUGH),
        f"`{recipe.key}`",
    ]


def _history(recipe: Recipe) -> str:
    """How the ranking treats the history, for recommenders."""
    parts = recipe.protocol.split(", ")
    return "".join(f", {part}" for part in parts if part in ("history kept", "history masked"))


def _training(recipe: Recipe) -> str:
    return f"{recipe.training_seconds:,} s"


def headlines(recipe: Recipe, records: Records) -> Iterator[str]:
    """The metric that is shown, and the AUROC of held-out links.

    It is the one that selected the checkpoint, unless the model without options was measured by
    others only.
    """
    found = _without_options(recipe, records)
    first = next(iter(recipe.expected))
    yield next((metric for metric in recipe.expected if metric in found), first)
    if "link_auroc" in recipe.expected:
        yield "link_auroc"


def as_it_comes(recipe: Recipe, metric: str, records: Records) -> str:
    """The figure of the model without options, linked to its record, or "not measured"."""
    if all(key.startswith("data.") or key == "evaluation.metrics" for key in recipe.configuration):
        return figure(recipe.expected[metric])
    found = _without_options(recipe, records)
    if metric not in found:
        return UNMEASURED
    name = _record_without_options(recipe)
    few = len(records[name]) < ENOUGH
    return f"[{figure(found[metric])}](docs/experiments.md#{name})" + PROVISIONAL * few


def _unsure(cell: str) -> bool:
    return cell == UNMEASURED or cell.endswith(PROVISIONAL)


def _record_without_options(recipe: Recipe) -> str:
    *_, (question, _) = CHANGED.get((recipe.model, recipe.data), (("as-it-comes", ""),))
    return f"{recipe.model}-{recipe.data}-{question}"


def _without_options(recipe: Recipe, records: Records) -> Mapping[str, Sequence[float]]:
    """The figures of the model without options, with the recipe's treatment of the history."""
    runs = records.get(_record_without_options(recipe), ())
    found = measured(runs)
    if not found:
        return {}
    kept = "history kept" in recipe.protocol
    if kept != ("history kept" in found["protocol"]) and "history" in recipe.protocol:
        found = measured(runs, "/kept" if kept else "/masked")
    expected: Mapping[str, Sequence[float]] = found["expected"]
    return expected


def figure(values: Sequence[float]) -> str:
    """Mean and standard deviation to four places: ``.0352 ± .0012``."""
    return " ± ".join(f"{value:.4f}".removeprefix("0") for value in values)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    found, records = recipes(), load_configurations(RESULTS)
    readme, page = root / "README.md", root / "docs" / "quality.md"
    wanted = {
        readme: replaced(readme.read_text(), headline_table(found, records), BEGIN, END),
        page: PAGE.format(table=table(found, records).replace("](docs/", "](")),
    }
    return write_pages(wanted, root, check="--check" in arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
