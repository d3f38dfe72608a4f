"""Protocols of other libraries in a configuration (``evaluation.like``, ``--like``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hasten.config import RunConfig
from hasten.config_loading.yaml_file import Entry
from hasten.errors import ConfigurationError
from hasten.evaluation.other_libraries import FREE, PEERS, peer_settings
from hasten.registry import load_model

if TYPE_CHECKING:
    from hasten.models.interface import Model


def peer_entries(name: Any, model: type[Model]) -> list[Entry]:
    """The values of a protocol for a new run; none for an unknown name, which is refused later."""
    if not isinstance(name, str) or name not in PEERS:
        return []
    settings = peer_settings(name, model.name, model.reads)
    return [Entry(key, value, f"evaluation.like {name}") for key, value in settings.items()]


def with_peer(config: RunConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of the evaluation of a run, with those that a protocol among them makes."""
    name = changes.get("evaluation.like")
    if name is None:
        return dict(changes)
    settings = _settings(config, name)
    return {k: v for k, v in settings.items() if k.startswith("evaluation.")} | dict(changes)


def refuse_contradiction(config: RunConfig, origins: Mapping[str, str] | None = None) -> None:
    """Raise ConfigurationError if an option contradicts the protocol that the run follows."""
    name = config.evaluation.like
    if name is None:
        return
    for key, value in _settings(config, name).items():
        section, _, option = key.partition(".")
        configured = getattr(config.evaluation, option, None)
        if section == "evaluation" and option not in FREE and configured != value:
            place = (origins or {}).get(key)
            where = f" ({place})" if place else ""
            raise ConfigurationError(
                f"{key}={configured}{where} contradicts evaluation.like {name}, which sets "
                f"{value}: leave one of the two out (evaluation.like=none follows no other library)"
            )


def peer_notice(config: RunConfig, before: RunConfig | None = None) -> str:
    """What the protocol of a configuration sets, for people. before: only what differs from it."""
    name = config.evaluation.like
    assert name is not None
    texts = []
    for key in _settings(config, name):
        section, _, option = key.partition(".")
        value = getattr(getattr(config, section), option)
        if before is not None and value == getattr(getattr(before, section), option):
            continue
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()
        texts.append(f"{key}={shown}")
    return f"like {name}: {' '.join(texts) or 'the protocol of the run already'}"


def _settings(config: RunConfig, name: str) -> dict[str, Any]:
    model = load_model(config.model.name)
    return peer_settings(name, model.name, model.reads)
