"""ConvE on FB15k-237 (14,541 entities, 149,689 rows of 1-N training), UMLS and Kinship."""

from bench.harness import Entry, Side

PLAIN = "python -m bench.plain_conve --data fb15k-237 --steps 60 --threads {threads}"
HASTEN = (
    "python -m bench.hasten_side --model conve --data fb15k-237 --epochs 3 --skip 1 "
    "--threads {threads} --set data.unknown=keep"
)
WORK = (
    "The same work on both sides: 1-N training with reciprocal relations, D 200, 32 filters, "
    "batches of 128 rows, label smoothing 0.1, dropout 0.2, 0.2 and 0.3, fused Adam. The plain "
    "side makes a dense matrix of labels and one of scores a batch; its epoch is extrapolated "
    "from 60 steps."
)


def _pykeen(data: str, title: str) -> Entry:
    ours = (
        f"python -m bench.hasten_side --model conve --data {data} --epochs 11 --skip 1 "
        "--threads {threads}"
    )
    theirs = f".venvs/pykeen/bin/python -m bench.pykeen_side.run --data {data} --epochs 5"
    return Entry(
        name=f"conve-{data}-pykeen",
        title=f"ConvE, {title}, fp32",
        work=(
            "The same work on both sides: 1-N training (PyKEEN's LCWA) with reciprocal relations, "
            "D 200, 32 filters, batches of 128 rows, label smoothing 0.1, dropout 0.2, 0.2 and "
            "0.3, Adam. fp32."
        ),
        published=Side("PyKEEN 1.11.1", f"{theirs} --threads {{threads}}"),
        candidate=Side("hasten", ours),
    )


ENTRIES = (
    Entry(
        name="conve-fb15k-237",
        title="ConvE, FB15k-237, fp32",
        work=f"{WORK} fp32.",
        plain=Side("plain PyTorch", PLAIN, for_memory="--steps 10"),
        candidate=Side("hasten", HASTEN),
    ),
    Entry(
        name="conve-fb15k-237-512",
        title="ConvE, FB15k-237, fp32, batches of 512",
        work=f"{WORK.replace('128', '512').replace('60 steps', '15 steps')} fp32.",
        plain=Side(
            "plain PyTorch", f"{PLAIN.replace('--steps 60', '--steps 15')} --batch-size 512"
        ),
        candidate=Side("hasten", f"{HASTEN} --set training.batch_size=512 --set model.group=512"),
    ),
    Entry(
        name="conve-fb15k-237-bf16",
        title="ConvE, FB15k-237, bf16",
        work=f"{WORK} bf16 by autocast on both sides.",
        plain=Side("plain PyTorch, bf16", f"{PLAIN} --precision bf16", for_memory="--steps 10"),
        candidate=Side("hasten, bf16", f"{HASTEN} --precision bf16"),
        column="bf16",
    ),
    _pykeen("umls", "UMLS"),
    _pykeen("kinship", "Kinship"),
)
