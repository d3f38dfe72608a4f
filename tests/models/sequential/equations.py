"""SASRec and TiSASRec by their equations, written out a sequence at a time in float64."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import torch

from hasten.data.tables import Histories
from hasten.models.interface import Sizes
from hasten.models.sequential.attention_model import AttentionModel
from hasten.models.sequential.personal_times import personal_times
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.objectives.next_item import NextItemPhase
from hasten.ops.losses.sampled_loss import gbce_beta

ITEMS, LENGTH, SPAN = 23, 7, 12


def random_histories(users=9, seed=0, longest=11):
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, longest, users)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    times = np.concatenate([np.sort(generator.integers(0, 500, n)) for n in lengths])
    return Histories(offsets, generator.integers(0, ITEMS, lengths.sum()), times)


def build(kind: type[AttentionModel], event_values=0, **options):
    torch.manual_seed(1)
    settings = {"width": 6, "max_length": LENGTH, "dropout": 0.0, **options}
    if kind is TiSASRec:
        settings = {"span": SPAN, **settings}
    sizes = Sizes(users=9, items=ITEMS, event_values=event_values)
    model = kind(kind.Options(**settings), sizes).double()
    for parameter in model.parameters():  # biases too, so that every one of them matters
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def phase_of(model, histories, negatives=0):
    own = histories
    if isinstance(model, TiSASRec):
        own = personal_times(histories, LENGTH, unseen=1)
    return NextItemPhase(
        model, own, item_count=ITEMS, batch_size=9, max_length=LENGTH, negative_count=negatives
    )


def reference_states(model, items, times, features=None):
    """[n, D] states of one sequence with unix times, and the features of its events."""
    options, n = model.options, len(items)
    width, head = options.width, options.width // options.heads
    x = math.sqrt(width) * model.items.weight[items]
    if features is not None:
        table = model.event_inputs.weight
        added = [
            sum(float(w) * table[int(v)] for v, w in zip(values, weights, strict=True))
            for values, weights in zip(features.value, features.weight, strict=True)
        ]
        x = x + torch.stack(added)
    timed, ligr = isinstance(model, TiSASRec), options.block == "ligr"
    if timed:
        gaps = [b - a for a, b in pairwise(times) if b > a]
        own = [round((time - min(times)) / (min(gaps) if gaps else 1)) + 1 for time in times]
    else:
        x = x + model.positions.weight[:n].flip(0)

    def norm(y, layer):
        mean, variance = y.mean(-1, keepdim=True), y.var(-1, keepdim=True, unbiased=False)
        return (y - mean) / (variance + 1e-5).sqrt() * layer.weight + layer.bias

    def attend(y, block):
        q = y @ block.query_key_value[:width].T + block.query_bias
        k = y @ block.query_key_value[width : 2 * width].T
        v = y @ block.query_key_value[2 * width :].T
        outs = []
        for h in range(options.heads):
            part = slice(h * head, (h + 1) * head)
            rows = []
            for i in range(n):
                keys, values = k[: i + 1], v[: i + 1]
                if timed:
                    places = [n - 1 - j for j in range(i + 1)]
                    apart = [min(abs(own[i] - own[j]), options.span) for j in range(i + 1)]
                    keys = keys + model.key_positions.weight[places]
                    keys = keys + model.key_intervals.weight[apart]
                    values = values + model.value_positions.weight[places]
                    values = values + model.value_intervals.weight[apart]
                weights = torch.softmax(keys[:, part] @ q[i, part] / math.sqrt(head), 0)
                rows.append(weights @ values[:, part])
            outs.append(torch.stack(rows))
        return torch.cat(outs, 1) @ block.output.weight.T + block.output.bias

    def feed(y, block):
        hidden = y @ block.inner.weight.T + block.inner.bias
        if ligr:  # SiLU of one half times the other
            swish, linear = hidden[:, : hidden.shape[1] // 2], hidden[:, hidden.shape[1] // 2 :]
            hidden = swish / (1 + torch.exp(-swish)) * linear
        else:
            hidden = torch.clamp(hidden, min=0)
        return hidden @ block.outer.weight.T + block.outer.bias

    def gate(y, layer):
        return 1 / (1 + torch.exp(-(y @ layer.weight.T + layer.bias)))

    for block in model.blocks:
        if ligr:
            x = x + gate(x, block.attention_gate) * attend(norm(x, block.attention_norm), block)
            x = x + gate(x, block.feedforward_gate) * feed(norm(x, block.feedforward_norm), block)
        elif options.norm == "pre":
            x = x + attend(norm(x, block.attention_norm), block)
            x = x + feed(norm(x, block.feedforward_norm), block)
        else:
            x = norm(x + attend(x, block), block.attention_norm)
            x = norm(x + feed(x, block), block.feedforward_norm)
    return norm(x, model.final_norm)


def reference_loss(model, histories, drawn):
    """Summed loss of all sequences; ``drawn`` [T, k] in the order of the phase's targets."""
    total, at = torch.zeros((), dtype=torch.float64), 0
    users = [u for u in range(len(histories)) if histories.lengths[u] >= 2]
    users.sort(key=lambda u: -min(histories.lengths[u] - 1, LENGTH))
    for user in users:
        row = slice(histories.offsets[user], histories.offsets[user + 1])
        items, times = histories.items[row][-LENGTH - 1 :], histories.times[row][-LENGTH - 1 :]
        features = histories.features
        if features is not None:
            features = features.take(np.arange(row.start, row.stop)[-LENGTH - 1 :][:-1])
        states = reference_states(model, items[:-1], times[:-1].tolist(), features)
        for t, target in enumerate(items[1:]):
            scores = model.items.weight @ states[t]
            if model.options.loss == "ce":
                total = total - torch.log(torch.exp(scores[target]) / torch.exp(scores).sum())
            else:
                beta = 1.0
                if model.options.loss == "gbce":
                    beta = gbce_beta(drawn.shape[1], ITEMS, model.options.calibration)
                total = total - beta * torch.log(torch.sigmoid(scores[target]))
                total = total - torch.log(1 - torch.sigmoid(scores[drawn[at]])).sum()
            at += 1
    return total
