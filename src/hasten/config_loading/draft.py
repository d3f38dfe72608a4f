"""A configuration under construction: merge values of all sources, then validate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from hasten.config import AnyDataOptions, ModelOptions, RunConfig
from hasten.config_loading.keys import Key, nearest_key, nest
from hasten.config_loading.wording import problems
from hasten.config_loading.yaml_file import Entry
from hasten.errors import ConfigurationError
from hasten.registry import data_options_of, models_with_data_key

if TYPE_CHECKING:
    from hasten.models.interface import Model

Section = TypeVar("Section", bound=BaseModel)


class Draft:
    """Values by dotted key, merged in order of precedence, with the source of each.

    others: ``data`` keys of other models, which may only have their default values: configuration
    files of version 0.1.0 contain the keys of all models.
    """

    def __init__(self, keys: Mapping[str, Key], others: Mapping[str, Key] | None = None) -> None:
        self.keys = keys
        self.placed = {**(others or {}), **keys}
        self.values: dict[str, Any] = {}
        self.origins: dict[str, str] = {}
        self.wrong: list[str] = []
        #: keys whose value is the default of the model
        self.usual: set[str] = set()

    def put_defaults(self, entries: Iterable[Entry]) -> None:
        """Set the defaults of the model, which do not count as given."""
        for entry in entries:
            self.put(entry)
            self.usual.add(entry.key)

    def put(self, entry: Entry) -> None:
        """Set one value, overriding an earlier one; unknown keys are recorded as errors."""
        self.usual.discard(entry.key)
        parent, _, last = entry.key.rpartition(".")
        if entry.key in self.placed:
            self.values[entry.key] = self.placed[entry.key].fit(entry.value, entry.place)
            self.origins[entry.key] = entry.place
        elif parent in self.placed and self.placed[parent].mapping:
            so_far = self.values.get(parent)
            self.values[parent] = {
                **(so_far if isinstance(so_far, dict) else {}),
                last: entry.value,
            }
            self.origins[parent] = entry.place
        elif (inner := next((k for k in self.keys if k.startswith(f"{entry.key}.")), None)) is None:
            near = nearest_key(entry.key, self.keys)
            self.wrong.append(f"unknown key {entry.key!r} ({entry.place}){near}")
        elif entry.value is not None:
            self.wrong.append(
                f"{entry.key} ({entry.place}): is a section with keys of its own, such as {inner}"
            )

    def build(self, model: type[Model]) -> RunConfig:
        """Validate the configuration for this model. ConfigurationError lists all errors."""
        tree = nest({name: v for name, v in self.values.items() if name in self.keys})
        # a wrong option of the model must not hide other errors
        values = {**tree.pop("model", {}), "name": model.name}
        options = self._checked(model.Options, ("model",), values)
        kind = data_options_of(model)
        data = self._checked(kind, ("data",), tree.pop("data", {}))
        self._refuse_others(model.name)
        return self._finish(
            options or ModelOptions(name=model.name), {**tree, "data": data or kind()}
        )

    def build_beside(self, options: ModelOptions) -> RunConfig:
        """Validate the configuration with these options of a model, which are already checked."""
        tree = nest(self.values)
        data = self._checked(AnyDataOptions, ("data",), tree.pop("data", {}))
        return self._finish(options, {**tree, "data": data or AnyDataOptions()})

    def section(self, kind: type[Section], name: str) -> Section:
        """Validate one section alone."""
        section = self._checked(kind, (name,), nest(self.values).get(name, {}))
        self._refuse()
        assert section is not None
        return section

    def _finish(self, options: BaseModel, tree: dict[str, Any]) -> RunConfig:
        config = self._checked(RunConfig, (), {**tree, "model": options})
        if config is not None:
            self._check_metrics(config.evaluation.metrics)
        self._refuse()
        assert config is not None
        for key in self.usual:
            section, _, name = key.rpartition(".")
            getattr(config, section).model_fields_set.discard(name)
        return config

    def _refuse_others(self, model: str) -> None:
        """Record an error for every ``data`` key of other models that is not its default."""
        for name in [name for name in self.values if name not in self.keys]:
            key = name.removeprefix("data.")
            try:
                section = AnyDataOptions.model_validate({key: self.values[name]})
            except ValidationError:
                section = None
            if section is None or section != AnyDataOptions():
                models = ", ".join(models_with_data_key(key))
                self.wrong.append(
                    f"{name} ({self.origins[name]}): has no effect on {model}; it is for {models}"
                )

    def _check_metrics(self, metrics: tuple[str, ...]) -> None:
        from hasten.evaluation.metrics import parse_metric  # noqa: PLC0415 - brings numpy

        where = self.origins.get("evaluation.metrics", "default")
        if not metrics:
            self.wrong.append(f"evaluation.metrics ({where}): name at least one")
        for name in metrics:
            try:
                parse_metric(name)
            except ConfigurationError as error:
                self.wrong.append(f"evaluation.metrics ({where}): {error}")

    def _checked(
        self, kind: type[Section], at: tuple[str, ...], tree: dict[str, Any]
    ) -> Section | None:
        try:
            return kind.model_validate(tree)
        except ValidationError as error:
            self.wrong += problems(error, at, self.origins, self.keys)
            return None

    def _refuse(self) -> None:
        if len(self.wrong) == 1:
            raise ConfigurationError(self.wrong[0])
        if self.wrong:
            lines = "\n".join(f"  {line}" for line in self.wrong)
            raise ConfigurationError(f"{len(self.wrong)} errors in the configuration:\n{lines}")
