"""TracIn by its definition: a gradient for every example by automatic differentiation.

Losses are written out over all scores, models by torch's own layers.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from hasten.models.knowledge_graph.complex import ComplEx
from hasten.models.knowledge_graph.conve import ConvE


def vector(model: nn.Module, heads: torch.Tensor, relation: int) -> torch.Tensor:
    """[D] of one question; heads: the table that its entity is read from, and the entity."""
    r = model.relations.weight[relation]
    if isinstance(model, ConvE):
        shape = (1, 1, model.height, model.columns)
        kernel = model.options.kernel

        def norm(x, moments, gain=None, shift=None):
            return F.batch_norm(x, moments.mean, moments.variance, gain, shift, training=False)

        x = norm(torch.cat([heads.view(shape), r.view(shape)], dim=2), model.image_moments)
        x = F.conv2d(x, model.filters.view(-1, 1, kernel, kernel))
        x = torch.relu(norm(x, model.feature_moments, model.feature_gain, model.feature_shift))
        x = model.hidden(x.flatten(1))
        return torch.relu(norm(x, model.hidden_moments, model.hidden_gain, model.hidden_shift))[0]
    if isinstance(model, ComplEx):
        h = torch.complex(*heads.chunk(2))
        product = h * torch.complex(*r.chunk(2))
        return torch.cat([product.real, product.imag])
    return heads * r


def question_loss(model, entity, relation, target, answers, loss, layers) -> torch.Tensor:
    """The loss of one question; answers: all its true ones. In the data's order of arguments."""
    table = model.entities.weight
    heads = table[entity] if layers == "all" else table[entity].detach()
    x = vector(model, heads, relation)
    if layers == "last":
        x = x.detach()
    scores = table @ x + model.bias
    smoothing = model.options.smoothing
    if loss == "training" and model.options.loss in ("1vsall", "1-n-softmax"):
        wanted = torch.tensor([target])
        return F.cross_entropy(scores[None], wanted, label_smoothing=smoothing)
    if model.options.loss != "1-n":
        smoothing = 0.0
    labels = torch.zeros_like(scores)
    labels[sorted(answers)] = 1.0
    labels = (1 - smoothing) * labels + smoothing / len(scores)
    cells = F.binary_cross_entropy_with_logits(scores, labels, reduction="none")
    return cells.sum() if loss == "training" else cells[target]


def triple_loss(model, triple, known, loss, layers) -> torch.Tensor:
    """Both questions of a triple; known: the training triples, and the triple itself."""
    h, r, t = triple
    count = model.relations.weight.shape[0] // 2
    facts = {*known, (h, r, t)}
    tails = {c for a, b, c in facts if (a, b) == (h, r)}
    heads = {a for a, b, c in facts if (b, c) == (r, t)}
    return question_loss(model, h, r, t, tails, loss, layers) + question_loss(
        model, t, r + count, h, heads, loss, layers
    )


def gradient(model: nn.Module, value: torch.Tensor) -> torch.Tensor:
    """All parameters' gradients in one vector."""
    parameters = list(model.parameters())
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for g, p in zip(found, parameters, strict=True)
        ]
    )


def randomise(model: nn.Module, seed: int) -> nn.Module:
    """Weights and moments that hide no error, the model in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if name.endswith("variance"):
                tensor.copy_(0.5 + noise.abs())
            elif name.endswith("gain"):
                tensor.copy_(1 + 0.3 * noise)
            elif name.endswith("mean"):
                tensor.copy_(0.2 * noise)
            else:
                tensor.copy_(0.4 * noise)
    return model.eval()
