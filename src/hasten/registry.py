"""The models by name, imported on first use; other packages add theirs by entry point.

A package registers a model as ``[project.entry-points."hasten.models"]  name = "module:Class"``;
the class is a subclass of :class:`hasten.models.interface.Model`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from hasten.errors import ConfigurationError, did_you_mean

if TYPE_CHECKING:
    from hasten.config import DataOptions
    from hasten.models.interface import Model

ENTRY_POINT_GROUP = "hasten.models"
_REQUIRED = ("name", "summary", "Options", "sample")


@dataclass(frozen=True)
class ModelEntry:
    """The location of a model's class, and a one-line summary."""

    name: str
    module: str
    attribute: str
    summary: str
    package: str = "hasten"

    def load(self) -> type[Model]:
        """The model's class. ConfigurationError if another package's class is not a model."""
        try:
            model = getattr(importlib.import_module(self.module), self.attribute)
        except (ImportError, AttributeError) as error:
            if self.package == "hasten":
                raise
            raise ConfigurationError(
                f"model {self.name!r} of package {self.package} cannot be imported from "
                f"{self.module}:{self.attribute}: {error}"
            ) from error
        if self.package != "hasten":
            self._check(model)
        return cast("type[Model]", model)

    def _check(self, model: Any) -> None:
        from hasten.models.interface import Model  # noqa: PLC0415 - imports torch

        source = f"model {self.name!r} of package {self.package}"
        if not (isinstance(model, type) and issubclass(model, Model)):
            raise ConfigurationError(f"{source} is not a subclass of hasten.models.interface.Model")
        missing = [name for name in _REQUIRED if not hasattr(model, name)]
        missing += sorted(model.__abstractmethods__)
        if missing:
            raise ConfigurationError(
                f"{source} lacks {', '.join(missing)}; see hasten.models.interface.Model"
            )


def _built_in(family: str, attribute: str, summary: str) -> ModelEntry:
    """The class of this name in ``hasten/models/FAMILY/``, in a file of the same name."""
    name = attribute.lower()
    return ModelEntry(name, f"hasten.models.{family}.{name}", attribute, summary)


BUILT_IN = (
    _built_in("sequential", "SASRec", "self-attention over item sequences"),
    _built_in("sequential", "TiSASRec", "self-attention with time intervals"),
    _built_in("collaborative", "KGAT", "graph attention with a knowledge graph"),
    _built_in("collaborative", "BPRMF", "matrix factorization by pairwise ranking"),
    _built_in("collaborative", "LightGCN", "graph convolution of embeddings"),
    _built_in("multimodal", "MMGCN", "a graph network per modality"),
    _built_in("multimodal", "DRAGON", "item features, user and item graphs"),
    _built_in("multimodal", "BM3", "item features, without negative samples"),
    _built_in("multimodal", "FREEDOM", "a frozen item graph, a denoised pair graph"),
    _built_in("knowledge_graph", "ConvE", "2-D convolutions over knowledge graphs"),
    _built_in("knowledge_graph", "DistMult", "bilinear, diagonal relations"),
    _built_in("knowledge_graph", "ComplEx", "bilinear, complex embeddings"),
    _built_in("knowledge_graph", "TuckER", "one core tensor for all relations"),
    _built_in("knowledge_graph", "RotatE", "rotations in the complex plane"),
    _built_in("typed_graph", "HGT", "heterogeneous graph transformer"),
    _built_in("typed_graph", "Degree", "baseline: node degrees"),
    _built_in("linear", "EASE", "linear autoencoder of items, in closed form"),
    _built_in("linear", "SLIM", "sparse linear weights between items"),
    _built_in("linear", "ItemKNN", "most similar items by cosine"),
    _built_in("linear", "GFCF", "graph filters of the interactions"),
    _built_in("collaborative", "Pop", "baseline: the most popular items"),
)


@cache
def _foreign_entries() -> tuple[ModelEntry, ...]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and seldom needed

    points = entry_points(group=ENTRY_POINT_GROUP)
    packages = [point.dist.name if point.dist else "unknown" for point in points]
    return tuple(
        ModelEntry(point.name, point.module, point.attr, f"from package {package}", package)
        for point, package in zip(points, packages, strict=True)
    )


def model_entries() -> tuple[ModelEntry, ...]:
    """All models, the built-in ones first."""
    return BUILT_IN + _foreign_entries()


def find_model(name: str) -> ModelEntry:
    """The model of this name. ConfigurationError if there is none, or more than one."""
    entries = [entry for entry in model_entries() if entry.name == name]
    if not entries:
        names = [entry.name for entry in model_entries()]
        raise ConfigurationError(
            f"unknown model {name!r} (there are {', '.join(names)}){did_you_mean(name, names)}"
        )
    if len(entries) > 1:
        packages = ", ".join(entry.package for entry in entries)
        raise ConfigurationError(
            f"model {name!r} is offered by several packages ({packages}): remove all but one"
        )
    return entries[0]


def load_model(name: str) -> type[Model]:
    """The class of the model of this name."""
    return find_model(name).load()


def data_options_of(model: type[Model]) -> type[DataOptions]:
    """The type of the ``data`` section that a model reads, from its attribute ``reads``.

    Raises ConfigurationError if the attribute is not one of :data:`hasten.config.data.READS`.
    """
    from hasten.config.data import READS  # noqa: PLC0415 - brings pydantic

    if model.reads not in READS:
        raise ConfigurationError(
            f"model {model.name!r}: reads = {model.reads!r}: must be one of {', '.join(READS)}"
        )
    return READS[model.reads]


def models_with_data_key(name: str) -> list[str]:
    """The built-in models that read a key of the ``data`` section, such as ``kg``."""
    return [entry.name for entry in BUILT_IN if name in data_options_of(entry.load()).model_fields]
