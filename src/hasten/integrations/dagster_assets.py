"""HGT embeddings as Dagster assets: graph -> embeddings -> validation (needs ``dagster``).

    graphs = {"whole": GraphSource("kg.csv")}
    defs = hgt_definitions(graphs, Path("embeddings"))

Each graph is a partition. ``FOLDER/GRAPH`` contains ``graph.json``, the run folders, the embeddings
of the newest run and plots. Assets exchange files only; nothing is pickled.
"""

# no "from __future__ import annotations": Dagster reads the annotations of assets

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import dagster as dg
import numpy as np

from hasten.atomic_write import write_atomically
from hasten.build import load_data
from hasten.config_loading.build import build_config
from hasten.data.graph.node_types import NodeTypes
from hasten.data.store import fingerprint
from hasten.data.tables import KnowledgeGraph
from hasten.errors import HastenError

Found = TypeVar("Found")


@dataclass(frozen=True)
class GraphSource:
    """A graph as ``hasten train hgt DATA`` takes it.

    data: a path or a registered name; settings: dotted keys that belong to the data, such as
    ``data.node_types`` or ``seed`` (which the split follows from).
    """

    data: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class TrainingConfig(dg.Config):
    """Configuration of ``hgt_embeddings``; settings: any other keys of a run's configuration.

    A step encodes the neighborhoods of a batch in four micro-batches; mode="full" encodes the whole
    graph.
    """

    epochs: int = 100
    width: int = 512
    hidden: int = 256
    layers: int = 2
    heads: int = 8
    mode: str = "edges"
    batch_size: int = 5000
    accumulate: int = 4
    lr: float = 1e-3
    device: str = "auto"
    settings: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it


_OF_MODEL = ("width", "hidden", "layers", "heads", "mode")
_OF_TRAINING = ("epochs", "batch_size", "accumulate", "lr")


class ValidationConfig(dg.Config):
    """Configuration of ``hgt_validation``: the criteria of ``hasten check-embeddings``.

    within: lowest and highest mean cosine within node types, as {"disease": [0.5, 0.8]}.
    """

    max_cosine: float = 0.5
    min_components: int = 15
    within: dict[str, list[float]] = {}  # noqa: RUF012 - pydantic copies it
    sample: int = 2048
    device: str = "auto"


def hgt_definitions(graphs: Mapping[str, GraphSource], folder: Path) -> dg.Definitions:
    """What ``dagster dev -f FILE`` looks for: the assets, and a job that makes all three."""
    assets = hgt_assets(graphs, folder)
    job = dg.define_asset_job("hgt", selection=dg.AssetSelection.assets(*assets))
    return dg.Definitions(assets=assets, jobs=[job])


def hgt_assets(graphs: Mapping[str, GraphSource], folder: Path) -> list[dg.AssetsDefinition]:
    """The assets ``typed_graph``, ``hgt_embeddings`` and ``hgt_validation``, a partition a graph.

    Errors of hasten fail the asset with their message.
    """
    parts = dg.StaticPartitionsDefinition(sorted(graphs))

    @dg.asset(partitions_def=parts, group_name="hgt")
    def typed_graph(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """The graph, read and checked; its counts are recorded."""
        name = context.partition_key
        graph = _as_failure(lambda: _read(graphs[name]))
        described = {"data": graphs[name].data, "fingerprint": fingerprint(graph)}
        place = folder / name
        place.mkdir(parents=True, exist_ok=True)
        _write(place / "graph.json", described)
        return dg.MaterializeResult(metadata={**described, **_counts(graph)})

    @dg.asset(partitions_def=parts, group_name="hgt", deps=[typed_graph])
    def hgt_embeddings(
        context: dg.AssetExecutionContext, config: TrainingConfig
    ) -> dg.MaterializeResult:
        """A trained run, and the embeddings of all nodes as CSV (the guide's columns)."""
        from hasten.api import train  # noqa: PLC0415 - brings torch
        from hasten.inference.embed import embed, write_embeddings  # noqa: PLC0415

        name = context.partition_key
        place, source = folder / name, graphs[name]
        expected = _recorded(place / "graph.json", "typed_graph")["fingerprint"]
        if _as_failure(lambda: fingerprint(_read(source))) != expected:
            raise dg.Failure(
                f"the data of {name!r} have changed since typed_graph read them: materialize it "
                "again"
            )
        run = place / "runs" / context.run_id
        result = _as_failure(
            lambda: train(
                "hgt", source.data, settings=_settings(source, config), out=run,
                device=config.device, quiet=True,
            )
        )  # fmt: skip
        embeddings = embed(result.loaded)
        (file,) = write_embeddings(embeddings, place / "embeddings.csv", "csv")
        _write(place / "embeddings.json", {"run": str(run), "file": str(file)})
        summary = result.summary
        return dg.MaterializeResult(
            metadata={
                "run": dg.MetadataValue.path(str(run)),
                "embeddings": dg.MetadataValue.path(str(file)),
                "nodes": len(embeddings),
                "width": config.width,
                "epochs": summary.epochs,
                "seconds": summary.seconds["total"],
                "peak_memory_bytes": summary.peak_memory_bytes,
                **{f"test {metric}": value for metric, value in summary.test.items()},
            }
        )

    @dg.asset(
        partitions_def=parts,
        group_name="hgt",
        deps=[hgt_embeddings],
        check_specs=[
            dg.AssetCheckSpec(check, asset="hgt_validation")
            for check in ("has_not_collapsed", "tells_links")
        ],
    )
    def hgt_validation(
        context: dg.AssetExecutionContext, config: ValidationConfig
    ) -> dg.MaterializeResult:
        """The result of ``hasten check-embeddings`` for the newest run, with plots."""
        from hasten.inference.check_embeddings import (  # noqa: PLC0415 - brings torch
            check_embeddings,
        )

        place = folder / context.partition_key
        run = Path(_recorded(place / "embeddings.json", "hgt_embeddings")["run"])
        check = _as_failure(
            lambda: check_embeddings(
                run, plots=place / "plots", max_cosine=config.max_cosine,
                min_components=config.min_components, sample=config.sample, device=config.device,
                within={name: (low, high) for name, (low, high) in config.within.items()},
            )
        )  # fmt: skip
        _write(place / "validation.json", check)
        links = _figures(check["links"])
        of_links = [text for text in check["problems"] if text.startswith("held-out links")]
        collapsed = [text for text in check["problems"] if text not in of_links]
        return dg.MaterializeResult(
            metadata={
                **{f"these: {k}": v for k, v in _figures(check["health"]).items()},
                **{f"random: {k}": v for k, v in _figures(check["random"]).items()},
                **{f"links: {k}": v for k, v in links.items()},
                **{Path(plot).stem: _picture(Path(plot)) for plot in check["plots"]},
            },
            check_results=[
                _check("has_not_collapsed", collapsed, {"note": check["note"]}),
                _check("tells_links", of_links, links),
            ],
        )

    return [typed_graph, hgt_embeddings, hgt_validation]


def _settings(source: GraphSource, config: TrainingConfig) -> dict[str, Any]:
    of_model = {f"model.{key}": getattr(config, key) for key in _OF_MODEL}
    of_training = {f"training.{key}": getattr(config, key) for key in _OF_TRAINING}
    return {**of_model, **of_training, **config.settings, **source.settings}


def _read(source: GraphSource) -> KnowledgeGraph:
    graph = load_data(build_config("hgt", source.data, None, (), dict(source.settings)), None)
    assert isinstance(graph, KnowledgeGraph)
    return graph


def _counts(graph: KnowledgeGraph) -> dict[str, Any]:
    types = NodeTypes.of(graph)
    edges = np.bincount(graph.triples.relation, minlength=len(graph.relations)).tolist()
    relations = graph.relations.labels.to_pylist()
    return {
        "nodes": len(graph.entities),
        "edges": len(graph.triples),
        "split": graph.split,
        "nodes by type": _table(types.names, types.sizes.tolist()),
        "edges by relation": _table(relations, edges),
    }


def _table(names: Iterable[str], counts: Iterable[int]) -> dg.MetadataValue:
    rows = (f"| {name} | {count:,} |" for name, count in zip(names, counts, strict=True))
    return dg.MetadataValue.md("\n".join(["| | |", "| --- | ---: |", *rows]))


def _check(name: str, problems: list[str], more: Mapping[str, Any]) -> dg.AssetCheckResult:
    metadata = {"problems": "; ".join(problems) or "none", **more}
    return dg.AssetCheckResult(check_name=name, passed=not problems, metadata=metadata)


def _figures(diagnostics: Mapping[str, Any] | None) -> dict[str, float]:
    """The numbers of embedding diagnostics or of link classification."""
    return {k: float(v) for k, v in (diagnostics or {}).items() if isinstance(v, int | float)}


def _picture(path: Path) -> dg.MetadataValue:
    text = base64.b64encode(path.read_bytes()).decode()
    return dg.MetadataValue.md(f"![{path.stem}](data:image/png;base64,{text})")


def _as_failure(attempt: Callable[[], Found]) -> Found:
    """Call the function; errors of hasten fail the asset with their message."""
    try:
        return attempt()
    except HastenError as error:
        raise dg.Failure(str(error)) from error


def _recorded(path: Path, asset: str) -> dict[str, Any]:
    if not path.is_file():
        raise dg.Failure(f"{path} is missing: materialize {asset} of this partition first")
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return record


def _write(path: Path, values: Mapping[str, Any]) -> None:
    write_atomically(path, (json.dumps(values, indent=2) + "\n").encode())
