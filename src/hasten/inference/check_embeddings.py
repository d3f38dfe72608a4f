"""Check embeddings for collapse: compare them with random vectors and with held-out links."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hasten.data.tables import PART_NAMES, KnowledgeGraph
from hasten.errors import UsageError
from hasten.evaluation.embedding_diagnostics import (
    MAX_COSINE,
    MIN_COMPONENTS,
    diagnose,
    sample_nodes,
)
from hasten.evaluation.links import link_quality
from hasten.inference.embed import Embeddings, embed, read_embeddings
from hasten.loaded_run import load_run
from hasten.models.interface import NodeEmbedder
from hasten.ops.random import Stream, key

#: AUROC of held-out links above which they are told from others
_TOLD_APART = 0.55
_ROUNDING = 1e-6
NOTE = (
    "random vectors pass the mean cosine and the components: these criteria only detect collapse; "
    "held-out links measure the quality of embeddings"
)


def check_embeddings(
    what: Path,
    *,
    plots: Path | None = None,
    max_cosine: float | None = None,
    min_components: int | None = None,
    within: Mapping[str, tuple[float, float]] | None = None,
    part: str | None = None,
    sample: int = 2048,
    seed: int = 0,
    checkpoint: str = "best",
    device: str = "auto",
) -> dict[str, Any]:
    """Check the embeddings of a file or a run, as ``hasten check-embeddings`` does.

    max_cosine, min_components: limits; None: 0.5 and 15. If the held-out links of a run are told
    from others, these two, and types that are not told apart, are only noted. within: lowest and
    highest mean cosine of pairs within node types. part: of the held-out links; None: test, or
    validation where test is empty or ``evaluation.test`` is off. The result lists the failed
    criteria as ``problems``, and those that are only noted as ``noted``. Raises UsageError if
    there is nothing to read.
    """
    links = of_part = None
    embeddings: Embeddings | None = None
    if what.is_dir():
        loaded = load_run(what, checkpoint=checkpoint, device=device)
        graph = loaded.dataset
        if not isinstance(graph, KnowledgeGraph):
            raise UsageError(f"{what}: a run of {loaded.config.model.name} has no embeddings")
        if isinstance(loaded.model, NodeEmbedder):
            embeddings = embed(loaded)
        default_parts = ("test", "valid") if loaded.config.evaluation.test else ("valid",)
        parts = [PART_NAMES.index(name) for name in (default_parts if part is None else (part,))]
        of_part = next((p for p in parts if len(graph.of(p))), None)
        if of_part is not None:
            links = link_quality(loaded.model, graph, of_part, seed)
    else:
        embeddings = read_embeddings(what)
    if part is not None and of_part is None:
        raise UsageError(f"{what}: no links of the part {part} to evaluate")
    figures = random = None
    problems: list[str] = []
    noted: list[str] = []
    told_apart = links is not None and links.auroc > _TOLD_APART
    files: list[str] = []
    if embeddings is not None:
        texts = np.array(embeddings.kinds.to_pylist(), object).astype(str)
        names, code = np.unique(texts, return_inverse=True)
        vectors, kinds = sample_nodes(
            torch.from_numpy(embeddings.vectors), code.reshape(-1), seed, sample
        )
        figures = diagnose(vectors, kinds, tuple(names.tolist()))
        generator = torch.Generator().manual_seed(key(seed, Stream.SAMPLE, 61) % 2**63)
        noise = torch.randn(vectors.shape, generator=generator)
        random = diagnose(noise, kinds, tuple(names.tolist()))
        cosine, components = max_cosine or MAX_COSINE, min_components or MIN_COMPONENTS
        problems = figures.problems(cosine, components)
        if told_apart:  # these criteria stand in for links
            serious = figures.problems(max_cosine or math.inf, min_components or 0, typed=False)
            noted, problems = [text for text in problems if text not in serious], serious
        problems += outside(figures.within_type, within or {})
        if plots is not None:
            from hasten.inference.embedding_plots import (  # noqa: PLC0415 - brings matplotlib
                plot_components,
            )

            shown = names[kinds].tolist()
            files = [str(p) for p in plot_components(vectors.numpy(), shown, plots)]
    elif plots is not None or within:
        raise UsageError(f"{what}: this model has no embeddings to draw or to compare")
    if links is not None and not told_apart:
        problems.append(f"held-out links are not told from others: AUROC {links.auroc:.3f}")
    return {
        "what": str(what),
        "nodes": None if embeddings is None else len(embeddings),
        "health": None if figures is None else figures.to_json(),
        "random": None if random is None else random.to_json(),
        "links": None if links is None else asdict(links),
        "part": None if of_part is None else PART_NAMES[of_part],
        "warning": None if figures is None else figures.warning,
        "problems": problems,
        "noted": noted,
        "plots": files,
        "note": NOTE,
    }


def outside(figures: Mapping[str, float], limits: Mapping[str, tuple[float, float]]) -> list[str]:
    """The node types whose mean cosine is not within its limits. Raises UsageError if unknown."""
    problems = []
    for name, (low, high) in limits.items():
        if name not in figures:
            raise UsageError(f"--within {name}: there are {', '.join(figures) or 'no types'}")
        if not low - _ROUNDING <= figures[name] <= high + _ROUNDING:
            problems.append(f"cosine within {name} is {figures[name]:.3f}, not {low:g} to {high:g}")
    return problems
