"""SASRec on the positives of MovieLens-1M (5,398 users, 3,522 items), length 200."""

from bench.entries.sasrec_beauty import BCE, CE
from bench.harness import Entry, Side

PLAIN = "python -m bench.plain_sasrec --data ml-1m --length 200 --dropout 0.2 --threads {threads}"
RECBOLE = (
    ".venvs/recbole/bin/python -m bench.recbole_side.run --data ml-1m --length 200 --dropout 0.2 "
    "--batch-size 256 --steps 20 --threads {threads}"
)
HASTEN = (
    "python -m bench.hasten_side --data ml-1m --epochs 4 --skip 1 --threads {threads} "
    "--batch-size 128 --set model.max_length=200 --set model.dropout=0.2"
)

ENTRIES = (
    Entry(
        name="sasrec-ml-1m-bce",
        title="SASRec, ml-1m, BCE",
        work=(
            "The same work on both sides: BCE with one uniform negative a position, D 50, 2 "
            "blocks, 1 head, batches of 128 sequences of at most 200, dropout 0.2 (in the "
            "attention too), Adam, fp32. The plain side's sampling of negatives is not counted, "
            "ours is."
        ),
        plain=Side("plain padded PyTorch", PLAIN, for_memory="--steps 20"),
        candidate=Side("hasten", f"{HASTEN} {BCE}", for_memory="--epochs 3"),
    ),
    Entry(
        name="sasrec-ml-1m-ce-recbole",
        title="SASRec, ml-1m, CE",
        work=(
            "An epoch over every training target with cross-entropy over the whole catalogue, D "
            "64, 2 blocks, 2 heads, inner width 256, length 200, dropout 0.2, fp32. RecBole makes "
            "an example of every prefix and takes batches of 256 of them (2048 would need far more "
            "memory); its epoch is extrapolated from 20 steps. Ours takes batches of 128 whole "
            "sequences."
        ),
        published=Side("RecBole 1.2.1", RECBOLE, for_memory="--steps 5"),
        candidate=Side("hasten", f"{HASTEN} {CE}", for_memory="--epochs 3"),
    ),
)
