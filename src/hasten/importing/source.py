"""Descriptions of other libraries' architectures, and recognition by the names of their weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hasten.data.tables import AnyDataset
from hasten.errors import CheckpointError
from hasten.importing.rows import Table
from hasten.models.interface import Model

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Source:
    """How weights of one architecture become those of a model here.

    names: patterns of the names of its tensors; each tensor has one of them, and each occurs.
    settings: the configuration that follows from the shapes, by dotted key; asks: keys that change
    scores and do not follow. tables: the vocabularies. convert: from the weights and the rows of
    the data to the model's own weights, ``state_dict`` names. finish: what the model takes over
    besides. inexact: why scores differ for these data, or None. refusal: why it cannot be imported.
    """

    title: str
    model: str
    names: Sequence[str]
    settings: Callable[[Weights], dict[str, Any]] = lambda _: {}
    asks: Mapping[str, str] = field(default_factory=dict)
    tables: Callable[[Weights], list[Table]] = lambda _: []
    convert: Callable[[Weights, Mapping[str, Tensor], Model, AnyDataset], dict[str, Tensor]] = (
        lambda *_: {}
    )
    finish: Callable[[Weights, Mapping[str, Tensor], Model], None] = lambda *_: None
    inexact: Callable[[Weights, Mapping[str, Tensor], AnyDataset, Model], str | None] = lambda *_: (
        None
    )
    refusal: str | None = None

    def unmatched(self, names: Sequence[str]) -> list[str]:
        """The patterns that no tensor has, and the tensors that no pattern has."""
        patterns = [re.compile(each) for each in self.names]
        absent = [each.pattern for each in patterns if not any(map(each.fullmatch, names))]
        return absent + [name for name in names if not any(p.fullmatch(name) for p in patterns)]


def find_source(sources: Sequence[Source], model: str, weights: Weights) -> Source:
    """The source whose names the weights have. Raises CheckpointError if there is none."""
    of_model = [source for source in sources if source.model == model]
    if not of_model:
        known = ", ".join(sorted({source.model for source in sources}))
        raise CheckpointError(f"no weights can be imported as {model}: there are {known}")
    names = list(weights)
    lacking = {source.title: source.unmatched(names) for source in of_model}
    for source in of_model:
        if not lacking[source.title]:
            if source.refusal is not None:
                raise CheckpointError(f"{source.title}: {source.refusal}")
            return source
    nearest = min(lacking, key=lambda title: len(lacking[title]))
    differences = ", ".join(lacking[nearest][:6])
    raise CheckpointError(
        f"the names of the tensors are those of no {model} that can be imported "
        f"({'; '.join(lacking)}). The nearest is {nearest}, which differs in: {differences}"
    )


def count_blocks(weights: Weights, pattern: str) -> int:
    """The number of blocks: one more than the largest number that the pattern's group finds."""
    matches = [re.match(pattern, name) for name in weights]
    return 1 + max(int(match[1]) for match in matches if match)


@torch.no_grad()
def load_into(model: Model, converted: Mapping[str, Tensor]) -> None:
    """Load converted weights. Raises CheckpointError if their shapes are not the model's."""
    try:
        model.load_state_dict({k: v.to(torch.float32) for k, v in converted.items()})
    except RuntimeError as error:
        raise CheckpointError(
            f"the weights do not have the shapes of model.{model.options.name} with this "
            f"configuration: {error}"
        ) from error
