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

#: defaults that changed after their group was opened: (model, data) -> the question of the group
#: since then, and the options that they were before
CHANGED = {
    **{
        (model, data): ("exclude-self", "--set model.exclude_self=false")
        for model in ("complex", "conve")
        for data in ("umls", "kinship")
    },
    ("hgt", "redda-k"): (
        "self-score",
        "--epochs 30 --eval-every 3 --batch-size 5000 --set model.self_score=false",
    ),
}
