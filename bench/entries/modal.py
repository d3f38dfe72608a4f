"""MMGCN and DRAGON on TikTok with its features of image and audio."""

from bench.harness import Entry, Side

SIDE = "python -m bench.modal_side --threads {threads} --data tiktok"
MMREC = "python -m bench.mmrec_side --threads {threads} --data tiktok"
WORK = (
    "Steps on the 59,541 training pairs of TikTok (9,308 users, 6,710 items, features of 128 and "
    "128 dimensions), batches of 2,048 pairs, D 64, fp32; every side draws its batches in its "
    "time. MMRec: its own trainer and sampling, Adam as it is there. Plain PyTorch: CSR products "
    "with a stored transpose, linear maps where there are fewer rows, what is constant computed "
    "once, the last layer for the nodes of the batch, fused Adam. An epoch has 30 steps."
)


def _entry(model: str, title: str, steps: int, ids: str = "", note: str = "") -> Entry:
    """steps: of the plain side and of ours."""
    options = f"--model {model} --steps {steps}" + (f" --ids {ids}" if ids else "")
    return Entry(
        name=f"{model}-tiktok" + (f"-{ids}" if ids else ""),
        title=f"{model.upper()}, TikTok, {title}",
        work=f"{WORK}{note}",
        published=Side("MMRec", f"{MMREC} --model {model.upper()} --steps 10"),
        plain=Side("plain PyTorch, CSR", f"{SIDE} --how plain {options}"),
        candidate=Side("hasten", f"{SIDE} --how hasten {options}"),
    )


ENTRIES = (
    _entry("mmgcn", "frozen id embeddings, fp32", 25, ids="frozen"),
    _entry(
        "mmgcn",
        "trainable id embeddings, fp32",
        25,
        note=" MMRec computes the gradients of ids and users too, but does not update them.",
    ),
    _entry("dragon", "fp32", 60),
)
