"""Embeddings of a file or of a run beside random vectors, and what held-out links say of them."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from hasten.data.graph import KnowledgeGraph
from hasten.data.tables import PART_NAMES, TEST, VALID
from hasten.evaluation.health import health, sample_of
from hasten.evaluation.links import link_quality
from hasten.inference.embed import embed, read_embeddings
from hasten.models.seam import Model
from hasten.ops.random import Stream, key
from hasten.run import load_run

NOTE = (
    "random vectors pass the mean cosine and the components: they speak against collapse only; "
    "what embeddings are worth, held-out links say"
)


def check_embeddings(
    what: Path,
    *,
    plots: Path | None = None,
    max_cosine: float = 0.5,
    min_components: int = 15,
    sample: int = 2048,
    seed: int = 0,
    checkpoint: str = "best",
    device: str = "auto",
) -> dict[str, Any]:
    """Everything that ``hasten check-embeddings`` says, and ``problems``: criteria not met.

    Raises:
        UsageError: nothing can be read there.
    """
    links = part = None
    if what.is_dir():
        loaded = load_run(what, checkpoint=checkpoint, device=device)
        found = embed(loaded)
        graph = loaded.dataset
        assert isinstance(graph, KnowledgeGraph)
        part = next((p for p in (TEST, VALID) if len(graph.of(p))), None)
        if part is not None:
            links = link_quality(cast(Model, loaded.model), graph, part, seed)
    else:
        found = read_embeddings(what)
    names, code = np.unique(
        np.array(found.kinds.to_pylist(), object).astype(str), return_inverse=True
    )
    vectors, kinds = sample_of(torch.from_numpy(found.vectors), code.reshape(-1), seed, sample)
    kind_names = tuple(names.tolist())
    figures = health(vectors, kinds, kind_names)
    generator = torch.Generator().manual_seed(key(seed, Stream.SAMPLE, 61) % 2**63)
    random = health(torch.randn(vectors.shape, generator=generator), kinds, kind_names)
    problems = figures.problems(max_cosine, min_components)
    if links is not None and not links.auroc > 0.55:
        problems.append(f"held-out links are not told from others: AUROC {links.auroc:.3f}")
    files: list[str] = []
    if plots is not None:
        from hasten.reporting.embedding_plots import plot_components  # noqa: PLC0415 - matplotlib

        shown = names[kinds].tolist()
        files = [str(p) for p in plot_components(vectors.numpy(), shown, plots)]
    return {
        "what": str(what),
        "nodes": len(found),
        "health": figures.to_json(),
        "random": random.to_json(),
        "links": None if links is None else asdict(links),
        "part": None if part is None else PART_NAMES[part],
        "warning": figures.warning,
        "problems": problems,
        "plots": files,
        "note": NOTE,
    }
