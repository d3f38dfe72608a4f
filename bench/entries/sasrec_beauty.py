"""SASRec on Amazon Beauty (22,363 users, 12,101 items), length 50."""

from bench.harness import Entry, Side

PLAIN = "python -m bench.plain_sasrec --data beauty --length 50 --dropout 0.5 --threads {threads}"
RECBOLE = (
    ".venvs/recbole/bin/python -m bench.recbole_side.run --data beauty --length 50 --dropout 0.5 "
    "--batch-size 2048 --steps 20 --threads {threads}"
)
HASTEN = (
    "python -m bench.hasten_side --data beauty --epochs 4 --skip 1 --threads {threads} "
    "--batch-size 128 --set model.max_length=50 --set model.dropout=0.5"
)
BCE = (
    "--set model.loss=bce --set model.negatives=1 --set model.width=50 "
    "--set training.clip_norm=none"
)
CE = "--set model.loss=ce --set model.width=64 --set model.heads=2 --set model.feedforward=4"

ENTRIES = (
    Entry(
        name="sasrec-beauty-bce",
        title="SASRec, Beauty, BCE",
        work=(
            "The same work on both sides: BCE with one uniform negative a position, D 50, 2 "
            "blocks, 1 head, batches of 128 sequences of at most 50, dropout 0.5 (in the attention "
            "too), Adam, fp32. The plain side's sampling of negatives is not counted, ours is."
        ),
        plain=Side("plain padded PyTorch", PLAIN, for_memory="--steps 30"),
        candidate=Side("hasten", f"{HASTEN} {BCE}", for_memory="--epochs 3"),
    ),
    Entry(
        name="sasrec-beauty-ce-recbole",
        title="SASRec, Beauty, CE",
        work=(
            "An epoch over every training target with cross-entropy over the whole catalogue, D "
            "64, 2 blocks, 2 heads, inner width 256, length 50, dropout 0.5, fp32. RecBole makes "
            "an example of every prefix and takes batches of 2048 of them; its epoch is "
            "extrapolated from 20 steps. Ours takes batches of 128 whole sequences."
        ),
        published=Side("RecBole 1.2.1", RECBOLE, for_memory="--steps 5"),
        candidate=Side("hasten", f"{HASTEN} {CE}", for_memory="--epochs 3"),
    ),
)
