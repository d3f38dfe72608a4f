"""The demonstration of ``make demo``: learn from the built-in sample, then recommend from it.

Trains SASRec with a progress bar and the popularity baseline beside it, compares both on the same
test events, and prints what SASRec recommends to three users next to what they did.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import hasten
from hasten.data.tables import TEST, TRAIN, VALID, Dataset

SETTINGS = {"training.epochs": 30, "training.lr": 3e-3, "training.patience": "6 evaluations"}


def say(text: str = "") -> None:
    """Print a line at once."""
    print(text, flush=True)


def names_of(dataset: Dataset, items: list[int]) -> str:
    """Item names, in order."""
    names = dataset.items.names
    assert names is not None
    return ", ".join(str(names[item]) for item in items)


def main() -> int:
    begin = time.perf_counter()
    runs = Path(tempfile.mkdtemp(prefix="hasten-demo-"))
    say("1/3  Training SASRec on the built-in sample (1,200 listeners, 400 records) ...\n")
    sasrec = hasten.train("sasrec", settings=SETTINGS, out=str(runs / "sasrec"))
    say("\n2/3  The popularity baseline, on the same data and the same test events ...\n")
    pop = hasten.train("pop", out=str(runs / "pop"), quiet=True)

    say(f"     {'test':26s} {'popularity':>11s} {'SASRec':>9s}")
    for name, value in sasrec.metrics.items():
        metric, _, other = name.partition("/")
        shown = f"{metric} (history {other})" if other else metric
        say(f"     {shown:26s} {pop.metrics[name]:11.4f} {value:9.4f}")
    say(f"     ({sasrec.protocol})")

    dataset = sasrec.loaded.dataset
    assert isinstance(dataset, Dataset)
    histories = dataset.histories(TRAIN, VALID, TEST)
    users = [0, 1, 2]
    labels = dataset.users.take(histories.offsets[:3] * 0 + users).to_pylist()
    found = sasrec.recommend(users=labels, topk=5).to_table().to_pylist()
    say("\n3/3  What SASRec recommends, next to the last records heard:\n")
    for user, label in zip(users, labels, strict=True):
        history = histories.items[histories.offsets[user] : histories.offsets[user + 1]]
        say(f"     user {label}")
        say(f"       heard        ... {names_of(dataset, history[-5:].tolist())}")
        top = ", ".join(row["item_name"] for row in found if row["user_id"] == label)
        say(f"       recommended  {top}\n")

    train_seconds = sasrec.summary.seconds["train"]
    say(f"Done in {time.perf_counter() - begin:.0f} s, {train_seconds:.0f} s of it training.")
    say(f"The run is in {sasrec.path}: metrics, logs, checkpoints, TensorBoard events.\n")
    say("What next:")
    say("  . .venv/bin/activate")
    say("  hasten data inspect YOUR.csv          # user_id,item_id[,timestamp]: what is in it")
    say("  hasten train sasrec YOUR.csv          # train on it")
    say(f"  hasten recommend {sasrec.path} --users all --topk 10 --out top10.csv")
    say("  hasten --help")
    return 0


if __name__ == "__main__":
    sys.exit(main())
