"""The same as captum's TracInCP on a small ConvE of torch's own layers, BatchNorm in evaluation."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten.data.tables import TRAIN
from hasten.influence.trace import Checkpoint, Limits, trace_self
from tests.influence.test_influence_triples import (  # noqa: F401 - a fixture
    alone,
    as_list,
    found_matrix,
    graph,
    make,
    some_tests,
    source_of,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    influence = pytest.importorskip("captum.influence", reason="captum is not installed")


class Plain(nn.Module):
    """Scores of both questions of a triple, [B, 2, N]: our ConvE in torch's own layers."""

    def __init__(self, model) -> None:
        super().__init__()
        kernel, channels = model.options.kernel, model.options.channels
        self.shape = (-1, 1, model.height, model.columns)
        self.relations_there = len(model.relations) // 2
        self.entities = nn.Embedding(*model.entities.weight.shape)
        self.relations = nn.Embedding(*model.relations.weight.shape)
        self.image_norm = nn.BatchNorm2d(1, affine=False)
        self.convolution = nn.Conv2d(1, channels, kernel, bias=False)
        self.feature_norm = nn.BatchNorm2d(channels)
        self.hidden = nn.Linear(model.places * channels, model.options.width, bias=False)
        self.hidden_norm = nn.BatchNorm1d(model.options.width)
        self.bias = nn.Parameter(torch.empty(model.sizes.entities))
        self.double().eval()

    def forward(self, triples):
        h, r, t = triples.unbind(1)
        return torch.stack([self.scores(h, r), self.scores(t, r + self.relations_there)], dim=1)

    def scores(self, entity, relation):
        rows = [self.entities(entity).view(self.shape), self.relations(relation).view(self.shape)]
        x = self.image_norm(torch.cat(rows, dim=2))
        x = torch.relu(self.feature_norm(self.convolution(x)))
        x = torch.relu(self.hidden_norm(self.hidden(x.flatten(1))))
        return x @ self.entities.weight.T + self.bias


def weights_of(model) -> dict[str, torch.Tensor]:
    """Our weights under the names of Plain."""
    ours = {k: v.clone() for k, v in model.state_dict().items()}
    kernel = model.options.kernel
    names = {
        "entities.weight": "entities.weight", "relations.weight": "relations.weight",
        "hidden.weight": "hidden.weight", "bias": "bias",
        "feature_norm.weight": "feature_gain", "feature_norm.bias": "feature_shift",
        "hidden_norm.weight": "hidden_gain", "hidden_norm.bias": "hidden_shift",
    } | {
        f"{part}_norm.running_{there}": f"{part}_moments.{here}"
        for part in ("image", "feature", "hidden")
        for there, here in (("mean", "mean"), ("var", "variance"))
    }  # fmt: skip
    found = {there: ours[here] for there, here in names.items()}
    found["convolution.weight"] = ours["filters"].view(-1, 1, kernel, kernel)
    return found


def labels_of(triples, known, count, smoothing, loss) -> torch.Tensor:
    """[B, 2, 2, N] for both questions of each: labels, and which cells count."""
    found = torch.zeros(len(triples), 2, 2, count, dtype=torch.float64)
    for row, (h, r, t) in enumerate(triples):
        facts = {*known, (h, r, t)}
        for question, answers, own in (
            (0, [c for a, b, c in facts if (a, b) == (h, r)], t),
            (1, [a for a, b, c in facts if (b, c) == (r, t)], h),
        ):
            found[row, question, 0] = smoothing / count
            found[row, question, 0, answers] += 1 - smoothing
            found[row, question, 1, own if loss == "positive" else slice(None)] = 1.0
    return found


def summed(scores, labels):
    """[B] the losses of the cells that count."""
    cells = F.binary_cross_entropy_with_logits(scores, labels[:, :, 0], reduction="none")
    return (cells * labels[:, :, 1]).sum((1, 2))


@pytest.mark.parametrize("loss", ["training", "positive"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_same_as_captum(loss, graph):  # noqa: F811
    model, tests = make("conve", "1-n"), some_tests(graph)
    first = {k: v.clone() for k, v in model.state_dict().items()}
    second = {k: v * 0.9 + 0.02 for k, v in first.items()}
    plain, theirs = Plain(model), {}
    for name, weights in (("first", first), ("second", second)):
        model.load_state_dict(weights)
        theirs[name] = weights_of(model)
    rates = {"first": 0.1, "second": 0.02}

    def load(module, name):
        module.load_state_dict(theirs[name], strict=False)
        return rates[name]

    known = as_list(graph.of(TRAIN))
    data = []
    for triples in (known, as_list(tests)):
        labels = labels_of(triples, known, model.sizes.entities, model.options.smoothing, loss)
        data.append((torch.tensor(triples), labels))
    traced = influence.TracInCP(
        plain, torch.utils.data.TensorDataset(*data[0]), ["first", "second"], load,
        loss_fn=summed, batch_size=8,
    )  # fmt: skip
    wanted = traced.influence(data[1])
    source = source_of(model, graph, loss, "all", tests)
    ours = [
        Checkpoint(name, rates[name], lambda w=weights: model.load_state_dict(w))
        for name, weights in (("first", first), ("second", second))
    ]
    limits = Limits(1 << 30, 16)
    torch.testing.assert_close(found_matrix(source, ours, limits), wanted, rtol=1e-9, atol=1e-12)
    own = trace_self(source, ours, limits=limits, **alone())
    torch.testing.assert_close(own, traced.self_influence(), rtol=1e-9, atol=1e-12)
