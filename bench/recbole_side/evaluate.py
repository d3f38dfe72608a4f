"""RecBole's own evaluation of given scores: its data loaders, masks, ranking and metrics.

Run by the Python of ``.venvs/recbole``. IN holds ``user``, ``item``, ``part`` (0 train, 1 valid,
2 test) and ``time`` of the interactions, and ``scores`` [users, items]. General models get the
parts as they are; with ``--sequential`` RecBole splits by time itself (leave one out).

    .venvs/recbole/bin/python -m bench.recbole_side.evaluate IN.npz OUT.json [--sequential]
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

PARTS = ("train", "valid", "test")


def write_files(data: Any, folder: Path, sequential: bool) -> None:
    """Atomic files: one with the times, or one for each part."""
    (folder / "made").mkdir()
    columns = np.stack([data["user"], data["item"], data["time"]], axis=1)
    files = {"made": columns}
    if not sequential:
        files = {f"made.{name}": columns[data["part"] == n] for n, name in enumerate(PARTS)}
    for name, rows in files.items():
        with (folder / "made" / f"{name}.inter").open("w") as file:
            file.write("user_id:token\titem_id:token\ttimestamp:float\n")
            np.savetxt(file, rows, fmt="%d", delimiter="\t")


def main() -> None:
    source, target, *flags = sys.argv[1:]
    data, out, sequential = np.load(source), Path(target).resolve(), "--sequential" in flags
    sys.argv = sys.argv[:1]  # RecBole reads it too

    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.model.abstract_recommender import GeneralRecommender, SequentialRecommender
    from recbole.trainer import Trainer

    with tempfile.TemporaryDirectory() as scratch:
        write_files(data, Path(scratch), sequential)
        os.chdir(scratch)  # RecBole writes logs into the current folder
        how: dict[str, Any] = {"benchmark_filename": list(PARTS)}
        if sequential:
            how = {
                "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full"},
                "train_neg_sample_args": None,
            }
        config = Config(
            model="SASRec" if sequential else "BPR",
            dataset="made",
            config_dict={
                "data_path": scratch,
                "use_gpu": False,
                "show_progress": False,
                "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
                "metrics": ["MRR", "Recall", "NDCG", "Hit", "Precision", "MAP"],
                "topk": [5, 10],
                "metric_decimal_place": 12,
                **how,
            },
        )
        train, valid, test = data_preparation(config, create_dataset(config))
        ids = [train._dataset.field2id_token[name] for name in ("user_id", "item_id")]
        scores = torch.zeros(*map(len, ids))
        ours = [np.array(names[1:], np.int64) for names in ids]
        scores[1:, 1:] = torch.from_numpy(data["scores"][np.ix_(*ours)])

        kind: Any = SequentialRecommender if sequential else GeneralRecommender

        class Fixed(kind):  # type: ignore[misc]
            """Returns the given scores."""

            def __init__(self) -> None:
                super().__init__(config, train._dataset)
                self.weight = torch.nn.Parameter(torch.zeros(1))  # its optimizer needs one

            def full_sort_predict(self, interaction: Any) -> torch.Tensor:
                return scores[interaction["user_id"]].clone()

        trainer = Trainer(config, Fixed())
        trainer.eval_collector.data_collect(train)
        found = {
            name: trainer.evaluate(part, load_best_model=False)
            for name, part in (("valid", valid), ("test", test))
        }
    out.write_text(json.dumps({k: {n: float(x) for n, x in v.items()} for k, v in found.items()}))


if __name__ == "__main__":
    main()
