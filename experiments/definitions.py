"""Every experiment: a name, and what ``hasten train`` is given. Add one here, then run it."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.constant_defaults import ALL_ENTITIES, CHANGED, CONSTANT_DEFAULTS
from experiments.experiment import Experiment, by_recipe, seeds
from experiments.fb15k_237 import fb15k_237
from hasten.recipes.load import Recipe, find_recipe, recipes

#: the papers on Beauty take the items of the history out of the ranking
_MASKED = "--set evaluation.mask_history=true"
#: times of Beauty are days: where both held-out events are of one, the file made their order
_UNTIED = "--set evaluation.users=untied"
_SAMPLED = "--set evaluation.candidates=uni100"
#: interactions: fewer than 13,000 items, and more
_SMALL, _LARGE = (
    ("ml-100k-facts", "tiktok", "beauty", "ml-1m", "baby"),
    ("amazon-book", "home", "alibaba-fashion"),
)
#: the files of data sets that are not a folder to be read as it is
_FILES = {
    "alibaba-fashion": "--set data.train=test.txt",
    "baby": "--set data.train=trn.tsv --set data.valid=val.tsv --set data.test=tst.tsv",
    "ml-100k-facts": " ".join(
        f"--set data.{part}=ml-100k-facts.{part}.inter" for part in ("train", "valid", "test")
    ),
    "drugbank-ddi": "--set data.unknown=keep --set data.columns.head=1 --set data.columns.tail=2 "
    "--set data.columns.relation=3",
}
_BEAUTY, _ML1M = (_MASKED, _UNTIED, _SAMPLED), (_MASKED, _SAMPLED)


def _sequences() -> Iterable[Experiment]:
    """Sequences of items: SASRec, TiSASRec, and both with hyper-connections."""
    yield from by_recipe("sasrec", "beauty", also=_BEAUTY)
    # what a minute of training on two cores is worth, evaluations included
    minute = "--recipe beauty/best --set training.max_time=60 --set training.patience=none"
    yield from seeds("sasrec-beauty-ce-minute", "sasrec", "beauty", minute, "one-minute")
    yield from by_recipe("sasrec", "beauty", "masked", "masked", also=(_UNTIED,))
    # the best masked ranking in about a minute
    yield from by_recipe("sasrec", "beauty", "minute", "minute", also=(_UNTIED,))
    yield from by_recipe("tisasrec", "beauty", also=_BEAUTY)
    yield from by_recipe("sasrec", "ml-1m", also=_ML1M)
    # hyper-connections as the paper has them, and the cheapest that mix
    static = "--set model.residual=mhc --set model.maps=static --set model.projection=permutation"
    for model, maps, some in (
        ("sasrec", "mhc", "--set model.residual=mhc"),
        ("sasrec", "mhc-static", static),
        ("tisasrec", "mhc-static", static),
    ):
        best, twenty = f"--recipe beauty/best {some}", f"--recipe ml-1m/20-epochs {some}"
        name, question = f"{model}-{maps}", "hyper-connections"
        yield from seeds(f"{name}-beauty-ce", model, "beauty", best, question, also=_BEAUTY)
        question = "hyper-connections-20-epochs"
        yield from seeds(f"{name}-ml-1m-ce-20", model, "ml-1m", twenty, question, also=_ML1M)
    # the settings of Beauty elsewhere, not tuned: without times (Home), long histories (ml-1m)
    for data in ("home", "ml-1m"):
        options, question = "--recipe beauty/minute", "settings-of-beauty"
        yield from seeds(f"sasrec-{data}-as-beauty", "sasrec", data, options, question)
        # with two blocks, which is where streams mix
        question = "hyper-connections-as-beauty"
        for name, some in (("plain", ""), ("mhc", "--set model.residual=mhc"), ("static", static)):
            deep = f"{options} --set model.blocks=2 {some}"
            yield from seeds(f"sasrec-{name}-{data}-as-beauty", "sasrec", data, deep, question)
    # the same twenty epochs with a falling learning rate for every model of a comparison
    yield from by_recipe("sasrec", "ml-1m", "20-epochs", "20-epochs", also=_ML1M)
    yield from by_recipe("tisasrec", "ml-1m", "20-epochs", "20-epochs", also=_ML1M)
    yield from by_recipe("sasrec", "ml-1m", "paper", "paper", also=_ML1M)


def _graphs() -> Iterable[Experiment]:
    """Small knowledge graphs: ConvE as in its paper, but for a learning rate that falls to zero.

    The small graphs learn in batches of 32, of which an epoch has four times as many. Validation
    MRR on UMLS: 40 epochs .931 (batches of 128: .860), 60 epochs .941; on Kinship 160 epochs .827
    (batches of 128, 150 epochs: .809), 60 epochs .801 (without label smoothing .798, batches of
    64 with more dropout .781).
    """
    common = "--metrics mrr,hits,mr,amri --topk 1,3,10"
    falling = f"{common} --lr 3e-3 --set training.schedule=cosine"
    batches = "--set training.batch_size=32 --set model.group=32"
    yield from by_recipe("conve", "umls", count=5)
    long = (
        f"{common} --lr 2e-3 --epochs 240 --set training.schedule=cosine {batches} --eval-every 10"
    )
    yield from seeds("conve-kinship", "conve", "kinship", long, count=5)
    for name, some in (("umls", "--recipe umls/best"), ("kinship", long)):
        half = f"{some} --precision bf16"
        yield from seeds(f"conve-{name}-bf16", "conve", name, half, "bf16", count=5)
    # a quarter of the channels, less dropout, a larger learning rate: as far in seconds
    yield from by_recipe("conve", "umls", "quick", count=5)
    little = "--set model.channels=8 --set model.input_dropout=0 --set model.feature_dropout=0.1"
    options = f"{common} --lr 5e-3 --epochs 30 --set model.loss=1-n-softmax {little} {batches}"
    options += " --set training.schedule=cosine --eval-every 10"
    yield from seeds("conve-kinship-quick", "conve", "kinship", options, count=5)
    # an average of the weights in place of a learning rate that falls
    yield from by_recipe("conve", "kinship", "quick", count=5)
    # the same on UMLS, where averaging was first compared on test figures
    for epochs in (3, 8):
        options = "--recipe umls/quick --set training.schedule=constant"
        options += f" --set training.average={epochs}"
        yield from seeds(f"conve-umls-average-{epochs}", "conve", "umls", options, count=5)
    # the losses for as many epochs, first compared on test figures
    for loss in ("1-n", "1-n-softmax"):
        options = f"{common} --lr 3e-3 --epochs 12 --set training.schedule=cosine {batches}"
        options += f" --eval-every 4 --set model.loss={loss}"
        yield from seeds(f"conve-umls-12-{loss}", "conve", "umls", options, "loss", count=5)
    yield from by_recipe("conve", "kinship", count=5)
    yield from seeds("conve-nations", "conve", "nations", f"{falling} --epochs 100 --eval-every 5")
    # a check that a set of another field trains to the end, no search for its best figures
    some = f"{falling} --epochs 12 --eval-every 3 {_FILES['drugbank-ddi']}"
    yield from seeds("conve-drugbank-ddi", "conve", "drugbank-ddi", some, count=1)


def _products() -> Iterable[Experiment]:
    """Knowledge graphs: products of embeddings.

    ComplEx, one answer a row: UMLS, batches of 256, learning rate 2e-2 .951, 5e-2 .948, dropout
    0.4 .939, batches of 128 and 1e-2 .936 after 50 epochs (dropout 0.7 .917 after 40), batches of
    512 and 5e-2 .937; Kinship after 30 epochs .875 in batches of 512 with 5e-2, .876 of 128 with
    1e-2, .867 of 256 with 2e-2. All answers at once: .908 and .853 after 30 epochs.
    """
    for data in ("umls", "kinship"):
        yield from by_recipe("complex", data, "plain", count=5)
        # N3 and relation prediction help on Kinship; on UMLS a wider model is as good without them
        yield from by_recipe("complex", data, question="n3")


def _facts() -> Iterable[Experiment]:
    """Events with facts: KGAT on the fixed parts that RecBole is compared on, and without facts.

    KGAT's learning rate by seed 0, NDCG@20 on validation: 1e-3 .259 after 72 epochs and still
    rising, 2e-3 .273 after 63, 5e-3 .248 after 24 and then falling.
    """
    for model in ("kgat", "lightgcn", "bprmf"):
        yield from by_recipe(model, "ml-100k-facts")
    every = "--recipe ml-100k-facts/best --set model.sampling=interactions"
    yield from seeds("kgat-ml-100k-fixed-interactions", "kgat", "ml-100k-facts", every, count=1)
    # one propagation for two and four times as many pairs
    for size in (4096, 8192):
        larger = f"--recipe ml-100k-facts/best --batch-size {size}"
        yield from seeds(f"kgat-ml-100k-fixed-{size}", "kgat", "ml-100k-facts", larger, count=1)
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
    # single seeds range from .07 to .085 in test recall@20, here and in MMRec
    yield from by_recipe("mmgcn", "tiktok", question="ids", count=5)
    trained = "--recipe tiktok/best --set model.ids=trainable"
    yield from seeds("mmgcn-tiktok", "mmgcn", "tiktok", trained, "ids")
    yield from by_recipe("dragon", "tiktok", count=5)
    for model in ("bprmf", "lightgcn"):
        yield from by_recipe(model, "tiktok")
    # recall@20 on validation, means of three seeds: half of the image and 0.3 of the pairs left out
    # .104, average over four epochs .105, width 128 .105, 40 neighbours .105, weight decay .086
    yield from by_recipe("freedom", "tiktok", count=5)
    fewer = "--recipe tiktok/best --set model.neighbours=10 --eval-every 1"
    yield from seeds("freedom-tiktok", "freedom", "tiktok", fewer, count=5)
    # what DRAGON has of the features, and what of a vector of an item's own in their place
    best = "--recipe tiktok/best"
    yield from seeds("dragon-tiktok-shuffled", "dragon", "tiktok-shuffled", best, count=1)
    own = f"{best} --set model.modalities=own --set model.neighbours=1"
    yield from seeds("dragon-tiktok-drawn", "dragon", "tiktok-drawn", own, count=1)


def _linear() -> Iterable[Experiment]:
    """Models without training steps as they come, one seed: it changes at most a random split.

    EASE only where its dense weights take a few minutes on two cores. Beside them LightGCN as it
    comes, where no recipe of its own measures it (``_features``, ``_facts``).
    """
    metrics = "--set evaluation.metrics=ndcg@10,hr@10,ndcg@20,recall@20"
    for data in (*_SMALL, *_LARGE):
        for model in ("itemknn", "gfcf", "slim", "ease"):
            if model != "ease" or data in _SMALL:
                options = f"{metrics} {_FILES.get(data, '')}"
                name = f"{model}-{data}"
                yield from seeds(name, model, data, options, "defaults", count=1)
    for data, count in (("baby", 3), ("beauty", 3), *((each, 1) for each in ("ml-1m", *_LARGE))):
        options = f"{metrics} {_FILES.get(data, '')}"
        yield from seeds(f"lightgcn-{data}", "lightgcn", data, options, "defaults", count=count)
    for data in ("baby", "beauty", "tiktok"):
        options = f"{metrics} {_FILES.get(data, '')} --set model.loss=softmax"
        yield from seeds(f"lightgcn-softmax-{data}", "lightgcn", data, options, "softmax")


def _typed() -> Iterable[Experiment]:
    """Typed graphs: HGT beside DistMult and degrees, on the same held-out links."""
    for data in ("hetionet", "redda-k"):
        # the guide's 512 dimensions from narrower layers: REDDA-K, validation MRR after 10 epochs
        # .170, where 256 wide ones had .164 after 5 at three times the cost
        yield from by_recipe("hgt", data, "softmax", question="loss", embeddings=True)
        # 64 negatives, the default, are as many as the logistic loss has
        for name, some in (
            (f"hgt-{data}", "--set model.loss=logistic --set model.negatives=64"),
            (f"hgt-softmax-64-{data}", "--set model.negatives=64"),
        ):
            given = f"--recipe {data}/softmax {some}"
            yield from seeds(name, "hgt", data, given, "loss", embeddings=True)
        yield from by_recipe("distmult", data, question="loss", embeddings=True)
        # on REDDA-K softmaxes find more (validation MRR .181 after 4 epochs, .149 after 12 with 32
        # sampled), sampled ones tell links from others a little better (AUROC .716 and .684)
        yield from by_recipe("distmult", data, "sampled", "loss", embeddings=True)
        # after 10 epochs validation still rises
        longer = f"--recipe {data}/best --epochs 30"
        name = f"distmult-30-{data}"
        yield from seeds(name, "distmult", data, longer, "loss", embeddings=True)
        # a second embedding of each node beside the output of the layers
        yield from by_recipe("hgt", data, question="shallow", embeddings=True)
        # as it comes: N3 and relation prediction, all answers at once
        files = _data_options(find_recipe("distmult", f"{data}/best"))
        before = f"{files} {ALL_ENTITIES} --epochs {22 if data == 'redda-k' else 20}"
        name = f"complex-{data}"
        yield from seeds(name, "complex", data, before, "defaults", embeddings=True)
        name = f"complex-{data}-sampled-default"
        yield from seeds(name, "complex", data, files, "sampled-default", embeddings=True)
        yield from by_recipe("degree", data, embeddings=True)


#: seeds of runs without options: one or two where a run takes half an hour of one core or more, as
#: many as the recipe has where seeds differ much; the others have three
_SEEDS = {
    "complex-fb15k-237-as-it-comes": 1,
    "complex-fb15k-237-published-default": 1,
    "complex-fb15k-237-sampled-default": 1,
    "conve-fb15k-237-as-it-comes": 1,
    "mmgcn-tiktok-recall-default": 5,
    "sasrec-ml-1m-as-it-comes": 2,
}


def _defaults() -> Iterable[Experiment]:
    """Every model as it comes on the data sets of its recipes: no option but those of the files."""
    for recipe in recipes():
        files = _data_options(recipe)
        own = sum(not key.startswith("data.") for key in recipe.configuration)
        if recipe.name == "best" and own > 1:
            model, data, usual = recipe.model, recipe.data, "as-it-comes"
            embeddings = model in ("hgt", "distmult")
            for asked, before in CHANGED.get((model, data), ((usual, ""),)):
                name, given = f"{model}-{data}-{asked}", f"{files} {before}"
                count = _SEEDS.get(name, 3)
                yield from seeds(
                    name, model, data, given, asked, count=count, embeddings=embeddings
                )

    # data without a recipe of their own
    drugs = "drugbank-ddi"
    pairs = (("sasrec", "home"), ("tisasrec", "ml-1m"), ("complex", drugs), ("conve", drugs))
    for model, data in pairs:
        name = f"{model}-{data}-as-it-comes"
        given, count = _FILES.get(data, ""), _SEEDS.get(name, 3)
        yield from seeds(name, model, data, given, "as-it-comes", count=count)

    for model, data, options in CONSTANT_DEFAULTS:
        name, given = f"{model}-{data}-defaults", f"{options} {_FILES.get(data, '')}"
        yield from seeds(name, model, data, given, "defaults")


def _data_options(recipe: Recipe) -> str:
    """The options of a recipe that name its files and say how to read them."""
    given = recipe.configuration.items()
    return " ".join(f"--set {k}={_joined(v)}" for k, v in given if k.startswith("data."))


def _joined(value: str | list[str]) -> str:
    return value if isinstance(value, str) else ",".join(value)


EXPERIMENTS = (
    *_sequences(),
    *_typed(),
    *fb15k_237(),
    *_graphs(),
    *_products(),
    *_facts(),
    *_features(),
    *_linear(),
    *_defaults(),
)


def select(pattern: str | None, experiments: Iterable[Experiment]) -> list[Experiment]:
    """The experiments whose name contains the pattern; all where there is none."""
    return [e for e in experiments if pattern is None or pattern in e.name]
