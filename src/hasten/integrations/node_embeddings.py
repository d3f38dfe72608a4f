"""Embeddings of a typed graph in one call; parameters as in docs/coming-from/hgt-mps-guide.md."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from hasten.errors import UsageError


def generate_hgt_embeddings_batched(
    edges_csv: str | Path,
    output_csv: str | Path,
    embedding_dim: int = 512,
    hidden_dim: int = 256,
    num_layers: int = 2,
    num_heads: int = 8,
    num_epochs: int = 100,
    learning_rate: float = 0.001,
    device: str | None = None,
    edge_sample_size: int = 5000,
    node_batch_size: int = 2048,
    accumulation_steps: int = 4,
    contrastive_weight: float = 0.5,
    similarity_threshold: float = 0.1,
    include_node_types: Sequence[str] | None = None,
    *,
    run: str | Path | None = None,
    settings: dict[str, Any] | None = None,
    seed: int = 0,
    quiet: bool = False,
) -> dict[str, Any]:
    """Train HGT on ``edges_csv`` and write its node embeddings to ``output_csv``.

    An epoch is one optimizer step, as in the guide: ``edge_sample_size`` links of every relation
    are scored (at most a fifth of them), in ``accumulation_steps`` micro-batches, each with the
    neighborhoods of its own links. node_batch_size: nodes that inference computes at a time.
    device: None: CUDA, MPS or the CPU, and the CPU where that fails (said on stderr).
    run: the run folder, kept; None: a temporary one. settings: more configuration keys.

    Returns:
        The guide's embedding_dim, num_epochs, device, total_nodes and output_file; also metrics
        (of held-out links, test part), health, collapsed, seconds, peak_memory_bytes, run.

    Raises:
        hasten.HastenError: what is wrong, in words; nothing is written then.
    """
    import torch  # noqa: PLC0415 - slow to import

    from hasten.api import train  # noqa: PLC0415 - brings torch
    from hasten.distributed.device import resolve_device  # noqa: PLC0415
    from hasten.evaluation.embedding_diagnostics import diagnose_nodes  # noqa: PLC0415
    from hasten.inference.embed import embed, write_embeddings  # noqa: PLC0415
    from hasten.training.cpu_fallback import with_cpu_fallback  # noqa: PLC0415

    out = Path(output_csv)
    if out.suffix.lower() != ".csv":
        raise UsageError(f"output_csv={out}: a file that ends in .csv is expected")
    if not out.parent.is_dir():
        raise UsageError(f"output_csv={out}: there is no folder {out.parent}")
    keys: dict[str, Any] = {
        "model.width": embedding_dim,
        "model.hidden": hidden_dim,
        "model.layers": num_layers,
        "model.heads": num_heads,
        "model.mode": "edges",
        "model.steps_per_epoch": 1,
        "model.contrastive_weight": contrastive_weight,
        "model.similarity_threshold": similarity_threshold,
        "training.accumulate": accumulation_steps,
        "training.batch_size": edge_sample_size,
        "evaluation.every": max(1, num_epochs // 10),
        "checkpoint.every": max(1, num_epochs // 10),
        "seed": seed,
        **({} if include_node_types is None else {"data.node_types": list(include_node_types)}),
        **(settings or {}),
    }

    def attempt(where: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="hasten-") as scratch:
            folder = Path(scratch) / "run" if run is None else Path(run)
            result = train(
                "hgt", edges_csv, settings=keys, epochs=num_epochs, lr=learning_rate,
                device=where, out=folder, quiet=quiet,
            )  # fmt: skip
            embeddings, model = embed(result.loaded, node_batch_size), result.loaded.model
            types = cast(Any, model).graph.types
            diagnostics = diagnose_nodes(torch.from_numpy(embeddings.vectors), types, seed)
            write_embeddings(embeddings, out, "csv")
            return {
                "embedding_dim": embedding_dim,
                "num_epochs": result.summary.epochs,
                "device": where,
                "total_nodes": len(embeddings),
                "output_file": str(out),
                "metrics": dict(result.summary.test),
                "health": diagnostics.to_json(),
                "collapsed": diagnostics.collapsed,
                "seconds": result.summary.seconds["total"],
                "peak_memory_bytes": result.summary.peak_memory_bytes,
                "run": None if run is None else str(folder),
            }

    def say(text: str) -> None:
        sys.stderr.write(f"warning: {text}\n")

    name = str(resolve_device(device or "auto"))
    stats, _ = with_cpu_fallback(attempt, name, device is not None, say)
    return stats
