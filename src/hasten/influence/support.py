"""Which models can be traced, and how far."""

from __future__ import annotations

from torch import nn

from hasten.errors import UsageError
from hasten.influence.bilinear import ComplExBody, DistMultBody
from hasten.influence.body import Body
from hasten.influence.convolution import ConvEBody
from hasten.influence.factors import Arithmetic, Layers, Loss
from hasten.models.knowledge_graph.complex import ComplEx
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.knowledge_graph.distmult import DistMult
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec


def body_of(model: nn.Module, arithmetic: Arithmetic) -> Body | None:
    """The way back through a model of triples; None for other models."""
    if isinstance(model, ConvE):
        return ConvEBody(model, arithmetic)
    if isinstance(model, DistMult):
        return DistMultBody(model)
    if isinstance(model, ComplEx):
        return ComplExBody(model)
    return None


def require_traceable(model: nn.Module, name: str, loss: Loss, layers: Layers) -> None:
    """Refuse what has no exact form here. Raises UsageError."""
    sequential = isinstance(model, SASRec | TiSASRec)
    if not sequential and body_of(model, Arithmetic()) is None:
        raise UsageError(
            f"{name} cannot be traced: hasten influence works on conve, distmult and complex, and "
            "with --layers last on sasrec and tisasrec"
        )
    if sequential and layers == "all":
        raise UsageError(
            f"--layers all: the layers of {name} before the last mix the events of a user, so that "
            "their gradients have no closed form for single events; give --layers last"
        )
    trained = model.options.loss  # type: ignore[union-attr]
    if loss == "training" and trained in ("sampled", "bce", "gbce"):
        raise UsageError(
            f"--loss training: {name} was trained by model.loss={trained}, whose negatives are "
            "drawn anew each epoch, so that an example has no one loss; give --loss positive"
        )
