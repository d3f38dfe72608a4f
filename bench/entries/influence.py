"""TracIn of test triples through ConvE: FB15k-237 (2.9 M parameters in tables) and UMLS."""

from bench.harness import Entry, Side

WORK = (
    "Exact TracIn scores of {train:,} training and {tests} test triples over all layers, one "
    "checkpoint, ConvE with D 200 and 32 filters, BatchNorm in evaluation mode, the cells of a "
    "triple's two questions as its loss. The plain side writes out the network's gradients of all "
    "triples by vmap of grad and multiplies them, the rows of tables apart."
)
LEFT_OUT = " captum's TracInCP would take over a minute."


def _tracin(data: str, title: str, train: int, tests: int, repeats: tuple[int, int, int]) -> Entry:
    """repeats: of captum (0: left out), the plain side and hasten."""
    sides = [
        Side(
            label,
            f"python -m bench.influence_side --how {how} --data {data} --train {train} "
            f"--tests {tests} --repeats {times} --threads {{threads}}",
        )
        for label, how, times in zip(
            ("captum 0.9.0", "plain PyTorch, vmap of grad", "hasten"),
            ("captum", "plain", "hasten"),
            repeats,
            strict=True,
        )
    ]
    return Entry(
        name=f"influence-{data}-{train}-{tests}",
        title=f"TracIn, {title}, {train:,} training and {tests} test triples",
        work=WORK.format(train=train, tests=tests) + ("" if repeats[0] else LEFT_OUT),
        published=sides[0] if repeats[0] else None,
        plain=sides[1],
        candidate=sides[2],
    )


ENTRIES = (
    _tracin("fb15k-237", "FB15k-237", 200, 20, (1, 5, 20)),
    _tracin("fb15k-237", "FB15k-237", 2000, 200, (0, 1, 5)),
    _tracin("umls", "UMLS", 200, 20, (1, 5, 40)),
    _tracin("umls", "UMLS", 2000, 200, (0, 1, 10)),
)
