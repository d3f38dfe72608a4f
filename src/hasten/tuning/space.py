"""What is searched: the model's options or those named, and one choice among them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hasten.config import OnlyWith, RunConfig
from hasten.config_loading.build import EVERYDAY
from hasten.config_loading.keys import known_keys, nearest_key
from hasten.errors import UsageError
from hasten.models.interface import Model
from hasten.models.search_space import Choice, Range, SearchSpace
from hasten.registry import data_options_of

if TYPE_CHECKING:
    import optuna

#: a range whose ends differ by this factor is searched in the logarithm
_LOG_FROM = 10
#: options of training that decide how long a run is, not what it does
_LENGTH = ("training.epochs", "training.max_time", "training.patience")


def search_space(
    model: type[Model], fixed: Collection[str], search: Mapping[str, Any]
) -> SearchSpace:
    """The options to search, with their values.

    search: key -> text such as ``1e-4..1e-2`` or ``32,64``, a sequence of values, or a
    :class:`Range`; they replace those of the model. fixed: keys that were given otherwise.
    Raises UsageError.
    """
    if not search:
        space = {key: values for key, values in model.search.items() if key not in fixed}
        if not space:
            why = "all of its options are given" if model.search else "it declares no options"
            raise UsageError(
                f"{model.name}: nothing to search: {why}; name options, such as "
                "--search training.lr=1e-4..1e-2"
            )
        return space
    keys = known_keys(model.Options, data_options_of(model))
    by_key = {EVERYDAY.get(key, key): value for key, value in search.items()}
    for key in by_key:
        if key not in keys:
            raise UsageError(f"--search {key}: unknown key{nearest_key(key, keys)}")
        if not key.startswith(("model.", "training.")) or key in (*_LENGTH, "model.name"):
            raise UsageError(
                f"--search {key}: cannot be searched; only options of the model and of training "
                "can, and not the length of a run"
            )
        if key in fixed:
            raise UsageError(f"--search {key}: is given a value too; leave one of the two out")
    return {key: _parse(key, value) for key, value in by_key.items()}


def _parse(key: str, given: Any) -> Range | Choice:
    if isinstance(given, Range | Choice):
        return given
    if isinstance(given, str) and (ends := re.fullmatch(r"\s*(\S+?)\s*\.\.\s*(\S+?)\s*", given)):
        low, high = (_scalar(end) for end in ends.groups())
        if isinstance(low, str) or isinstance(high, str) or not low < high:
            raise UsageError(f"--search {key}={given}: expected two numbers, the smaller first")
        return Range(low, high, log=low > 0 and high >= _LOG_FROM * low)
    words = [word.strip() for word in given.split(",")] if isinstance(given, str) else list(given)
    values = [_scalar(word) if isinstance(word, str) else word for word in words]
    if len(values) < 2 or "" in values:
        raise UsageError(
            f"--search {key}={given}: expected a range (1e-4..1e-2) or values (32,64,128)"
        )
    return Choice(*values)


def _scalar(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def suggest(trial: optuna.Trial, space: SearchSpace, base: RunConfig) -> dict[str, Any]:
    """One value for every option that has an effect together with those before it."""
    chosen: dict[str, Any] = {}
    for key, values in space.items():
        if not _has_effect(key, base, chosen):
            continue
        if isinstance(values, Choice):
            chosen[key] = trial.suggest_categorical(key, values.values)
        elif isinstance(values.low, int) and isinstance(values.high, int):
            chosen[key] = trial.suggest_int(key, values.low, values.high, log=values.log)
        else:
            chosen[key] = trial.suggest_float(key, values.low, values.high, log=values.log)
    return chosen


def with_defaults(chosen: Mapping[str, Any], base: RunConfig) -> dict[str, Any]:
    """The choice, and the defaults of options that have no effect any more because of it."""
    reset = {
        key: field_default
        for key, field_default, _ in _conditional(base)
        if key not in chosen and not _has_effect(key, base, chosen)
    }
    return {**reset, **chosen}


def _has_effect(key: str, base: RunConfig, chosen: Mapping[str, Any]) -> bool:
    condition = next((only for name, _, only in _conditional(base) if name == key), None)
    if condition is None:
        return True
    section = key.partition(".")[0]
    default = getattr(getattr(base, section), condition.option)
    return condition.holds(chosen.get(f"{section}.{condition.option}", default))


def _conditional(config: RunConfig) -> Iterator[tuple[str, Any, OnlyWith]]:
    """Options that have an effect only with another one: key, default, condition."""
    for section in ("model", "training"):
        options: BaseModel = getattr(config, section)
        for name, field in type(options).model_fields.items():
            for mark in field.metadata:
                if isinstance(mark, OnlyWith):
                    yield f"{section}.{name}", field.get_default(), mark
