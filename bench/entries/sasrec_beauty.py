"""SASRec on Amazon Beauty (22,363 users, 12,101 items), length 50."""

from bench.harness import Entry, Side

DATA = "--data beauty --length 50 --dropout 0.5 --threads {threads}"
PORT = f"python -m bench.pmixer_side --model sasrec {DATA}"
PLAIN = f"python -m bench.plain_sasrec {DATA}"
RECBOLE = f".venvs/recbole/bin/python -m bench.recbole_side.run {DATA} --batch-size 2048 --steps 4"
HASTEN = (
    "python -m bench.hasten_side --data beauty --epochs 4 --skip 1 --threads {threads} "
    "--batch-size 128 --set model.max_length=50 --set model.dropout=0.5"
)
BCE = (
    "--set model.loss=bce --set model.negatives=1 --set model.width=50 "
    "--set training.clip_norm=none"
)
CE = "--set model.loss=ce --set model.width=64 --set model.heads=2 --set model.feedforward=4"
PLAIN_CE = "--loss ce --width 64 --heads 2 --feedforward 4"
WORK_BCE = (
    "BCE with one uniform negative a position, D 50, 2 blocks, 1 head, batches of 128 sequences of "
    "at most {length}, dropout {dropout} (in the attention too), Adam, fp32. The port pads every "
    "sequence to {length}; its batches and negatives are made beforehand and not counted. The "
    "plain side pads in the attention alone; its batches and negatives are counted, as ours are."
)
WORK_CE = (
    "An epoch over every training target with cross-entropy over the whole catalog, D 64, 2 "
    "blocks, 2 heads, inner width 256, length {length}, dropout {dropout}, fp32. RecBole makes an "
    "example of every prefix and takes batches of {prefixes} of them; its epoch is extrapolated "
    "from 4 steps. The plain side and ours take batches of 128 whole sequences and predict at all "
    "positions."
)

ENTRIES = (
    Entry(
        name="sasrec-beauty-bce",
        title="SASRec, Beauty, BCE",
        work=WORK_BCE.format(length=50, dropout=0.5),
        published=Side("pmixer/SASRec.pytorch", PORT, for_memory="--steps 10"),
        plain=Side("plain PyTorch", f"{PLAIN} --epochs 4", for_memory="--steps 30"),
        candidate=Side("hasten", f"{HASTEN} {BCE}", for_memory="--epochs 3"),
    ),
    Entry(
        name="sasrec-beauty-ce",
        title="SASRec, Beauty, CE (RecBole: batches of prefixes)",
        work=WORK_CE.format(length=50, dropout=0.5, prefixes=2048),
        published=Side("RecBole 1.2.1", RECBOLE, for_memory="--steps 5"),
        plain=Side("plain PyTorch", f"{PLAIN} {PLAIN_CE}", for_memory="--steps 30"),
        candidate=Side("hasten", f"{HASTEN} {CE}", for_memory="--epochs 3"),
    ),
)
