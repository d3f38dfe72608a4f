"""SASRec on the positives of MovieLens-1M (5,398 users, 3,522 items), length 200."""

from bench.entries.sasrec_beauty import BCE, CE, PLAIN_CE, WORK_BCE, WORK_CE
from bench.harness import Entry, Side

DATA = "--data ml-1m --length 200 --dropout 0.2 --threads {threads}"
PORT = f"python -m bench.pmixer_side --model sasrec {DATA}"
PLAIN = f"python -m bench.plain_sasrec {DATA}"
RECBOLE = f".venvs/recbole/bin/python -m bench.recbole_side.run {DATA} --batch-size 256 --steps 8"
HASTEN = (
    "python -m bench.hasten_side --data ml-1m --epochs 4 --skip 1 --threads {threads} "
    "--batch-size 128 --set model.max_length=200 --set model.dropout=0.2"
)

ENTRIES = (
    Entry(
        name="sasrec-ml-1m-bce",
        title="SASRec, ml-1m, BCE",
        work=WORK_BCE.format(length=200, dropout=0.2),
        published=Side("pmixer/SASRec.pytorch", PORT, for_memory="--steps 5"),
        plain=Side("plain PyTorch", f"{PLAIN} --epochs 2", for_memory="--steps 20"),
        candidate=Side("hasten", f"{HASTEN} {BCE}", for_memory="--epochs 3"),
    ),
    Entry(
        name="sasrec-ml-1m-ce",
        title="SASRec, ml-1m, CE (RecBole: batches of prefixes)",
        work=WORK_CE.format(length=200, dropout=0.2, prefixes="256 (2048 need far more memory)"),
        published=Side("RecBole 1.2.1", RECBOLE, for_memory="--steps 5"),
        plain=Side("plain PyTorch", f"{PLAIN} {PLAIN_CE}", for_memory="--steps 20"),
        candidate=Side("hasten", f"{HASTEN} {CE}", for_memory="--epochs 3"),
    ),
)
