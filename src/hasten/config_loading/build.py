"""Merge files and flags into one validated configuration.

Precedence: defaults < the model's defaults (those that follow from the size of the data are chosen
later, see :mod:`.data_defaults`) < the recipe < ``evaluation.like`` < the YAML file <
``--set key.path=value`` < flags. All unknown keys and wrong values are reported together, each with
where it was given and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.config import AnyDataOptions, EvaluationOptions, ModelOptions, RunConfig
from hasten.config_loading.draft import Draft
from hasten.config_loading.effects import refuse_without_effect
from hasten.config_loading.keys import known_keys
from hasten.config_loading.other_libraries import peer_entries, refuse_contradiction
from hasten.config_loading.yaml_file import Entry, Quoted, read_entries
from hasten.errors import ConfigurationError
from hasten.recipes.load import find_recipe
from hasten.registry import data_options_of, load_model

if TYPE_CHECKING:
    from hasten.models.interface import Model

#: flags of the command line, without their dashes, and their keys
EVERYDAY = {
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "lr": "training.lr",
    "precision": "training.precision",
    "accumulate": "training.accumulate",
    "clip_norm": "training.clip_norm",
    "warmup_steps": "training.warmup_steps",
    "compile": "training.compile",
    "recompute": "training.recompute",
    "patience": "training.patience",
    "max_time": "training.max_time",
    "deterministic": "training.deterministic",
    "eval_every": "evaluation.every",
    "like": "evaluation.like",
    "format": "data.format",
    "backend": "distributed.backend",
    "master_port": "distributed.master_port",
    "lr_scaling": "training.lr_scaling",
}
_FLAGS = {key: flag for flag, key in EVERYDAY.items()} | {"evaluation.metrics": "metrics"}
_WITHOUT_K = frozenset({"mrr", "mr", "amri", "auroc", "ap"})
_MAPPINGS = frozenset(name for name, key in known_keys(None).items() if key.mapping)


def build_config(
    model: str | None = None,
    data: str | None = None,
    config_file: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The configuration of a new run.

    sets: texts ``key.path=value``. flags: flag names (``epochs``) or dotted keys, only those that
    were given; ``metrics`` and ``topk`` combine. Raises ConfigurationError, also for options that
    have no effect on the model.
    """
    draft, chosen = _draft(model, data, config_file, sets, flags or {})
    config = draft.build(chosen)
    refuse_without_effect(config, origins=draft.origins)
    refuse_contradiction(config, draft.origins)
    return config


def _draft(
    model: str | None,
    data: str | None,
    config_file: Path | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
    *,
    recipes: bool = True,
) -> tuple[Draft, type[Model]]:
    """All values that were given, by precedence, and the model that they name.

    recipes: take the values of the recipe and of ``evaluation.like``; False: they are given
    already.
    """
    from_file = read_entries(config_file, _MAPPINGS) if config_file else []
    entries = [*from_file, *set_entries(sets)]
    chosen, entries = _choose_model(model, entries)
    draft = Draft(known_keys(chosen.Options, data_options_of(chosen)), known_keys(None))
    draft.put_defaults(
        Entry(name if "." in name else f"training.{name}", value, f"default of {chosen.name}")
        for name, value in chosen.defaults.items()
    )
    explicit = [*entries, *([Entry("data.path", Quoted(data), "DATA")] if data is not None else [])]
    values = {entry.key: entry.value for entry in explicit}
    repeated = values.get("recipe")
    values |= flags
    recipe = _recipe_entries(chosen.name, values) if recipes else []
    like = values.get("like", values.get("evaluation.like")) if recipes else None
    for entry in [*recipe, *peer_entries(like, chosen), *explicit]:
        draft.put(entry)
    last = flag_entries(flags, draft.values.get("evaluation.metrics"))
    for entry in last:
        draft.put(entry)
    if recipe:
        complete = recipe[-1]
        places = {entry.place for entry in recipe[:-1]}
        overridden = bool(places) and places.isdisjoint(draft.origins.values())
        if "recipe" in flags and overridden and repeated != complete.value:
            raise ConfigurationError(
                f"--recipe {flags['recipe']} has no effect: all its settings are given otherwise; "
                "leave one of the two out"
            )
        draft.put(complete)
    _refuse_two_batch_sizes(from_file)
    _refuse_two_batch_sizes([*set_entries(sets), *last])
    return draft, chosen


def _recipe_entries(model: str, given: Mapping[str, Any]) -> list[Entry]:
    """The values of the recipe that is asked for, last its complete name; none where none is."""
    if given.get("recipe") in (None, "none", "null"):
        return []
    if str(given["recipe"]).endswith((".yaml", ".yml")):
        return _recipe_file(model, Path(given["recipe"]))
    recipe = find_recipe(model, str(given["recipe"]), given.get("data.path"))
    place = f"recipe {recipe.key}"
    values = [Entry(key, value, place) for key, value in recipe.configuration.items()]
    return [*values, Entry("recipe", recipe.key, place)]


def _recipe_file(model: str, file: Path) -> list[Entry]:
    """The values of a file of settings. The run keeps them, not the name of the file."""
    not_settings = ("model", "model.name", "recipe", "out")
    entries = read_entries(file, _MAPPINGS)
    name = next(
        (str(e.value) for e in entries if e.key in not_settings[:2] and e.value is not None), model
    )
    if name != model:
        raise ConfigurationError(f"--recipe {file}: its settings are those of {name}, not {model}")
    settings = [entry for entry in entries if entry.key not in not_settings]
    return [*settings, Entry("recipe", None, f"recipe {file}")]


def _refuse_two_batch_sizes(entries: Sequence[Entry]) -> None:
    """Refuse a global batch size together with one per process."""
    names = ("training.batch_size_per_device", "training.batch_size")
    batch_sizes = {
        e.key: e for e in entries if e.key in names and e.value not in (None, "null", "none")
    }
    if len(batch_sizes) == 2:
        each, whole = (batch_sizes[name] for name in names)
        raise ConfigurationError(
            f"{each.key} ({each.place}) and {whole.key} ({whole.place}) are alternatives: give one"
        )


def load_config(file: Path) -> RunConfig:
    """The configuration saved in a run folder; options that only older versions accepted stay."""
    draft, chosen = _draft(None, None, file, (), {}, recipes=False)
    return draft.build(chosen)


def data_options(
    path: str | None = None, format: str | None = None, sets: Sequence[str] = ()
) -> AnyDataOptions:
    """The ``data`` section alone, for commands that read data without training."""
    draft = Draft({name: key for name, key in known_keys(None).items() if name.startswith("data.")})
    for entry in set_entries(sets):
        draft.put(entry)
    for name, value in (("path", path), ("format", format)):
        if value is not None:
            draft.put(Entry(f"data.{name}", Quoted(value), name.upper()))
    return draft.section(AnyDataOptions, "data")


def parse_changes(
    sets: Sequence[str], flags: Mapping[str, Any], configured_metrics: Sequence[str] | None = None
) -> dict[str, Any]:
    """Parse and check changes of dotted keys for an existing run.

    The run decides which of them may change. configured_metrics: those of the run, to which
    ``topk`` alone applies.
    """
    draft = Draft(known_keys(None))
    changes = set_entries(sets)
    model = [entry for entry in changes if entry.key.split(".")[0] == "model"]
    for entry in changes:
        if entry not in model:
            draft.put(entry)
    metrics = draft.values.get("evaluation.metrics", configured_metrics)
    for entry in flag_entries(flags, metrics):
        draft.put(entry)
    # checked with any model: the run refuses the keys of its own model
    checked = draft.build_beside(ModelOptions(name="any"))
    return {
        **{entry.key: entry.value for entry in model},
        **{name: attrgetter(name)(checked) for name in draft.values},
    }


def set_entries(sets: Sequence[str]) -> list[Entry]:
    """``key.path=value`` texts as entries."""
    entries = []
    for text in sets:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise ConfigurationError(f"--set {text}: expected key.path=value")
        entries.append(Entry(key.strip(), value, f"--set {text}"))
    return entries


def as_option(key: str) -> str:
    """How the command line sets a key: ``--lr``, ``--set model.width=...``."""
    flag = _FLAGS.get(key, "" if "." in key else key)
    return f"--{flag.replace('_', '-')}" if flag else f"--set {key}=..."


def flag_entries(flags: Mapping[str, Any], configured: Any) -> list[Entry]:
    """Flags as entries; ``metrics`` and ``topk`` become ``evaluation.metrics``."""
    entries = []
    for name, value in flags.items():
        if name not in ("metrics", "topk"):
            key = EVERYDAY.get(name, name)
            entries.append(Entry(key, value, f"--{name.replace('_', '-')}"))
    if "metrics" in flags or "topk" in flags:
        place = " ".join(f"--{name}" for name in ("metrics", "topk") if name in flags)
        metrics = combine_metrics(flags.get("metrics"), flags.get("topk"), configured)
        entries.append(Entry("evaluation.metrics", metrics, place))
    return entries


def combine_metrics(metrics: Any, topk: Any, configured: Any = None) -> tuple[str, ...]:
    """``ndcg,hr`` at ``10,20`` as ndcg@10, ndcg@20, hr@10, hr@20.

    If one is missing, it comes from the configured metrics. ``mrr`` and others without a cut-off
    stay as they are, and a metric with its own cut-off (``recall@50``) keeps it.
    """
    known = tuple(_texts(configured)) or EvaluationOptions().metrics
    cuts = [_cut(text) for text in _texts(topk)]
    without = _WITHOUT_K
    if topk is not None and not cuts:
        raise ConfigurationError("--topk is empty: expected numbers such as 10,20")
    if metrics is None:
        names = list(dict.fromkeys(name.partition("@")[0] for name in known))
        without -= {name.partition("@")[0] for name in known if "@" in name}  # mrr@10
    else:
        names = [name.lower() for name in _texts(metrics)]
    if not names:
        raise ConfigurationError("--metrics is empty: expected names such as ndcg,hr")
    cuts = cuts or list(dict.fromkeys(int(n.partition("@")[2]) for n in known if "@" in n)) or [10]
    combined: list[str] = []
    for name in names:
        whole = "@" in name or name in without
        combined += [name] if whole else [f"{name}@{cut}" for cut in cuts]
    return tuple(dict.fromkeys(combined))


def _texts(value: Any) -> list[str]:
    if value is None:
        return []
    items: Iterable[Any] = value if isinstance(value, tuple | list) else str(value).split(",")
    return [text for item in items if (text := str(item).strip())]


def _cut(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise ConfigurationError(f"--topk {text}: expected whole numbers from 1, such as 10,20")
    return int(text)


def _choose_model(model: str | None, entries: list[Entry]) -> tuple[type[Model], list[Entry]]:
    """The model that all sources name, and the entries other than the model's name."""
    name, where = model, "MODEL"
    other_entries = []
    for entry in entries:
        if entry.key not in ("model", "model.name"):
            other_entries.append(entry)
            continue
        if not isinstance(entry.value, str):
            raise ConfigurationError(f"{entry.key} ({entry.place}): expected a model's name")
        entry_name = str(entry.value).strip()
        if name is not None and entry_name != name:
            raise ConfigurationError(
                f"two models: {name} ({where}) and {entry_name} ({entry.place}); name one"
            )
        name, where = entry_name, entry.place
    if name is None:
        raise ConfigurationError("no model is named: give MODEL, or model.name in --config FILE")
    return load_model(name), other_entries
