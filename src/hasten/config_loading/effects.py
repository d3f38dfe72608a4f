"""Refuse options that have no effect on the chosen model, with the reason.

A value that repeats the default is accepted: a saved configuration has every key.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from hasten.config import EvaluationOptions, OnlyWith, RunConfig, TripleOptions
from hasten.errors import ConfigurationError
from hasten.models.supports import Supports
from hasten.registry import data_options_of, load_model

if TYPE_CHECKING:
    from hasten.models.interface import Model

#: keys of ``training`` and ``evaluation`` that affect a model without gradient steps
_FOR_ANY = frozenset(
    {"training.deterministic"}
    | {f"evaluation.{name}" for name in EvaluationOptions.model_fields if name != "every"}
)
_OF_USERS = frozenset(
    f"evaluation.{name}" for name in ("candidates", "mask_history", "seen_targets", "users")
)
_OF_TRIPLES = frozenset({"evaluation.filter_test", "evaluation.triples"})


def refuse_without_effect(
    config: RunConfig,
    changed: Collection[str] | None = None,
    origins: Mapping[str, str] | None = None,
) -> None:
    """Raise ConfigurationError if an option has no effect on the model.

    changed: check only these keys (of an existing run); None: every key that differs from the
    model's default. origins: where each key was given, for the message.
    """
    refused = without_effect(config)
    if changed is not None:
        refused = {key: reason for key, reason in refused.items() if key in changed}
    places = {key: f" ({place})" for key, place in (origins or {}).items()}
    lines = [f"{key}{places.get(key, '')} has no effect: {why}" for key, why in refused.items()]
    if len(lines) == 1:
        raise ConfigurationError(f"{lines[0]}; leave it out")
    if lines:
        listed = "\n".join(f"  {line}" for line in lines)
        raise ConfigurationError(f"{len(lines)} options have no effect; leave them out:\n{listed}")


def without_effect(config: RunConfig) -> dict[str, str]:
    """The options that differ from the model's defaults and have no effect: key -> reason."""
    model = load_model(config.model.name)
    reasons = {}
    for key, value, default, only_with in _options(config, model):
        if value != default:
            reason = _unsupported(key, model) or _condition(config, key, only_with)
            if reason is not None:
                reasons[key] = reason
    return reasons


def _unsupported(key: str, model: type[Model]) -> str | None:
    """Why a model never reads this option; None if it may."""
    supports, section = Supports.of(model), key.partition(".")[0]
    of_steps = section in ("training", "evaluation", "checkpoint", "init_from")
    if of_steps and key not in _FOR_ANY and not supports.gradient_steps:
        return f"{model.name} is fitted in one pass, without gradient steps"
    if key == "training.recompute" and not supports.recompute:
        return f"{model.name} has no activation checkpointing"
    products = ("training.precision", "training.emulate_fp16", "training.matmul")
    if key in products and not supports.precision:
        return f"{model.name} has no matrix products that a lower precision would speed up"
    if key == "training.compile" and not supports.compile:
        return f"{model.name} has nothing to compile"
    if key == "training.shard_tables" and not supports.shard_tables:
        return f"{model.name} cannot train on tables that are sharded over processes"
    return _of_other_task(key, model)


def _of_other_task(key: str, model: type[Model]) -> str | None:
    """Why an option of the evaluation is not for what the model ranks; None if it may be."""
    triples = issubclass(data_options_of(model), TripleOptions)
    if key in _OF_USERS and triples:
        return (
            f"{model.name} ranks all entities of a knowledge graph except known answers, and this "
            "option is for users and items"
        )
    if key in _OF_TRIPLES and not triples:
        return f"{model.name} ranks items for users, and this option is for knowledge graphs"
    return None


def _condition(config: RunConfig, key: str, only_with: OnlyWith | None) -> str | None:
    """Why an option has no effect together with the other options; None if it has one."""
    if only_with is None:
        return None
    section = key.rpartition(".")[0]
    value = getattr(getattr(config, section), only_with.option)
    if only_with.holds(value):
        return None
    return f"it needs {section}.{only_with}, which is {'none' if value is None else value}"


def _options(
    config: RunConfig, model: type[Model]
) -> Iterator[tuple[str, Any, Any, OnlyWith | None]]:
    """Every option: its key, value, default for the model, and condition."""
    defaults = {
        name if "." in name else f"training.{name}": v for name, v in model.defaults.items()
    }
    for name, info in RunConfig.model_fields.items():
        section = getattr(config, name)
        if not isinstance(section, BaseModel):
            yield name, section, info.default, None
            continue
        model_defaults = {
            k.partition(".")[2]: v for k, v in defaults.items() if k.startswith(f"{name}.")
        }
        # defaults as they are after validation: a list is a tuple, "5 evaluations" a Patience
        kind = type(section)
        section_defaults = kind.model_validate(model_defaults) if name != "model" else None
        for key, field in kind.model_fields.items():
            only_with = next((m for m in field.metadata if isinstance(m, OnlyWith)), None)
            default = (
                field.get_default() if section_defaults is None else getattr(section_defaults, key)
            )
            yield f"{name}.{key}", getattr(section, key), default, only_with
