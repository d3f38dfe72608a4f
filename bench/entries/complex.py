"""ComplEx on FB15k-237 (14,541 entities, 149,689 rows): a softmax over a sample, and over all."""

from bench.harness import Entry, Side

WORK = (
    "width 800, reciprocal relations, batches of 256 distinct (entity, relation) with all of their "
    "answers, dropout 0.2, N3 0.03, relation prediction of weight 2, fused Adam, fp32."
)
PLAIN = "python -m bench.plain_complex --threads {threads} --data fb15k-237"
HASTEN = (
    "python -m bench.hasten_steps --model complex --data fb15k-237 --threads {threads} "
    "--set data.unknown=keep --set model.width=800 --set model.dropout=0.2 --set model.n3=0.03 "
    "--set model.relation_weight=2 --set training.batch_size=256 --set training.lr=3e-3"
)
SHORT = "--warm-up 5 --steps 10"

ENTRIES = (
    Entry(
        name="complex-sampled",
        title="ComplEx, FB15k-237, softmax over 2,048 sampled entities",
        work=f"As it comes on larger graphs: {WORK} Both sides update the rows that a step reads; "
        "hasten with the result of Adam for all rows, plain PyTorch without the steps that a row "
        "missed.",
        plain=Side(
            "plain PyTorch",
            f"{PLAIN} --negatives 2048 --rows --warm-up 300 --steps 150",
            for_memory=SHORT,
        ),
        candidate=Side(
            "hasten",
            f"{HASTEN} --set model.loss=sampled-softmax --warm-up 300 --steps 150",
            for_memory=SHORT,
        ),
    ),
    Entry(
        name="complex-all",
        title="ComplEx, FB15k-237, softmax over all entities",
        work=f"The softmax over all entities: {WORK}",
        plain=Side("plain PyTorch", f"{PLAIN} --steps 40", for_memory=SHORT),
        candidate=Side(
            "hasten", f"{HASTEN} --set model.loss=1-n-softmax --steps 40", for_memory=SHORT
        ),
    ),
)
