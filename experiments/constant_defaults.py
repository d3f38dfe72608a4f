"""The defaults before they followed from the size of the data: model, data, options."""

from __future__ import annotations

_LENGTH = "--epochs 100 --eval-every 1 --patience none"
_COMPLEX = (
    f"{_LENGTH} --lr 1e-3 --batch-size 512 --set training.schedule=constant "
    "--set model.loss=1vsall --set model.width=200 --set model.dropout=0.3 --set model.n3=0 "
    "--set model.relation_weight=0 --set model.exclude_self=false"
)
_CONVE = (
    f"{_LENGTH} --lr 3e-3 --batch-size 128 --set training.average=none --set model.loss=1-n "
    "--set model.channels=32 --set model.group=128 --set model.input_dropout=0.2 "
    "--set model.feature_dropout=0.2 --set model.hidden_dropout=0.3 --set model.exclude_self=false"
)
_PAIRS = f"{_LENGTH} --lr 1e-3 --batch-size 1024 --set model.sampling=users"
_SASREC = (
    f"{_LENGTH} --lr 1e-3 --set training.schedule=constant --set training.average=none "
    "--set model.max_length=50 --set model.dropout=0.5"
)

#: the settings of the records that are named defaults
CONSTANT_DEFAULTS = (
    ("complex", "umls", _COMPLEX),
    ("complex", "kinship", _COMPLEX),
    ("conve", "umls", _CONVE),
    ("conve", "kinship", _CONVE),
    ("bprmf", "tiktok", _PAIRS),
    ("bprmf", "ml-100k-facts", _PAIRS),
    ("lightgcn", "ml-100k-facts", _PAIRS),
    ("sasrec", "beauty", _SASREC),
)

_HGT = (
    "--set model.shallow_width=0 --set model.output_dropout=0 --set model.n3=0 "
    "--set model.exclude_self=false --set model.contrastive_weight=0.5"
)
_LONG = f"{_HGT} --epochs 30 --eval-every 3 --batch-size 5000 --set model.self_score=false"
_SELF = (
    f"{_HGT} --epochs 15 --eval-every 1 --set model.self_score=true "
    "--set model.relation_weights=normal"
)
_SHALLOW = (
    "--epochs 15 --eval-every 1 --set training.schedule=cosine --set training.average=none "
    "--set model.query_dropout=0 --set model.output_dropout=0.1 --set model.filter_negatives=true"
)

#: of complex and distmult on graphs of many triples
ALL_ENTITIES = (
    "--set model.loss=1-n-softmax --set model.width=400 --set model.n3=0.02 "
    "--set model.relation_weight=1 --eval-every 2"
)

_SAMPLED = (
    "--epochs 40 --eval-every 4 --lr 3e-3 --set model.width=800 --set model.bias=true "
    "--set model.dropout=0.2 --set model.n3=0.03 --set model.relation_weight=2"
)

_WIDTH = "--set model.width=512"
_NARROW = f"{_WIDTH} --epochs 10 --set training.schedule=constant --set model.dropout=0"

#: defaults that changed after their group was opened: (model, data) -> the questions of the groups
#: in their order, and the options that the defaults were; the last group has today's defaults
CHANGED = {
    **{
        (model, data): (("as-it-comes", "--set model.exclude_self=false"), ("exclude-self", ""))
        for model in ("complex", "conve")
        for data in ("umls", "kinship")
    },
    **{
        (model, data): (
            ("as-it-comes", f"{ALL_ENTITIES} --epochs {epochs}"),
            ("sampled-default", ""),
        )
        for model, data, epochs in (("distmult", "hetionet", 20), ("distmult", "redda-k", 22))
    },
    ("complex", "fb15k-237"): (
        ("as-it-comes", f"{ALL_ENTITIES} --epochs 20"),
        ("sampled-default", _SAMPLED),
        ("published-default", ""),
    ),
    ("mmgcn", "tiktok"): (
        ("as-it-comes", "--set evaluation.metrics=ndcg@10,recall@20"),
        ("recall-default", ""),
    ),
    ("hgt", "redda-k"): (
        ("as-it-comes", _LONG),
        ("self-score", f"{_SELF} --batch-size 960"),
        ("shallow-default", f"{_SHALLOW} --batch-size 500 --set model.hidden=64"),
        ("averaged-default", "--set model.hidden=64"),
        ("narrow-default", f"{_NARROW} --set model.label_smoothing=0"),
        ("smoothed-default", _NARROW),
        ("annealed-default", _WIDTH),
        ("wide-default", ""),
    ),
    ("hgt", "hetionet"): (
        ("as-it-comes", f"{_SELF} --batch-size 1670"),
        ("shallow-default", f"{_SHALLOW} --batch-size 835 --set model.hidden=64"),
        ("narrow-default", f"{_NARROW} --set model.label_smoothing=0"),
        ("smoothed-default", _NARROW),
        ("annealed-default", _WIDTH),
        ("wide-default", ""),
    ),
}
