"""Every experiment: a name, and what ``hasten train`` is given. Add a group here, then run it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hasten.configuration.build import flag_entries, set_entries


@dataclass(frozen=True)
class Experiment:
    """One run: ``options`` go to ``hasten train`` as they are; ``data`` is a name of bench.data.

    configuration: the name of the settings, which several seeds share. question: what the
    configurations of this model on these data are compared for; of each question, validation
    selects one configuration, and its test figures alone are computed.
    also: options of ``hasten evaluate``, one text for each further protocol;
    embeddings: run ``hasten check-embeddings`` too.
    """

    configuration: str
    model: str
    data: str
    options: tuple[str, ...]
    seed: int
    question: str = "settings"
    also: tuple[str, ...] = ()
    embeddings: bool = False

    @property
    def name(self) -> str:
        return f"{self.configuration}-seed{self.seed}"

    @property
    def group(self) -> str:
        """The configurations that are compared with each other on validation."""
        return f"{self.model}-{self.data}-{self.question}"

    @property
    def fingerprint(self) -> str:
        """Changes with anything that changes the run: a changed experiment is another run."""
        return fingerprint(self.model, self.data, self.options, self.seed)


def fingerprint(model: str, data: str, options: Sequence[str], seed: int) -> str:
    """A digest of what a run is given, whatever the order and the spelling of its options."""
    settings = sorted(configuration_keys(model, options).items())
    text = json.dumps([model, data, settings, seed])
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def configuration_keys(model: str, options: Sequence[str]) -> dict[str, str]:
    """Options of ``hasten train`` as dotted keys with their values as text."""
    flags: dict[str, str] = {}
    sets: list[str] = []
    name = ""
    for text in options:
        if text.startswith("--"):
            name = text.removeprefix("--").replace("-", "_")
            flags[name] = "true"  # unless a value follows
        elif name == "set":
            sets.append(text)
        else:
            flags[name] = text
    flags.pop("set", None)
    entries = [*set_entries(sets), *flag_entries(flags, None)]
    keys = {entry.key: _text(entry.value) for entry in entries}
    if model == "degree":  # it is evaluated once
        keys.pop("evaluation.every", None)
    return keys


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


def seeds(
    configuration: str,
    model: str,
    data: str,
    options: str,
    question: str = "settings",
    *,
    count: int = 3,
    also: tuple[str, ...] = (),
    embeddings: bool = False,
) -> tuple[Experiment, ...]:
    """The same experiment with seeds 0, 1, ..."""
    return tuple(
        Experiment(
            configuration, model, data, tuple(options.split()), seed, question, also, embeddings
        )
        for seed in range(count)
    )


_COMMON = "--metrics ndcg,hr --topk 10"
_BEAUTY = f"{_COMMON} --set model.max_length=50 --set model.dropout=0.5"
_ML1M = f"{_COMMON} --set model.max_length=200 --set model.dropout=0.2"
#: the papers on Beauty take the items of the history out of the ranking
_MASKED = "--set evaluation.mask_history=true"
#: times of Beauty are days: where both held-out events are of one, the file made their order
_UNTIED = "--set evaluation.users=untied"
_SAMPLED = "--set evaluation.candidates=uni100"
#: the same twenty epochs with a falling learning rate for every model of a comparison
_TWENTY = "--set model.loss=ce --lr 4e-3 --set training.schedule=cosine --epochs 20 --eval-every 4"
#: hyper-connections as the paper has them, and the cheapest that mix
_RESIDUALS = {
    "mhc": "--set model.residual=mhc",
    "mhc-static": "--set model.residual=mhc --set model.maps=static "
    "--set model.projection=permutation",
}

EXPERIMENTS: tuple[Experiment, ...] = (
    *seeds(
        "sasrec-beauty-ce",
        "sasrec",
        "beauty",
        f"{_BEAUTY} --set model.loss=ce --lr 2e-3 --epochs 60 --patience 6",
        also=(_MASKED, _UNTIED, _SAMPLED),
    ),
    # what a minute of training on two cores is worth, evaluations included
    *seeds(
        "sasrec-beauty-ce-minute",
        "sasrec",
        "beauty",
        f"{_BEAUTY} --set model.loss=ce --lr 2e-3 --epochs 60 --max-time 60s",
        "one-minute",
    ),
    *seeds(
        "tisasrec-beauty-ce",
        "tisasrec",
        "beauty",
        f"{_BEAUTY} --set model.loss=ce --lr 2e-3 --epochs 60 --patience 6",
        also=(_MASKED, _UNTIED, _SAMPLED),
    ),
    *seeds(
        "sasrec-ml-1m-ce",
        "sasrec",
        "ml-1m",
        f"{_ML1M} --set model.loss=ce --epochs 200 --eval-every 2 --patience 8",
        also=(_MASKED, _SAMPLED),
    ),
    *(
        experiment
        for name, options in _RESIDUALS.items()
        for experiment in (
            *seeds(
                f"sasrec-{name}-beauty-ce",
                "sasrec",
                "beauty",
                f"{_BEAUTY} {options} --set model.loss=ce --lr 2e-3 --epochs 60 --patience 6",
                "hyper-connections",
                also=(_MASKED, _UNTIED, _SAMPLED),
            ),
            *seeds(
                f"sasrec-{name}-ml-1m-ce-20",
                "sasrec",
                "ml-1m",
                f"{_ML1M} {options} {_TWENTY}",
                "hyper-connections-20-epochs",
                also=(_MASKED, _SAMPLED),
            ),
        )
    ),
    *seeds(
        "tisasrec-mhc-static-beauty-ce",
        "tisasrec",
        "beauty",
        f"{_BEAUTY} {_RESIDUALS['mhc-static']} --set model.loss=ce --lr 2e-3 --epochs 60 "
        "--patience 6",
        "hyper-connections",
        also=(_MASKED, _UNTIED, _SAMPLED),
    ),
    *seeds(
        "sasrec-ml-1m-ce-20",
        "sasrec",
        "ml-1m",
        f"{_ML1M} {_TWENTY}",
        "20-epochs",
        also=(_MASKED, _SAMPLED),
    ),
    *seeds(
        "tisasrec-ml-1m-ce-20",
        "tisasrec",
        "ml-1m",
        f"{_ML1M} {_TWENTY}",
        "20-epochs",
        also=(_MASKED, _SAMPLED),
    ),
    *seeds(
        "sasrec-ml-1m-bce",
        "sasrec",
        "ml-1m",
        f"{_ML1M} --set model.loss=bce --epochs 400 --eval-every 5 --patience 8",
        "paper",
        also=(_MASKED, _SAMPLED),
    ),
)


def _graphs() -> Iterable[Experiment]:
    """Knowledge graphs: ConvE as in its paper, but for a learning rate that falls to zero.

    The small graphs learn in batches of 32, of which an epoch has four times as many. Validation
    MRR on UMLS: 40 epochs .931 (batches of 128: .860), 60 epochs .941; on Kinship 160 epochs .827
    (batches of 128, 150 epochs: .809), 60 epochs .801 (without label smoothing .798, batches of
    64 with more dropout .781).

    ComplEx, one answer a row: UMLS, batches of 256, learning rate 2e-2 .951, 5e-2 .948, dropout
    0.4 .939, batches of 128 and 1e-2 .936 after 50 epochs (dropout 0.7 .917 after 40), batches of
    512 and 5e-2 .937; Kinship after 30 epochs .875 in batches of 512 with 5e-2, .876 of 128 with
    1e-2, .867 of 256 with 2e-2. All answers at once: .908 and .853 after 30 epochs.
    """
    common = "--metrics mrr,hits,mr,amri --topk 1,3,10"
    falling = f"{common} --lr 3e-3 --set training.schedule=cosine"
    long = f"{falling} --set data.unknown=keep --epochs 50 --eval-every 5"
    yield from seeds("conve-fb15k-237", "conve", "fb15k-237", long, "paper")
    # with the paper's dropout validation MRR stays at .315 from epoch 40 on
    more = "--set model.feature_dropout=0.4 --set model.hidden_dropout=0.5"
    slow = f"{falling} --set data.unknown=keep --epochs 60 --eval-every 5 {more}"
    yield from seeds("conve-fb15k-237-dropout", "conve", "fb15k-237", slow, count=1)
    # the best published configuration is trained by softmaxes
    soft = slow.replace("--epochs 60", "--epochs 40") + " --set model.loss=1-n-softmax"
    yield from seeds("conve-fb15k-237-softmax", "conve", "fb15k-237", soft, count=1)
    half = f"{soft} --precision bf16"
    yield from seeds("conve-fb15k-237-softmax-bf16", "conve", "fb15k-237", half, "bf16", count=1)
    # the average over five epochs in place of a learning rate that falls: the probe's validation
    # MRR after 15 epochs .324, its own weights .308
    steady = soft.replace(" --set training.schedule=cosine", "") + " --set training.average=5"
    yield from seeds("conve-fb15k-237-average", "conve", "fb15k-237", steady)
    half = f"{steady} --precision bf16"
    yield from seeds("conve-fb15k-237-average-bf16", "conve", "fb15k-237", half, "bf16", count=1)
    # wider, in larger batches, with more dropout: the best published trial has 256 and 1,024
    large = "--set training.batch_size=512 --set model.group=512 --precision bf16"
    wide = f"{common} --set training.schedule=cosine --set data.unknown=keep --set model.width=256"
    wide = f"{wide} {large} --lr 4e-3 --epochs 60 --eval-every 5 --set model.hidden_dropout=0.5"
    for name, some in (
        ("softmax", "--set model.loss=1-n-softmax --set model.input_dropout=0.1"),
        ("1-n", "--set model.input_dropout=0.2"),
    ):
        options = f"{wide} {some} --set model.feature_dropout=0.5"
        yield from seeds(f"conve-fb15k-237-wide-{name}", "conve", "fb15k-237", options, count=1)
    batches = "--set training.batch_size=32 --set model.group=32"
    for name, some in (("umls", "--lr 3e-3 --epochs 60"), ("kinship", "--lr 2e-3 --epochs 240")):
        short = f"{common} {some} --set training.schedule=cosine {batches} --eval-every 10"
        yield from seeds(f"conve-{name}", "conve", name, short, count=5)
        half = f"{short} --precision bf16"
        yield from seeds(f"conve-{name}-bf16", "conve", name, half, "bf16", count=5)
    # a quarter of the channels, less dropout, a larger learning rate: as far in seconds
    little = "--set model.channels=8 --set model.input_dropout=0 --set model.feature_dropout=0.1"
    for name, some in (
        ("umls", "--lr 4e-3 --epochs 40"),
        ("kinship", "--lr 5e-3 --epochs 30 --set model.loss=1-n-softmax"),
    ):
        options = (
            f"{common} {some} {little} --set training.schedule=cosine {batches} --eval-every 10"
        )
        yield from seeds(f"conve-{name}-quick", "conve", name, options, count=5)
    # an average of the weights in place of a learning rate that falls
    options = f"{common} --lr 5e-3 --epochs 30 --set model.loss=1-n-softmax {little} {batches}"
    options += " --set training.average=4 --eval-every 10"
    yield from seeds("conve-kinship-average", "conve", "kinship", options, count=5)
    # the same on UMLS, where averaging was first compared on test figures
    for epochs in (3, 8):
        options = f"{common} --lr 4e-3 --epochs 40 {little} {batches} --eval-every 10"
        options += f" --set training.average={epochs}"
        yield from seeds(f"conve-umls-average-{epochs}", "conve", "umls", options, count=5)
    # the losses for as many epochs, first compared on test figures
    for loss in ("1-n", "1-n-softmax"):
        options = f"{common} --lr 3e-3 --epochs 12 --set training.schedule=cosine {batches}"
        options += f" --eval-every 4 --set model.loss={loss}"
        yield from seeds(f"conve-umls-12-{loss}", "conve", "umls", options, "loss", count=5)
    better = "--lr 4e-3 --epochs 60 --set model.loss=1-n-softmax --set model.channels=16"
    better += " --set model.input_dropout=0 --set model.feature_dropout=0.2"
    options = f"{common} {better} --set model.hidden_dropout=0.4 --set training.schedule=cosine"
    options = f"{options} {batches} --eval-every 10"
    yield from seeds("conve-kinship-softmax", "conve", "kinship", options, count=5)
    quick = f"{common} --set training.schedule=cosine --set model.dropout=0.5 --eval-every 10"
    for name, some, size in (
        ("umls", "--lr 2e-2 --epochs 60", 256),
        ("kinship", "--lr 5e-2 --epochs 30", 512),
    ):
        options = f"{quick} {some} --set training.batch_size={size}"
        yield from seeds(f"complex-{name}", "complex", name, options, count=5)
    yield from seeds("conve-nations", "conve", "nations", f"{falling} --epochs 100 --eval-every 5")
    drugs = "".join(
        f" --set data.columns.{role}={number}"
        for role, number in (("head", 1), ("tail", 2), ("relation", 3))
    )
    # a check that a set of another field trains to the end, no search for its best figures
    some = f"{falling} --set data.unknown=keep --epochs 12 --eval-every 3{drugs}"
    yield from seeds("conve-drugbank-ddi", "conve", "drugbank-ddi", some, count=1)


def _facts() -> Iterable[Experiment]:
    """Events with facts: KGAT on the fixed parts that RecBole is compared on, and without facts.

    KGAT's learning rate by seed 0, NDCG@20 on validation: 1e-3 .259 after 72 epochs and still
    rising, 2e-3 .273 after 63, 5e-3 .248 after 24 and then falling.
    """
    parts = [f"data.{part}=ml-100k-facts.{part}.inter" for part in ("train", "valid", "test")]
    facts = ["data.kg=ml-100k-facts.kg", "data.links=ml-100k-facts.link", "model.layers=64"]
    events = " ".join(f"--set {each}" for each in parts)
    common = "--set training.batch_size=2048 --patience 8 --metrics ndcg,recall --topk 20"
    slow = f"{common} --lr 2e-3 --eval-every 3 --epochs 150 {events} "
    slow += " ".join(f"--set {each}" for each in facts)
    yield from seeds("kgat-ml-100k-fixed", "kgat", "ml-100k-facts", slow)
    every = f"{slow} --set model.sampling=interactions"
    yield from seeds("kgat-ml-100k-fixed-interactions", "kgat", "ml-100k-facts", every, count=1)
    # one propagation for two and four times as many pairs
    for size in (4096, 8192):
        larger = slow.replace("batch_size=2048", f"batch_size={size}")
        yield from seeds(f"kgat-ml-100k-fixed-{size}", "kgat", "ml-100k-facts", larger, count=1)
    for model, rate in (("lightgcn", "5e-3"), ("bprmf", "1e-3")):
        some = f"{common} --lr {rate} --eval-every 5 --epochs 400 {events}"
        yield from seeds(f"{model}-ml-100k-fixed", model, "ml-100k-facts", some)
    # its training part is not at hand: the published test part is divided
    thinned = "--set data.train=test.txt --set training.batch_size=8192 --lr 3e-3"
    thinned += " --epochs 40 --eval-every 4 --patience 3"
    one = f"{thinned} --set model.layers=64"
    yield from seeds("kgat-alibaba-fashion", "kgat", "alibaba-fashion", one, count=1)
    yield from seeds("bprmf-alibaba-fashion", "bprmf", "alibaba-fashion", thinned, count=1)


def _features() -> Iterable[Experiment]:
    """Real features of image and sound, and the same split without them.

    Learning rates by short trainings, recall@20 on validation: LightGCN 1e-3 .083 after 31 epochs
    and still rising, 5e-3 .103 after 15; BPR-MF 1e-3 .044, 5e-3 .042; DRAGON 1e-3 .074 after 9
    epochs, then up and down below it, 1e-4 (the paper's) .058 after 14 and rising; MMGCN 1e-4 .023
    after 1 epoch, 1e-3 .078 after 4, up and down by half between epochs.
    """
    common = "--set training.batch_size=2048 --metrics recall,ndcg --topk 20"
    stop = "--patience 20"
    rates = {"mmgcn": "1e-3", "dragon": "1e-4", "bprmf": "1e-3", "lightgcn": "5e-3"}
    for model, rate in rates.items():
        options = f"{common} --lr {rate} --epochs 1000 {stop}"
        if model in ("bprmf", "lightgcn"):
            options += " --set model.sampling=interactions"
        question = "ids" if model == "mmgcn" else "settings"
        yield from seeds(f"{model}-tiktok", model, "tiktok", options, question)
    # what DRAGON has of the features, and what of a vector of an item's own in their place
    paper = f"{common} --lr {rates['dragon']} --epochs 1000 {stop}"
    yield from seeds("dragon-tiktok-shuffled", "dragon", "tiktok-shuffled", paper, count=1)
    own = f"{paper} --set model.modalities=own --set model.neighbours=1"
    yield from seeds("dragon-tiktok-drawn", "dragon", "tiktok-drawn", own, count=1)
    frozen = f"{common} --lr 1e-3 --epochs 1000 {stop} --set model.ids=frozen"
    yield from seeds("mmgcn-frozen-tiktok", "mmgcn", "tiktok", frozen, "ids")


_REDDA = {
    "drug_disease": "associations/Kdataset.csv",
    "drug_protein": "associations/drug_protein.csv",
    "gene_pathway": "associations/gene_pathway.csv",
    "pathway_disease": "associations/pathway_disease.csv",
    "protein_gene": "associations/protein_gene.csv",
    "pathway_pathway": "interactions/pathway_pathway.csv",
    "disease_disease": "interactions/disease_disease.csv",
}


def _typed() -> Iterable[Experiment]:
    """Typed graphs: HGT beside DistMult and degrees, on the same held-out links."""
    redda = " ".join(f"--set data.edges.{name}={file}" for name, file in _REDDA.items())
    sets = {
        "hetionet": "--set data.symmetric=CrC,DrD,GcG,GiG",
        "redda-k": f"{redda} --set data.symmetric=pathway_pathway,disease_disease",
    }
    common = "--metrics mrr,hits --topk 10"
    falling = "--eval-every 5 --lr 3e-3 --set training.schedule=cosine --epochs 30"
    # the guide's 512 dimensions from narrower layers: REDDA-K, validation MRR after 10 epochs .170,
    # where 256 wide ones had .164 after 5 at three times the cost
    narrow = f"{falling} --set model.hidden=64"
    # DistMult on REDDA-K: softmaxes find more (validation MRR .181 after 4 epochs, .149 after 12
    # with 32 drawn), drawn ones tell links from others a little better (AUROC .716 and .684)
    softmax = "--eval-every 5 --lr 1e-3 --set training.schedule=cosine --epochs 10"
    softmax += " --set model.loss=1-n-softmax --set training.batch_size=512"
    drawn = "--eval-every 5 --lr 3e-3 --set training.schedule=cosine --epochs 15"
    drawn += " --set model.loss=sampled --set model.negatives=32 --set training.batch_size=4096"
    models = {
        "hgt": ("hgt", f"{narrow} --set model.loss=logistic"),
        "hgt-softmax": ("hgt", f"{narrow} --set model.loss=softmax --set model.negatives=256"),
        "distmult": ("distmult", softmax),
        "distmult-drawn": ("distmult", drawn),
        "degree": ("degree", ""),
    }
    for name, files in sets.items():
        for kind, (model, options) in models.items():
            yield from seeds(
                f"{kind}-{name}",
                model,
                name,
                f"{common} {files} {options}",
                "settings" if model == "degree" else "loss",
                embeddings=True,
            )
    # with as few drawn ends as the logistic loss has: the default
    for name, files in sets.items():
        few = f"{common} {files} {narrow} --set model.loss=softmax"
        yield from seeds(f"hgt-softmax-64-{name}", "hgt", name, few, "loss", embeddings=True)


EXPERIMENTS = (*EXPERIMENTS, *_typed(), *_graphs(), *_facts(), *_features())


def select(pattern: str | None, experiments: Iterable[Experiment]) -> list[Experiment]:
    """The experiments whose name contains the pattern; all where there is none."""
    return [e for e in experiments if pattern is None or pattern in e.name]
