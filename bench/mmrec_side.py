"""MMRec's MMGCN and DRAGON, from the user's clone (``MMREC=DIR``), on the data of our side.

    MMREC=DIR python -m bench.mmrec_side --model MMGCN --data tiktok --steps 12 --threads 2
    MMREC=DIR python -m bench.mmrec_side --model MMGCN --data tiktok --quality --seed 0

Nothing of MMRec is changed. It gets the pairs, the parts and the features as the files that it
reads, under ``build/``, and our batch size, widths and learning rate. ``--steps`` measures so many
steps of an epoch, its own sampling included. ``--quality`` trains as MMRec does, until validation
Recall@20 has not risen for 20 epochs, with our masks (the test part without validation items too),
and writes the test figures of the best epoch into ``bench/results``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pandas
import torch
from torch import Tensor

from bench.clones import clone, clone_version
from bench.data import ROOT, data_folder
from bench.plain_graph import SparseMatrix
from bench.recbole_side.run import TimedBatches
from bench.report import Stopwatch, print_report
from bench.results import circumstances, page, write_result

#: folder of each data set, and its features as MMRec names them
DATA = {"tiktok": ("mm_tiktok", {"image": "image", "audio": "text"})}
RATES = {"MMGCN": 1e-3, "DRAGON": 1e-4}
L2 = {"MMGCN": 1e-4, "DRAGON": 1e-3}
#: neighbors of a user that MMRec's preparation keeps
_COMPANIONS = 200
#: packages that MMRec imports to read images
_FOR_IMAGES = ("lmdb", "torchvision", "torchvision.transforms", "torchvision.transforms.functional")


def written(name: str, build: Path = ROOT / "build" / "bench-data" / "mmrec") -> Path:
    """The folder of a data set in MMRec's layout, made once."""
    source, features = DATA[name]
    folder = build / name
    if not folder.exists():
        unfinished = build / f"{name}.part"
        unfinished.mkdir(parents=True, exist_ok=True)
        tables = [
            np.loadtxt(data_folder() / source / "derived" / f"{part}.tsv", dtype=np.int64)
            for part in ("trn", "val", "tst")
        ]
        lines = [
            f"{user}\t{item}\t{part}\n"
            for part, table in enumerate(tables)
            for user, item in table.tolist()
        ]
        (unfinished / f"{name}.inter").write_text(f"userID\titemID\tx_label\n{''.join(lines)}")
        for ours, theirs in features.items():
            values = np.load(data_folder() / source / f"{ours}_feat.npy")
            np.save(unfinished / f"{theirs}_feat.npy", values.astype(np.float32))
        users = max(int(table[:, 0].max()) for table in tables) + 1
        found: Any = companions(torch.from_numpy(tables[0]), users)
        np.save(unfinished / "user_graph_dict.npy", found)
        unfinished.rename(folder)
    return folder


def companions(pairs: Tensor, users: int) -> dict[int, list[list[float]]]:
    """The users with the most items in common and how many, as MMRec's preparation finds them."""
    items = int(pairs[:, 1].max()) + 1
    user, item = torch.unique(pairs, dim=0).unbind(1)
    met = SparseMatrix(user, item, torch.ones(len(user)), (users, items))
    found = {}
    for some in torch.split(torch.arange(users), 512):
        wanted = torch.zeros(users, len(some))
        wanted[some, torch.arange(len(some))] = 1
        common = (met.matrix @ (met.transposed @ wanted)).T.contiguous()
        common[torch.arange(len(some)), some] = 0
        for number, counts in zip(some.tolist(), common, strict=True):
            best = torch.topk(counts, min(_COMPANIONS, int((counts > 0).sum())))
            found[number] = [best.indices.tolist(), best.values.tolist()]
    return found


class MMRec:
    """MMRec's loaders, model and trainer, configured as our side."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        data = written(options.data)
        sys.path.insert(0, str(folder / "src"))
        os.chdir(folder / "src")  # it reads its configuration from there
        # what it needs of removed names, and of packages for images that no file here has
        setattr(np, "float", float)  # noqa: B010
        os.environ["TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"] = "1"
        absent = [name for name in _FOR_IMAGES if find_spec(name.partition(".")[0]) is None]
        sys.modules.update({name: MagicMock() for name in absent})
        names = ("utils.configurator", "utils.dataset", "utils.dataloader", "utils.utils")
        configurator, datasets, loaders, tools = map(importlib.import_module, names)
        for name in absent:
            del sys.modules[name]
        told = {
            "data_path": f"{data.parent}/",
            "USER_ID_FIELD": "userID",
            "ITEM_ID_FIELD": "itemID",
            "inter_file_name": f"{options.data}.inter",
            "vision_feature_file": "image_feat.npy",
            "text_feature_file": "text_feat.npy",
            "user_graph_dict_file": "user_graph_dict.npy",
            "use_gpu": False,
            "seed": options.seed,
            "train_batch_size": options.batch_size,
            "embedding_size": 64,
            "learning_rate": RATES[options.model],
            "reg_weight": L2[options.model],
            "aggr_mode": "add",
            "epochs": options.epochs,
            "metrics": ["Recall", "NDCG"],
            "topk": [20],
        }
        config = configurator.Config(options.model, options.data, told)
        tools.init_seed(options.seed)
        whole = datasets.RecDataset(config)
        train, valid, test = whole.split()
        for part in (train, valid, test):
            str(part)  # counts its pairs
        known = train.copy(pandas.concat([train.df, valid.df]))
        self.train = loaders.TrainDataLoader(
            config, train, batch_size=config["train_batch_size"], shuffle=True
        )
        size = config["eval_batch_size"]
        self.valid = loaders.EvalDataLoader(
            config, valid, additional_dataset=train, batch_size=size
        )
        self.test = loaders.EvalDataLoader(config, test, additional_dataset=known, batch_size=size)
        self.train.pretrain_setup()
        self.model = tools.get_model(options.model)(config, self.train).to(config["device"])
        # DRAGON replaces it in every step, which only a GPU, where it is no parameter, allows
        self.model._parameters.pop("result_embed", None)
        self.trainer = tools.get_trainer()(config, self.model)

    def steps(self, count: int) -> tuple[float, float, float]:
        """Wall and CPU seconds of so many steps with their share of an epoch's preparation."""
        clock = Stopwatch()
        self.model.pre_epoch_processing()
        before, share = clock.seconds(), count / len(self.train)
        batches = TimedBatches(self.train, 1, count, clock)
        loss, _ = self.trainer._train_epoch(batches, 0)
        wall, cpu = clock.seconds()
        return wall + before[0] * share, cpu + before[1] * share, float(loss) / (count + 1)

    def quality(self) -> dict[str, Any]:
        """Train to the end; the figures of the epoch that validation chose."""
        history: list[dict[str, float]] = []
        judge = self.trainer._valid_epoch

        def noted(part: Any) -> Any:
            score, found = judge(part)
            if part is self.valid:
                history.append({name: float(value) for name, value in found.items()})
                print(
                    f"epoch {len(history)}: validation {history[-1]}", file=sys.stderr, flush=True
                )
            return score, found

        self.trainer._valid_epoch = noted
        clock = Stopwatch()
        _, valid, test = self.trainer.fit(
            self.train, valid_data=self.valid, test_data=self.test, verbose=False
        )
        best = max(range(len(history)), key=lambda epoch: history[epoch]["recall@20"]) + 1
        return {
            "valid": {name: float(value) for name, value in valid.items()},
            "test": {name: float(value) for name, value in test.items()},
            "best_epoch": best,
            "epochs": len(history),
            "seconds": clock.seconds()[0],
            "history": history,
        }


def record(found: dict[str, Any], options: argparse.Namespace, versions: dict[str, str]) -> Path:
    """Write the quality of a whole training into bench/results."""
    result = {
        "name": f"mmrec-{options.model.lower()}-{options.data}-seed-{options.seed}",
        **circumstances(None, provisional=found["epochs"] == options.epochs),
        "versions": versions,
        "settings": {
            name: getattr(options, name) for name in ("model", "data", "batch_size", "seed")
        }
        | {"lr": RATES[options.model], "l2": L2[options.model]},
        **found,
        "repeat": f"MMREC=DIR python -m bench.mmrec_side {' '.join(sys.argv[1:])}",
    }
    about = (
        f"MMRec {versions['MMRec']}, {options.model} on {options.data}, stopped by validation: "
        f"best after epoch {found['best_epoch']} of {found['epochs']}."
    )
    lines = ["| | Recall@20 | NDCG@20 |", "| --- | --- | --- |"]
    lines += [
        f"| {part} | {found[part]['recall@20']:.4f} | {found[part]['ndcg@20']:.4f} |"
        for part in ("valid", "test")
    ]
    return write_result(result, page(result, about, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="MMGCN", choices=tuple(RATES))
    parser.add_argument("--data", default="tiktok", choices=tuple(DATA))
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=12, help="steps of an epoch that are measured")
    parser.add_argument("--quality", action="store_true", help="train to the end, into the results")
    parser.add_argument("--epochs", type=int, default=1000, help="at most, for --quality")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    folder = clone("MMREC", "https://github.com/enoche/MMRec")
    torch.set_num_threads(options.threads)
    versions = {"torch": torch.__version__, "MMRec": clone_version(folder)}
    run = MMRec(folder, options)
    if options.quality:
        print(record(run.quality(), options, versions))
        return
    wall, cpu, loss = run.steps(options.steps)
    print_report(
        wall=wall,
        cpu=cpu,
        steps=options.steps,
        steps_per_epoch=len(run.train),
        examples_per_epoch=len(run.train.dataset),
        versions=versions,
        threads=options.threads,
        loss=loss,
    )


if __name__ == "__main__":
    main()
