"""RecBole's KGAT on ml-100k with its facts, timed from outside: nothing of RecBole is changed.

Run by the Python of ``.venvs/recbole`` (``make bench-env``). An epoch is RecBole's own: all pairs,
all triples, the attention anew.

    .venvs/recbole/bin/python -m bench.recbole_side.kgat --epochs 3
    .venvs/recbole/bin/python -m bench.recbole_side.kgat --until-best --seed 0

With ``--until-best`` it trains as RecBole does, until validation NDCG@20 has not risen for so many
evaluations, and reports the test figures of the best epoch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.facts_split import NAME, PARTS, facts_split
from bench.report import Stopwatch, print_report


def configured(options: argparse.Namespace, scratch: str) -> dict[str, Any]:
    """What RecBole is told; everything else is its default."""
    return {
        "data_path": str(facts_split().parent),
        "checkpoint_dir": scratch,
        "benchmark_filename": list(PARTS),
        "use_gpu": False,
        "seed": options.seed,
        "show_progress": False,
        "load_col": {
            "inter": ["user_id", "item_id"],
            "kg": ["head_id", "relation_id", "tail_id"],
            "link": ["item_id", "entity_id"],
        },
        "eval_args": {"group_by": "user", "order": "RO", "mode": "full"},
        "embedding_size": options.width,
        "kg_embedding_size": options.width,
        "layers": options.layers,
        "learning_rate": options.lr,
        "train_batch_size": options.batch_size,
        "eval_batch_size": 4096 * 100,
        "epochs": options.epochs,
        "eval_step": options.eval_every,
        "stopping_step": options.patience,
        "metrics": ["NDCG", "Recall"],
        "topk": [20],
        "valid_metric": "NDCG@20",
        "metric_decimal_place": 8,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, nargs="+", default=[64])
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3, help="at most; where timed: after one")
    parser.add_argument("--until-best", action="store_true", help="early stopping, and the test")
    parser.add_argument("--eval-every", type=int, default=3)
    parser.add_argument("--patience", type=int, default=8, help="evaluations without improvement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sys.argv = sys.argv[:1]  # RecBole reads it too
    # RecBole 1.2.1 loads its checkpoints, made here a moment before, as torch did before 2.6
    os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"

    import torch
    from recbole.config import Config
    from recbole.data import create_dataset, data_preparation
    from recbole.utils import get_model, get_trainer, init_seed

    # its KGAT names an option of dgl as it was called before dgl 1.0
    dgl: Any = importlib.import_module("dgl")
    subgraph = dgl.edge_subgraph
    dgl.edge_subgraph = lambda graph, edges, preserve_nodes: subgraph(
        graph, edges, relabel_nodes=not preserve_nodes
    )
    torch.set_num_threads(options.threads)
    quality: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        told = configured(options, scratch)
        os.chdir(scratch)  # RecBole writes its logs into the current folder
        config = Config(model="KGAT", dataset=NAME, config_dict=told)
        init_seed(config["seed"], config["reproducibility"])
        train, valid, test = data_preparation(config, create_dataset(config))
        model = get_model("KGAT")(config, train._dataset).to(config["device"])
        trainer = get_trainer(config["MODEL_TYPE"], "KGAT")(config, model)
        clock, epochs, wall, cpu = Stopwatch(), 0, 0.0, 0.0
        if options.until_best:
            own = trainer._train_epoch

            def timed(*arguments: Any, **more: Any) -> Any:
                nonlocal epochs, wall, cpu
                clock.restart()
                losses = own(*arguments, **more)
                seconds = clock.seconds()
                epochs, wall, cpu = epochs + 1, wall + seconds[0], cpu + seconds[1]
                print(f"epoch {epochs}: {losses} {seconds[1]:.1f} CPU s", file=sys.stderr)
                return losses

            trainer._train_epoch = timed
            best, found = trainer.fit(train, valid, show_progress=False)
            print(f"best on validation: {dict(found)}", file=sys.stderr)
            judged = trainer.evaluate(test, load_best_model=True)
            quality = {"valid": dict(found), "test": dict(judged), "epochs": epochs}
            loss = float(best)
        else:
            for epoch in range(options.epochs + 1):
                if epoch == 1:  # the first one warms up
                    clock.restart()
                loss = float(sum(trainer._train_epoch(train, epoch)))
            (wall, cpu), epochs = clock.seconds(), options.epochs
        os.chdir(Path("/"))
    print_report(
        wall=wall,
        cpu=cpu,
        steps=epochs,
        steps_per_epoch=1,
        examples_per_epoch=len(train._dataset),
        versions={"torch": torch.__version__, "recbole": "1.2.1"},
        threads=options.threads,
        loss=loss,
        **quality,
    )


if __name__ == "__main__":
    main()
