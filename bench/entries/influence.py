"""TracIn of test triples through ConvE: FB15k-237 (2 M parameters beside the table) and UMLS."""

from bench.harness import Entry, Side

CAPTUM = (
    "python -m bench.influence_side --how captum --data {data} --train 200 --tests 20 "
    "--threads {{threads}}"
)
HASTEN = (
    "python -m bench.influence_side --how factors --data {data} --train 0 --tests {tests} "
    "--threads {{threads}}"
)
WORK = (
    "Exact TracIn scores over all layers, one checkpoint, ConvE with D 200 and 32 filters, "
    "BatchNorm in evaluation mode, the cells of a triple's two questions as its loss. Seconds are "
    "those of a million pairs: captum's TracInCP from 200 training and 20 test triples, {ours}."
)

ENTRIES = (
    Entry(
        name="influence-fb15k-237",
        title="TracIn, FB15k-237, per million pairs",
        work=WORK.format(ours="hasten from all 272,115 and 20"),
        published=Side("captum 0.9.0", CAPTUM.format(data="fb15k-237")),
        candidate=Side("hasten", HASTEN.format(data="fb15k-237", tests=20)),
    ),
    Entry(
        name="influence-umls",
        title="TracIn, UMLS, per million pairs",
        work=WORK.format(ours="hasten from all 5,216 and 661"),
        published=Side("captum 0.9.0", CAPTUM.format(data="umls")),
        candidate=Side("hasten", HASTEN.format(data="umls", tests=0)),
    ),
)
