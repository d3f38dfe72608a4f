"""Translate a configuration of RecBole, MMRec or a training script."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.config_loading.build import build_config
from hasten.config_loading.keys import known_keys, matching_key
from hasten.config_loading.spellings import ADVICE, normalized_name
from hasten.config_loading.yaml_file import Entry, read_entries
from hasten.errors import ConfigurationError, UsageError
from hasten.registry import data_options_of, load_model, model_entries

#: names of models elsewhere, in lower case, that differ from ours
_MODELS = {"bpr": "bprmf", "slimelastic": "slim", "hgtconv": "hgt", "freedom": "freedom"}
_METRICS = {"hit": "hr", "hitratio": "hr", "map": "map", "recall": "recall", "ndcg": "ndcg",
            "mrr": "mrr", "precision": "precision"}  # fmt: skip
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")

#: settings by dotted key; or, as text, why there is none
Translation = dict[str, Any] | str


@dataclass(frozen=True)
class Line:
    """A key of the file, and what became of it: settings, or why it has none."""

    place: str
    key: str
    value: Any
    settings: Mapping[str, Any]
    reason: str | None


@dataclass(frozen=True)
class Translated:
    """The configuration, and what became of every key of the files."""

    config: RunConfig
    lines: Sequence[Line]


def _switch(key: str, on: str, off: str) -> Callable[[str], Translation]:
    def translate(value: str) -> Translation:
        word = value.lower()
        if word not in (*_TRUE, *_FALSE):
            return f"{value} is neither true nor false"
        return {key: on if word in _TRUE else off}

    return translate


def _choice(key: str, **values: str) -> Callable[[str], Translation]:
    def translate(value: str) -> Translation:
        translation = values.get(value.lower())
        return (
            f"{key} has no {value}: {', '.join(values)}"
            if translation is None
            else {key: translation}
        )

    return translate


def _same(wanted: str, reason: str) -> Callable[[str], Translation]:
    """A value that hasten always has, or none of its options can give."""
    return lambda value: {} if value.lower() in wanted.split() else f"{value}: {reason}"


def _ratios(value: Any) -> Translation:
    parts = [float(each) for each in value] if isinstance(value, list) else []
    if len(parts) != 3 or not sum(parts):
        return "expected three ratios"
    shown = ",".join(f"{part / sum(parts):.6g}" for part in parts)
    return {"data.split": "ratio", "data.ratios": shown}


def _core(value: str) -> Translation:
    match = re.fullmatch(r"[\[(]\s*(\d+)\s*,\s*inf\s*[\])]", value)
    return {"data.k_core": match[1]} if match else f"{value}: only [k,inf) has a counterpart"


_AMP = _switch("training.precision", "auto", "fp32")
_COMPILE = _switch("training.compile", "auto", "off")
_MODE = _choice("evaluation.candidates", full="full", uni100="uni100", pop100="pop100")
_DATA = "the data are the argument after MODEL: hasten train MODEL DATA"
_COLUMNS = "the columns are found by their names; data.columns names others"
#: keys whose values differ too
RULES: dict[str, Callable[[Any], Translation]] = {
    "use_amp": _AMP,
    "enable_amp": _AMP,
    "use_mixed_precision": _AMP,
    "use_torch_compile": _COMPILE,
    "torch_compile": _COMPILE,
    "clip_grad_norm.max_norm": lambda value: {"training.clip_norm": value},
    "clip_grad_norm.norm_type": _same("2 2.0", "gradients are clipped by their L2 norm"),
    "stopping_step": lambda value: {"training.patience": f"{value} evaluations"},
    "learner": _choice("training.optimizer", adam="adam", adamw="adamw"),
    "loss_type": _choice("model.loss", ce="ce", bce="bce"),
    "reproducibility": _switch("training.deterministic", "true", "false"),
    "layer_norm_eps": lambda value: {"model.norm_eps": value},
    "hidden_act": _same("relu", "the feed-forward network has ReLU (GELU is no option)"),
    "eval_args.split.RS": _ratios,
    "eval_args.split.LS": lambda value: (
        {"data.split": "leave-last-two-out"}
        if value == "valid_and_test"
        else f"{value}: only valid_and_test has a counterpart"
    ),
    "eval_args.order": _choice("data.ratio_order", ro="random", to="time"),
    "eval_args.group_by": _same("user", "ratios are those of each user's events"),
    "eval_args.mode": _MODE,
    "eval_args.mode.valid": _MODE,
    "eval_args.mode.test": _MODE,
    "user_inter_num_interval": _core,
    "item_inter_num_interval": _core,
    "train_neg_sample_args.distribution": _same("uniform", "negatives are drawn uniformly"),
    "train_neg_sample_args.sample_num": lambda value: {"model.negatives": value},
}
#: keys without a counterpart
REASONS = dict.fromkeys(("dataset", "data_path", "train", "valid", "test"), _DATA) | dict.fromkeys(
    ("USER_ID_FIELD", "ITEM_ID_FIELD", "TIME_FIELD", "RATING_FIELD", "field_separator"), _COLUMNS
) | {
    "gpu_id": "the device is --device cuda:N",
    "hyper_parameters": "it names the keys of a grid: hasten tune searches",
    "checkpoint_dir": "the run folder holds the checkpoints: --out DIR",
    "show_progress": "--quiet shows no progress",
}  # fmt: skip


def translate_config(files: Sequence[Path], model: str | None = None) -> Translated:
    """The configuration that the files describe together; later files override earlier ones.

    model: None: the key ``model`` of a file. Raises ConfigurationError for a file that is no YAML
    or JSON, UsageError if no model is named.
    """
    entries: dict[str, Entry] = {}
    for file in files:
        entries |= {entry.key: entry for entry in read_entries(file, frozenset())}
    name = _model_of(model, entries.pop("model", None) or entries.pop("model_name", None))
    kind = load_model(name)
    keys = known_keys(kind.Options, data_options_of(kind))
    settings: dict[str, Any] = {}
    lines = []
    for entry in entries.values():
        if entry.key in ("metrics", "topk", "valid_metric"):
            continue
        lines.append(_line(entry, _translated(entry, keys), name, settings))
        settings |= lines[-1].settings
    if measured := [entries[k] for k in ("metrics", "topk", "valid_metric") if k in entries]:
        translated_metrics = _metrics(entries)
        lines += [_line(entry, translated_metrics, name, {}) for entry in measured]
        settings |= lines[-1].settings
    return Translated(build_config(name, flags=settings), lines)


def _model_of(given: str | None, entry: Entry | None) -> str:
    name = given or (None if entry is None else str(entry.value))
    if name is None:
        raise UsageError("no model is named in the file: give --model MODEL")
    name = _MODELS.get(name.lower(), name.lower())
    if name not in (known := [each.name for each in model_entries()]):
        raise ConfigurationError(f"hasten has no model {name}: there are {', '.join(known)}")
    return name


def _translated(entry: Entry, keys: Mapping[str, Any]) -> Translation:
    last = entry.key.rpartition(".")[2]
    rule = RULES.get(entry.key, RULES.get(last))
    if entry.value is None or str(entry.value).lower() in ("none", "null"):
        return {}
    if rule is not None:
        return rule(entry.value)
    if reason := REASONS.get(last) or ADVICE.get(normalized_name(entry.key)):
        return reason
    key = matching_key(entry.key, keys)
    if key is None:
        return "no option of hasten has this effect"
    scalars = not isinstance(entry.value, list) or key.endswith(("layers", "betas", "metrics"))
    if not scalars:
        return f"a list of values is a grid: choose one for {key}"
    return {key: ",".join(entry.value) if isinstance(entry.value, list) else entry.value}


def _line(entry: Entry, translation: Translation, model: str, before: Mapping[str, Any]) -> Line:
    """What becomes of a key: not what the model refuses, nor what another key sets otherwise."""
    if isinstance(translation, dict):
        for key, value in translation.items():
            if before.get(key, value) != value:
                translation = f"{key} is {before[key]} by another key of the file"
                break
    if isinstance(translation, dict) and translation:
        try:
            build_config(model, flags=translation)
        except ConfigurationError as error:
            translation = str(error).partition("\n")[0]
    settings = translation if isinstance(translation, dict) else {}
    return Line(
        entry.place,
        entry.key,
        entry.value,
        settings,
        translation if isinstance(translation, str) else None,
    )


def _metrics(entries: Mapping[str, Entry]) -> Translation:
    """``metrics`` at ``topk``, the one that selects first."""
    names = _texts(entries.get("metrics")) or ["recall", "ndcg"]
    cuts = _texts(entries.get("topk")) or ["10"]
    requested = [*_texts(entries.get("valid_metric")), *(f"{n}@{k}" for n in names for k in cuts)]
    metrics, unknown = [], []
    for text in requested:
        name, at, cut = text.partition("@")
        metric = _METRICS.get(name.lower())
        if metric is None:
            unknown.append(name)
        else:
            metrics.append(f"{metric}@{cut if at else cuts[0]}")
    if not metrics:
        return f"no metric {', '.join(unknown)}"
    return {"evaluation.metrics": ",".join(dict.fromkeys(metrics))}


def _texts(entry: Entry | None) -> list[str]:
    if entry is None or entry.value is None:
        return []
    return [str(each) for each in (entry.value if isinstance(entry.value, list) else [entry.value])]
