"""TiSASRec: its attention alone, and whole on the positives of MovieLens-1M and on Beauty."""

from bench.entries.sasrec_beauty import BCE
from bench.harness import Entry, Side

LAYER = "python -m bench.interval_attention_side --rows 128 --length 200 --threads {threads}"
PLAIN = "python -m bench.plain_tisasrec --threads {threads}"
HASTEN = "python -m bench.hasten_side --model tisasrec --epochs 4 --skip 1 --threads {threads}"
ML1M = "--data ml-1m --set model.max_length=200 --set model.dropout=0.2"
ML1M_50 = "--data ml-1m --set model.max_length=50 --set model.dropout=0.2"
BEAUTY = "--data beauty --set model.max_length=50 --set model.dropout=0.5"
WORK = (
    "The same work on both sides: BCE with one uniform negative a position, squared embeddings "
    "with weight 5e-5, D 50, 2 blocks, 1 head, span 256, batches of 128 sequences of at most "
    "{length}, dropout {dropout} (in the attention and on the embeddings of positions and "
    "intervals too; ours falls on the rows of the interval tables), Adam, fp32. The plain side's "
    "epoch is extrapolated from {steps} steps; its negatives and personalised times are not "
    "counted, ours are."
)

ENTRIES = (
    Entry(
        name="interval-attention-200",
        title="interval attention, one layer, L 200",
        work=(
            "One layer of causal attention with interval embeddings, forward and backward, 128 "
            "sequences of 200 tokens, D 50, 1 head, span 256, fp32, without dropout: keys and "
            "values of every pair written out against bins. Seconds are those of one call."
        ),
        published=Side("[B, L, L, D] tensors", f"{LAYER} --how written-out --steps 2"),
        candidate=Side("hasten", f"{LAYER} --how bins --steps 10"),
    ),
    Entry(
        name="tisasrec-ml-1m-bce",
        title="TiSASRec, ml-1m, L 200, BCE",
        work=WORK.format(length=200, dropout=0.2, steps=2),
        plain=Side(
            "plain padded PyTorch",
            f"{PLAIN} --data ml-1m --length 200 --dropout 0.2 --steps 2",
            for_memory="--steps 1",
        ),
        candidate=Side("hasten", f"{HASTEN} {ML1M} {BCE}", for_memory="--epochs 3"),
    ),
    Entry(
        name="tisasrec-ml-1m-50-bce",
        title="TiSASRec, ml-1m, L 50, BCE",
        work=WORK.format(length=50, dropout=0.2, steps=10),
        plain=Side(
            "plain padded PyTorch",
            f"{PLAIN} --data ml-1m --length 50 --dropout 0.2 --steps 10",
            for_memory="--steps 3",
        ),
        candidate=Side("hasten", f"{HASTEN} {ML1M_50} {BCE}", for_memory="--epochs 3"),
    ),
    Entry(
        name="tisasrec-beauty-bce",
        title="TiSASRec, Beauty, BCE",
        work=WORK.format(length=50, dropout=0.5, steps=10),
        plain=Side(
            "plain padded PyTorch",
            f"{PLAIN} --data beauty --length 50 --dropout 0.5 --steps 10",
            for_memory="--steps 3",
        ),
        candidate=Side("hasten", f"{HASTEN} {BEAUTY} {BCE}", for_memory="--epochs 3"),
    ),
)
