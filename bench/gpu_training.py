"""SASRec trained on a device: every precision, compiled, resumed; time, memory, quality."""

from __future__ import annotations

import csv
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hasten.config_loading.build import build_config
from hasten.run import train


@dataclass(frozen=True)
class Synthetic:
    """Sequences that follow a ring of items with jumps: learnable, of any size."""

    users: int = 20_000
    items: int = 10_000
    longest: int = 200

    def columns(self) -> dict[str, Any]:
        """The events by column."""
        generator = np.random.default_rng(0)
        lengths = np.clip(generator.geometric(1 / 40, self.users) + 4, 5, self.longest)
        total = int(lengths.sum())
        user = np.repeat(np.arange(self.users), lengths)
        place = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        step = np.where(generator.random(total) < 0.8, 1, generator.integers(0, self.items, total))
        walked = np.cumsum(step)
        begin = np.repeat(np.cumsum(lengths) - lengths, lengths)
        start = np.repeat(generator.integers(0, self.items, self.users), lengths)
        item = (start + walked - walked[begin]) % self.items
        return {"user_id": user, "item_id": item, "timestamp": place}

    def write(self, path: Path) -> None:
        columns = self.columns()
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(columns)
            writer.writerows(zip(*(each.tolist() for each in columns.values()), strict=True))


def train_once(
    data: Path, out: Path, device: torch.device, epochs: int, *sets: str
) -> dict[str, Any]:
    """One run in this process: its result, seconds of each epoch and peak device memory."""
    chosen = [
        f"training.epochs={epochs}",
        f"evaluation.every={epochs}",
        f"checkpoint.every={epochs}",
        "model.dropout=0.2",
        *sets,
    ]
    config = build_config("sasrec", str(data), None, chosen, {"device": str(device), "out": out})
    cuda = device.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    begin = time.perf_counter()
    result = train(config, quiet=True).to_json()
    total = time.perf_counter() - begin
    lines = (out / "metrics.jsonl").read_text().splitlines()
    epochs_seen = [r for r in map(json.loads, lines) if r["kind"] == "train"]
    return {
        "settings": list(sets),
        "epoch_seconds": [record["seconds"] for record in epochs_seen],
        "losses": [record["loss"] for record in epochs_seen],
        "examples_per_second": epochs_seen[-1]["examples_per_second"],
        "test": result["test"],
        "effective": result["effective"],
        "peak_device_bytes": torch.cuda.max_memory_allocated(device) if cuda else None,
        "total_seconds": total,
    }


def training_runs(
    device: torch.device,
    scratch: Path,
    size: Synthetic,
    epochs: int,
    compiled: bool,
) -> dict[str, Any]:
    """Precisions and accelerations one at a time, fp32 first: each says whether it held."""
    data = scratch / "synthetic.csv"
    size.write(data)
    variants: list[tuple[str, tuple[str, ...]]] = [
        ("fp32", ()),
        ("bf16", ("training.precision=bf16",)),
        ("fp32 recompute", ("training.recompute=true",)),
        ("fp32 accumulate 4", ("training.accumulate=4",)),
        ("fp32 bce", ("model.loss=bce",)),
    ]
    if device.type == "cuda":
        variants.insert(1, ("fp16", ("training.precision=fp16",)))
    if compiled:
        variants += [
            ("fp32 compile default", ("training.compile=default",)),
            (
                "bf16 compile reduce-overhead",
                ("training.compile=reduce-overhead", "training.precision=bf16"),
            ),
        ]
    runs: list[dict[str, Any]] = []
    for number, (name, sets) in enumerate(variants):
        try:
            run = train_once(data, scratch / f"run-{number}", device, epochs, *sets)
        except Exception as error:  # noqa: BLE001 - recorded: one must not hide the others
            runs.append(
                {"name": name, "passed": False, "error": f"{type(error).__name__}: {error}"}
            )
            continue
        run["name"] = name
        run["passed"] = bool(run["losses"][-1] < run["losses"][0])
        same_loss = "model.loss=bce" not in sets
        if runs and same_loss and "losses" in runs[0]:
            run["loss_against_fp32"] = run["losses"][-1] / runs[0]["losses"][-1]
            run["passed"] = run["passed"] and abs(run["loss_against_fp32"] - 1) < 0.02
        runs.append(run)
    return {"passed": all(run["passed"] for run in runs), "runs": runs}


def repeated(device: torch.device, scratch: Path, size: Synthetic, epochs: int) -> dict[str, Any]:
    """Under ``deterministic`` the same run twice has the same weights, bit for bit."""
    digests, data = [], scratch / "synthetic.csv"
    size.write(data)
    for attempt in range(2):
        out = scratch / f"repeat-{attempt}"
        train_once(data, out, device, epochs, "training.deterministic=true")
        digests.append(_weights_digest(out / "final"))
    torch.use_deterministic_algorithms(False)
    return {"passed": digests[0] == digests[1], "sha256": digests[0]}


def _weights_digest(folder: Path) -> str:
    """sha256 of the weights, as the checkpoint's manifest has it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return str(manifest["files"]["weights.safetensors"]["sha256"])
