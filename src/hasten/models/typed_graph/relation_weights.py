"""Weights of relations in the score of links, and a loss that predicts relations.

With the vectors z of a link's ends and the weights w, ``relation_loss`` is the cross-entropy of
``sum of z_h · w_r · z_t / sqrt(D)`` over all relations r (Chen et al. 2021, "Relation prediction as
an auxiliary training objective"). Unlike the score of a link it has no bias of the relation.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hasten.models.typed_graph.hgt_options import HGTOptions
from hasten.ops.dense.dropout import dropout
from hasten.ops.losses.catalog_loss import catalog_cross_entropy
from hasten.ops.losses.catalog_targets import CatalogTargets


def relation_weights(options: HGTOptions, relations: int) -> nn.Parameter | None:
    """[R, width] initial weights; None: the decoder has none."""
    if options.decoder != "distmult":
        return None
    weights = torch.ones(relations, options.width)
    if options.relation_weights == "normal":
        weights += torch.randn_like(weights)
    return nn.Parameter(weights)


def relation_loss(
    ends: Tensor, weights: Tensor, relations: CatalogTargets, rate: float, training: bool
) -> Tensor:
    """The sum over L links. ends: [2L, D], heads first; rate: of dropout of ``z_h · z_t``."""
    head, tail = ends.chunk(2)
    products = dropout(head * tail, rate, training) * float(weights.shape[1]) ** -0.5
    return catalog_cross_entropy(products, [weights], relations)
