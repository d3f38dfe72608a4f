"""ConvE on FB15k-237 (14,541 entities, 149,689 rows of 1-N training), UMLS and Kinship."""

from bench.harness import Entry, Side

WORK = (
    "1-N training (PyKEEN's LCWA) with reciprocal relations, D 200, 32 filters, batches of 128 "
    "rows, label smoothing 0.1, dropout 0.2, 0.2 and 0.3, Adam, fused but for PyKEEN."
)
PLAIN = "python -m bench.plain_conve --threads {threads}"
PYKEEN = ".venvs/pykeen/bin/python -m bench.pykeen_side.run --threads {threads}"
HASTEN = (
    "python -m bench.hasten_side --model conve --skip 1 --threads {threads} --batch-size 128 "
    "--set model.loss=1-n --set model.channels=32 --set model.group=128 "
    "--set model.input_dropout=0.2 --set model.feature_dropout=0.2 --set model.hidden_dropout=0.3 "
    "--set model.exclude_self=false --set training.average=none"
)
FB15K = "--data fb15k-237"
OURS = (
    f"python -m bench.hasten_steps --model conve {FB15K} --steps 200 --set data.unknown=keep "
    "--threads {threads}"
)


def _small(data: str, title: str, published: int, plain: int, ours: int) -> Entry:
    """published, ours: epochs that are measured; plain: batches."""
    return Entry(
        name=f"conve-{data}",
        title=f"ConvE, {title}, fp32",
        work=f"{WORK} fp32.",
        published=Side("PyKEEN 1.11.1", f"{PYKEEN} --data {data} --epochs {published}"),
        plain=Side("plain PyTorch", f"{PLAIN} --data {data} --steps {plain}"),
        candidate=Side("hasten", f"{HASTEN} --data {data} --epochs {ours + 1}"),
    )


ENTRIES = (
    Entry(
        name="conve-fb15k-237",
        title="ConvE, FB15k-237, fp32",
        work=f"{WORK} fp32.",
        published=Side(
            "PyKEEN 1.11.1",
            f"{PYKEEN} {FB15K} --warm-up 5 --steps 60",
            for_memory="--steps 10",
        ),
        plain=Side("plain PyTorch", f"{PLAIN} {FB15K} --steps 200", for_memory="--steps 10"),
        candidate=Side("hasten", OURS, for_memory="--steps 10"),
    ),
    Entry(
        name="conve-fb15k-237-bf16",
        title="ConvE, FB15k-237, bf16",
        work=f"{WORK} bf16 by autocast on both sides.",
        plain=Side(
            "plain PyTorch, bf16",
            f"{PLAIN} {FB15K} --steps 200 --precision bf16",
            for_memory="--steps 10",
        ),
        candidate=Side("hasten, bf16", f"{OURS} --precision bf16", for_memory="--steps 10"),
        column="bf16",
    ),
    _small("umls", "UMLS", 10, 400, 20),
    _small("kinship", "Kinship", 5, 400, 10),
)
