"""TiSASRec: its attention alone, and whole on the positives of MovieLens-1M and on Beauty."""

from bench.entries.sasrec_beauty import BCE
from bench.harness import Entry, Side

HASTEN = "python -m bench.hasten_side --model tisasrec --epochs 4 --skip 1 --threads {threads}"


def layer(length: int, written_out: int, steps: int) -> Entry:
    """The attention alone; written_out: steps of the published form."""
    side = (
        f"python -m bench.interval_attention_side --rows 128 --length {length} "
        "--threads {threads} --how"
    )
    return Entry(
        name=f"interval-attention-{length}",
        title=f"interval attention, one layer, L {length}",
        work=(
            "One layer of causal attention with interval embeddings, forward and backward, 128 "
            f"sequences of {length} tokens, D 50, 1 head, span 256, fp32, without dropout. The "
            "published form has the embeddings of every pair as [B, L, L, D] tensors; the plain "
            "one gathers from q·Eᵀ and sums the weights by interval with scatter_add. Seconds are "
            "those of one call."
        ),
        published=Side("TiSASRec's published form", f"{side} written-out --steps {written_out}"),
        plain=Side("q·Eᵀ, gather, scatter_add", f"{side} gathered --steps {steps}"),
        candidate=Side("hasten", f"{side} hasten --steps {steps}"),
    )


def whole(name: str, title: str, data: str, length: int, dropout: float, steps: int) -> Entry:
    """A training of the model. steps: of the port, whose epoch is extrapolated."""
    sides = f"--data {data} --length {length} --dropout {dropout} --threads {{threads}}"
    settings = f"--data {data} --set model.max_length={length} --set model.dropout={dropout}"
    return Entry(
        name=name,
        title=title,
        work=(
            "BCE with one uniform negative a position, squared embeddings with weight 5e-5 (the "
            "port: their norms), D 50, 2 blocks, 1 head, span 256, batches of 128 sequences of at "
            f"most {length}, dropout {dropout} in the attention and on the embeddings of positions "
            "and intervals too (the port's falls on the [B, L, L, D] tensors, the others' on the "
            f"tables), Adam, fp32. The port's epoch is extrapolated from {steps} steps; its "
            "batches, negatives and intervals are made beforehand and not counted. The others' "
            "batches, negatives and intervals are counted, their personalized times are not."
        ),
        published=Side(
            "pmixer/TiSASRec.pytorch",
            f"python -m bench.pmixer_side --model tisasrec {sides} --steps {steps}",
            for_memory="--steps 1",
        ),
        plain=Side(
            "plain PyTorch",
            f"python -m bench.plain_tisasrec {sides} --epochs {200 // length}",
            for_memory="--steps 5",
        ),
        candidate=Side("hasten", f"{HASTEN} {settings} {BCE}", for_memory="--epochs 3"),
    )


ENTRIES = (
    layer(200, written_out=2, steps=50),
    layer(50, written_out=10, steps=300),
    whole("tisasrec-ml-1m-bce", "TiSASRec, ml-1m, L 200, BCE", "ml-1m", 200, 0.2, steps=1),
    whole("tisasrec-ml-1m-50-bce", "TiSASRec, ml-1m, L 50, BCE", "ml-1m", 50, 0.2, steps=8),
    whole("tisasrec-beauty-bce", "TiSASRec, Beauty, BCE", "beauty", 50, 0.5, steps=8),
)
