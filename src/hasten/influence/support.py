"""Choose between factored gradients and autograd, by model and options."""

from __future__ import annotations

from dataclasses import dataclass

from hasten.errors import UsageError
from hasten.influence.convolution import ConvEEncoder
from hasten.influence.encoders import BilinearEncoder
from hasten.influence.factors import Arithmetic, Layers, Loss
from hasten.models.interface import ExampleLosses, Model
from hasten.models.knowledge_graph.bilinear import BilinearModel
from hasten.models.knowledge_graph.conve import ConvE
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec


@dataclass(frozen=True)
class Method:
    """factored: whether gradients are factored; loss and layers: what is differentiated."""

    factored: bool
    loss: Loss
    layers: Layers


def encoder_of(model: Model, arithmetic: Arithmetic) -> BilinearEncoder | ConvEEncoder | None:
    """The backward pass through the encoder of a knowledge-graph model; None for other models."""
    if isinstance(model, ConvE):
        return ConvEEncoder(model, arithmetic)
    return BilinearEncoder(model) if isinstance(model, BilinearModel) else None


def choose_method(
    model: Model, name: str, loss: Loss | None, layers: Layers | None, approximate: str | None
) -> Method:
    """The fastest exact method for this model. Raises UsageError if there is none.

    loss, layers: None for the model's default. approximate: the option that needs factors, if one
    is given.
    """
    sequential = isinstance(model, SASRec | TiSASRec)
    if sequential and model.sizes.item_values:
        raise UsageError(
            f"{name} with data.item_features does not support influence: items share the weights "
            "of their features, so gradients of the item table have no factors"
        )
    if sequential and model.sizes.event_values:
        raise UsageError(
            f"{name} with data.event_features does not support influence: its queries "
            "and examples are pairs of users and items, without features"
        )
    if isinstance(model, SASRec | TiSASRec | ConvE | BilinearModel):
        if sequential and layers == "all":
            raise UsageError(
                f"--layers all: the layers of {name} before the last mix the interactions of a "
                "user, so their gradients have no factors; give --layers last"
            )
        if layers not in (None, "all", "last") and not isinstance(model, ConvE):
            raise UsageError(
                f"--layers {layers[-1]}: {name} has no layers between its embeddings and its "
                "output, only conve has; give --layers last"
            )
        trained = model.options.loss
        if loss == "training" and trained in ("sampled", "bce", "gbce", "sampled-softmax"):
            raise UsageError(
                f"--loss training: {name} was trained with model.loss={trained}, whose negatives "
                "change every epoch, so an example has no single loss; give --loss positive"
            )
        if (
            isinstance(model, SASRec | TiSASRec)
            or loss != "training"
            or model.has_factored_gradients
        ):
            return Method(True, loss or "positive", layers or ("last" if sequential else "all"))
    if not isinstance(model, ExampleLosses):
        raise UsageError(
            f"{name} does not support influence: conve, distmult, complex, sasrec and tisasrec do, "
            "and models with a method example_losses"
        )
    if loss == "positive":
        raise UsageError(
            f"--loss positive: {name} only defines the loss that it is trained with; give "
            "--loss training"
        )
    if layers not in (None, "all"):
        raise UsageError(f"--layers last: {name} has no factored output layer; give --layers all")
    if approximate is not None:
        raise UsageError(f"{approximate} needs factored gradients, and those of {name} are not")
    return Method(False, "training", "all")
