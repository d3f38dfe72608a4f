"""Write what was measured into the recipes, from the records that they name.

python -m experiments.recipes [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import yaml

from experiments.summary import RESULTS, load_configurations, processor
from hasten.recipes.load import FOLDER

Records = Mapping[str, Sequence[Mapping[str, Any]]]


def measured(records: Sequence[Mapping[str, Any]], treatment: str = "") -> dict[str, Any]:
    """Seeds, test figures, protocol, time and machine of the runs whose test figures are known.

    treatment: ``/kept`` or ``/masked`` for the figures with the opposite treatment of the history.
    """
    seen = [{**r, **r.get("opened", {})} for r in records if "test" in r or "opened" in r]
    if not seen:
        return {}
    first = seen[0]
    metrics = first["config"]["evaluation"]["metrics"]
    figures = {name: [record["test"][name + treatment] for record in seen] for name in metrics}
    if first.get("embeddings"):
        for name in ("auroc", "ap"):
            found = [record["embeddings"]["links"][name] for record in seen]
            figures[f"link_{name}"] = found
    return {
        "seeds": [record["seed"] for record in seen],
        "expected": {name: _spread(values) for name, values in figures.items()},
        "protocol": first["protocol"],
        "training_seconds": round(mean(record["seconds"]["train"] for record in seen)),
        "machine": f"{processor(first['machine'])}, torch {first['versions']['torch']}",
    }


def _spread(values: Sequence[float]) -> list[float]:
    """Mean and standard deviation; of one value the mean alone."""
    figures = [mean(values), stdev(values)] if len(values) > 1 else [values[0]]
    return [round(figure, 4) for figure in figures]


def completed(path: Path, records: Records) -> str:
    """The text of a recipe file with the measured figures of its records."""
    sections = yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)  # noqa: S506 - text only
    lines: list[str] = []
    for name, section in sections.items():
        lines += [f"{name}:", f"  about: {section['about']}", "  configuration:"]
        for key, value in section["configuration"].items():
            shown = f"[{', '.join(value)}]" if isinstance(value, list) else value
            lines.append(f"    {key}: {shown}")
        lines += [
            "  # written by make docs from experiments/results",
            f"  records: {section['records']}",
        ]
        for key, value in measured(records.get(section["records"], ())).items():
            if isinstance(value, dict):
                lines += [f"  {key}:", *(f"    {k}: {json.dumps(v)}" for k, v in value.items())]
            else:
                lines.append(f"  {key}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str], folder: Path = FOLDER, results: Path = RESULTS) -> int:
    records = load_configurations(results)
    stale = 0
    for path in sorted(folder.glob("*/*.yaml")):
        text = completed(path, records)
        if text == path.read_text(encoding="utf-8"):
            continue
        if "--check" in arguments:
            print(
                f"recipes/{path.parent.name}/{path.name} is stale: run make docs", file=sys.stderr
            )
            stale = 1
        else:
            path.write_text(text, encoding="utf-8")
    return stale


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
