"""SASRec and TiSASRec of the PyTorch ports give the same scores after import."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten.errors import CheckpointError, ConfigurationError, UsageError
from tests.importing.scores import imported, user_scores

ITEMS, WIDTH, LENGTH, USERS = 30, 12, 7, 9


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(WIDTH, WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        return self.conv2(self.conv1(x.mT).relu()).mT


class Port(nn.Module):
    """A SASRec on left-padded sequences, row 0 is padding. norm: as the option model.norm."""

    def __init__(self, heads, norm, positions):
        super().__init__()
        self.item_emb = nn.Embedding(ITEMS + 1, WIDTH, padding_idx=0)
        self.pos_emb = nn.Embedding(positions, WIDTH)
        self.attention_layernorms = nn.ModuleList(nn.LayerNorm(WIDTH, 1e-8) for _ in range(2))
        self.attention_layers = nn.ModuleList(nn.MultiheadAttention(WIDTH, heads) for _ in range(2))
        self.forward_layernorms = nn.ModuleList(nn.LayerNorm(WIDTH, 1e-8) for _ in range(2))
        self.forward_layers = nn.ModuleList(FeedForward() for _ in range(2))
        self.last_layernorm = nn.LayerNorm(WIDTH, 1e-8)
        self.norm = norm

    def forward(self, ids, masked):
        """[D] the state after a left-padded sequence [L]; masked: padding is no key."""
        real = (ids > 0)[:, None]
        places = torch.arange(len(ids)) + len(self.pos_emb.weight) - len(ids)
        x = (self.item_emb(ids) * WIDTH**0.5 + self.pos_emb(places)) * real
        hidden = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
        if masked:
            hidden = hidden | (ids == 0)[None] & ~torch.eye(len(ids), dtype=torch.bool)
        parts = (self.attention_layernorms, self.attention_layers, self.forward_layernorms)
        for norm, attention, second, feed in zip(*parts, self.forward_layers, strict=True):

            def attend(query, x, attention=attention):
                return attention(query, x, x, attn_mask=hidden)[0]

            if self.norm == "query":
                y = norm(x)
                z = second(y + attend(y, x))
                x = z + feed(z)
            elif self.norm == "pre":
                y = norm(x)
                x = x + attend(y, y)
                x = x + feed(second(x))
            else:
                x = norm(x + attend(x, x))
                x = second(x + feed(x))
            x = x * real
        return self.last_layernorm(x)[-1]


def randomized(module):
    """The module, with all its parameters random, of a size that makes scores differ."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.4 * torch.randn(parameter.shape, generator=generator))
        if isinstance(module, Port):
            module.item_emb.weight[0] = 0
    return module.eval()


@pytest.fixture
def data(tmp_path):
    """Lines ``user item time``: histories of 4 to 11 distinct items."""
    draw = np.random.default_rng(0)
    file = tmp_path / "log.csv"
    with file.open("w") as out:
        out.write("user_id,item_id,timestamp\n")
        for user in range(1, USERS + 1):
            chosen = draw.permutation(ITEMS)[: 3 + user] + 1
            times = np.cumsum(draw.integers(1, 9, len(chosen)) * 60)
            out.writelines(f"{user},{i},{t}\n" for i, t in zip(chosen, times, strict=True))
    return file


def expected(port, run, forward):
    """[U, N] the port's scores: its states times its item rows."""
    dataset = run.dataset
    items = torch.tensor(dataset.items.labels.to_pylist())
    histories = dataset.histories(0)
    states = []
    for row in range(len(dataset.users)):
        span = slice(histories.offsets[row], histories.offsets[row + 1])
        ids = items[torch.from_numpy(histories.items[span])][-LENGTH:]
        states.append(forward(F.pad(ids, (LENGTH - len(ids), 0)), row))
    return torch.stack(states) @ port.item_emb.weight[items].T


@pytest.mark.parametrize(
    ("norm", "padding"),
    [("query", "keys"), ("query", "masked"), ("pre", "masked"), ("post", "keys")],
)
def test_scores_of_a_sasrec_port(tmp_path, data, norm, padding):
    port = randomized(Port(2, norm, LENGTH + (norm == "post")))
    if norm == "post":  # a later version: row 0 of the positions is padding
        port.pos_emb.weight.data[0] = 0
    sets = ["model.heads=2", f"model.norm={norm}", f"model.padding={padding}"]
    run = imported(tmp_path, port.state_dict(), "sasrec", data, {"items": "ids"}, sets)
    with torch.no_grad():
        want = expected(port, run, lambda ids, _: port(ids, padding == "masked"))
    _, _, got = user_scores(run, 0)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


def test_what_the_weights_do_not_say_is_asked_for(tmp_path, data):
    weights = randomized(Port(2, "pre", LENGTH)).state_dict()
    with pytest.raises(ConfigurationError, match=r"model\.heads.*model\.norm.*model\.padding"):
        imported(tmp_path, weights, "sasrec", data, {"items": "ids"})
    sets = ["model.heads=1", "model.norm=pre", "model.padding=masked"]
    with pytest.raises(UsageError, match="--items is missing"):
        imported(tmp_path, weights, "sasrec", data, {}, sets)
    assert not (tmp_path / "run").exists()


class TimedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.Q_w, self.K_w, self.V_w = (nn.Linear(WIDTH, WIDTH) for _ in range(3))


class TimedPort(nn.Module):
    """A TiSASRec without padding."""

    def __init__(self, span):
        super().__init__()
        self.item_emb = nn.Embedding(ITEMS + 1, WIDTH, padding_idx=0)
        self.abs_pos_K_emb, self.abs_pos_V_emb = (nn.Embedding(LENGTH, WIDTH) for _ in range(2))
        self.time_matrix_K_emb = nn.Embedding(span + 1, WIDTH)
        self.time_matrix_V_emb = nn.Embedding(span + 1, WIDTH)
        self.attention_layernorms = nn.ModuleList(nn.LayerNorm(WIDTH, 1e-8) for _ in range(2))
        self.attention_layers = nn.ModuleList(TimedAttention() for _ in range(2))
        self.forward_layernorms = nn.ModuleList(nn.LayerNorm(WIDTH, 1e-8) for _ in range(2))
        self.forward_layers = nn.ModuleList(FeedForward() for _ in range(2))
        self.last_layernorm = nn.LayerNorm(WIDTH, 1e-8)
        self.span = span

    def forward(self, ids, times, heads=2):
        """[D] the state after a sequence [L] of which the last item has the last position."""
        count, size = len(ids), WIDTH // heads
        gaps = torch.diff(times)
        unit = gaps[gaps > 0].min()
        scaled = torch.round((times - times.min()) / unit)
        between = (scaled[:, None] - scaled).abs().clamp(max=self.span).long()
        places = torch.arange(LENGTH - count, LENGTH)
        x = self.item_emb(ids) * WIDTH**0.5

        def split(y):
            return y.view(*y.shape[:-1], heads, size)

        parts = (self.attention_layernorms, self.attention_layers, self.forward_layernorms)
        for norm, attention, second, feed in zip(*parts, self.forward_layers, strict=True):
            y = norm(x)
            query = split(attention.Q_w(y))
            key = split(attention.K_w(x) + self.abs_pos_K_emb(places))
            value = split(attention.V_w(x) + self.abs_pos_V_emb(places))
            keys = key[None] + split(self.time_matrix_K_emb(between))
            values = value[None] + split(self.time_matrix_V_emb(between))
            logits = torch.einsum("ihd,ijhd->hij", query, keys) / size**0.5
            future = torch.ones(count, count, dtype=torch.bool).triu(1)
            shares = logits.masked_fill(future, -torch.inf).softmax(-1)
            mixed = torch.einsum("hij,ijhd->ihd", shares, values).flatten(1)
            z = second(y + mixed)
            x = z + feed(z)
        return self.last_layernorm(x)[-1]


def test_scores_of_a_tisasrec_port(tmp_path, data):
    port = randomized(TimedPort(20))
    sets = ["model.heads=2", "model.norm=query"]
    with pytest.raises(CheckpointError, match="fewer than 7 events"):
        imported(tmp_path, port.state_dict(), "tisasrec", data, {"items": "ids"}, sets)
    run = imported(
        tmp_path, port.state_dict(), "tisasrec", data, {"items": "ids"}, sets, approximate=True
    )
    histories = run.dataset.histories(0)

    def forward(ids, row):
        start, stop = histories.offsets[row : row + 2]
        return port(ids[ids > 0], torch.from_numpy(histories.times[start:stop])[-LENGTH:])

    with torch.no_grad():
        want = expected(port, run, forward)
    torch.testing.assert_close(user_scores(run, 0)[2], want, rtol=0, atol=1e-5)


def test_a_recbole_sasrec_is_refused_with_the_reason(tmp_path, data):
    names = ("item_embedding.weight", "position_embedding.weight", "LayerNorm.weight",
             "trm_encoder.layer.0.multi_head_attention.query.weight")  # fmt: skip
    weights = dict.fromkeys(names, torch.zeros(2, 2))
    with pytest.raises(CheckpointError, match="counts positions from the first item"):
        imported(tmp_path, weights, "sasrec", data, {"items": "ids"})
