"""BPR-MF, LightGCN and KGAT give the same scores after import, and the run trains on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten.errors import CheckpointError
from hasten.run import resume
from hasten.runs.checkpoint import read_checkpoint
from tests.importing.scores import imported, user_scores

USERS, ITEMS, ENTITIES, FACTS, WIDTH = 8, 10, 14, 2, 6


@pytest.fixture
def data(tmp_path):
    """A folder in KGAT's format."""
    draw, folder = np.random.default_rng(2), tmp_path / "kg"
    folder.mkdir()
    lines = [[u, *draw.permutation(ITEMS)[:5].tolist()] for u in range(USERS)]
    lines[0] = [0, *range(ITEMS)]  # every item occurs
    for name, part in (("train", slice(0, -1)), ("test", slice(-1, None))):
        text = [" ".join(map(str, [row[0], *row[1:][part]])) for row in lines]
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")
    facts = {(int(h), int(r), int(t)) for h, r, t in draw.integers(0, (10, 2, 14), (40, 3))}
    facts |= {(e % ITEMS, e % 2, e) for e in range(ENTITIES)}
    (folder / "kg_final.txt").write_text("".join(f"{h} {r} {t}\n" for h, r, t in sorted(facts)))
    return folder


def matrix(run):
    """[U, N] the training pairs by label, and the order of the labels."""
    dataset = run.dataset
    users, items = (np.array(v.labels.to_pylist()) for v in (dataset.users, dataset.items))
    train = torch.zeros(USERS, ITEMS)
    mine = dataset.part == 0
    train[users[dataset.interactions.user[mine]], items[dataset.interactions.item[mine]]] = 1
    return train, torch.from_numpy(users), torch.from_numpy(items)


def test_bpr_of_recbole(tmp_path, data):
    weights = {
        "user_embedding.weight": torch.randn(USERS + 1, WIDTH),
        "item_embedding.weight": torch.randn(ITEMS + 1, WIDTH),
    }
    (tmp_path / "users.txt").write_text("\n".join(["[PAD]", *map(str, range(USERS))]))
    (tmp_path / "items.txt").write_text("\n".join(["[PAD]", *map(str, reversed(range(ITEMS)))]))
    rows = {kind: f"order:{tmp_path / kind}.txt" for kind in ("users", "items")}
    run = imported(tmp_path, {"state_dict": weights}, "bprmf", data, rows)
    _, users, items = matrix(run)
    users, items = users + 1, ITEMS - items
    want = weights["user_embedding.weight"][users] @ weights["item_embedding.weight"][items].T
    torch.testing.assert_close(user_scores(run, 0)[2], want, rtol=0, atol=1e-5)


def test_lightgcn_then_resumed(tmp_path, data):
    weights = {
        "embedding_user.weight": torch.randn(USERS, WIDTH),
        "embedding_item.weight": torch.randn(ITEMS, WIDTH),
    }
    rows, sets = {"users": "ids", "items": "ids"}, ["model.layers=2", "training.epochs=1"]
    run = imported(tmp_path, weights, "lightgcn", data, rows, sets)
    train, users, items = matrix(run)
    joined = torch.zeros(USERS + ITEMS, USERS + ITEMS)
    joined[:USERS, USERS:] = train
    joined += joined.T.clone()
    scale = joined.sum(1).rsqrt()
    joined = scale[:, None] * joined * scale
    x = torch.cat([weights["embedding_user.weight"], weights["embedding_item.weight"]])
    x = (x + joined @ x + joined @ joined @ x) / 3
    want = x[users] @ x[USERS + items].T
    torch.testing.assert_close(user_scores(run, 0)[2], want, rtol=0, atol=1e-5)
    begun = read_checkpoint(tmp_path / "run" / "checkpoints" / "epoch-0000")
    summary = resume(tmp_path / "run", quiet=True)
    assert summary.epochs == 1
    after = read_checkpoint(tmp_path / "run" / "final").tensors["weights"]["nodes.weight"]
    moved = (after - begun.tensors["weights"]["nodes.weight"]).abs()
    assert 0 < moved.max() < 0.1  # one epoch of small steps from the imported weights


class Aggregator(nn.Module):
    def __init__(self, width, out):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(width, out), nn.Linear(width, out)


class PortedKGAT(nn.Module):
    """A KGAT: entities, then users; relations as in the collaborative graph."""

    def __init__(self):
        super().__init__()
        kinds = 2 * FACTS + 2
        self.entity_user_embed = nn.Embedding(ENTITIES + USERS, WIDTH)
        self.relation_embed = nn.Embedding(kinds, 4)
        self.trans_M = nn.Parameter(torch.randn(kinds, WIDTH, 4))
        self.aggregator_layers = nn.ModuleList([Aggregator(WIDTH, 5), Aggregator(5, 3)])

    @torch.no_grad()
    def attention(self, edges):
        """Sparse [n, n]: of pairs with several relations the logits are added, then a softmax."""
        x, r = self.entity_user_embed.weight, self.relation_embed.weight
        n, logits = len(x), {}
        for h, k, t in edges:
            value = (x[t] @ self.trans_M[k]) @ torch.tanh(x[h] @ self.trans_M[k] + r[k])
            logits[h, t] = logits.get((h, t), 0.0) + value
        index = torch.tensor(list(logits)).T
        values = torch.stack(list(logits.values()))
        whole = torch.full((n, n), -torch.inf).index_put(tuple(index), values).softmax(1)
        whole = whole.nan_to_num()  # a node without edges
        return torch.sparse_coo_tensor(index, whole[tuple(index)], (n, n), check_invariants=True)

    @torch.no_grad()
    def vectors(self, attention):
        x = self.entity_user_embed.weight
        found = [x]
        for layer in self.aggregator_layers:
            around = attention.to_dense() @ x
            x = F.leaky_relu(layer.linear1(x + around)) + F.leaky_relu(layer.linear2(x * around))
            found.append(F.normalize(x))
        return torch.cat(found, 1)


def test_kgat_in_pytorch(tmp_path, data):
    port, edges = PortedKGAT(), set()
    lines = (data / "train.txt").read_text().splitlines()
    for user, *items in (map(int, line.split()) for line in lines):
        edges |= {(ENTITIES + user, 0, i) for i in items} | {(i, 1, ENTITIES + user) for i in items}
    for line in (data / "kg_final.txt").read_text().splitlines():
        h, r, t = map(int, line.split())
        edges |= {(h, r + 2, t), (t, r + 2 + FACTS, h)}
    attention = port.attention(sorted(edges))
    weights = {**port.state_dict(), "A_in": attention}
    rows = dict.fromkeys(("users", "entities", "relations"), "ids")
    sets = ["data.valid_share=0"]
    run = imported(tmp_path, weights, "kgat", data, rows, sets)
    _, users, items = matrix(run)
    x = port.vectors(attention)
    want = x[ENTITIES + users] @ x[items].T
    torch.testing.assert_close(user_scores(run, 0)[2], want, rtol=0, atol=1e-5)
    with pytest.raises(CheckpointError, match="they are not the same"):  # a valid part is held out
        imported(tmp_path / "kg", weights, "kgat", data, rows, ["data.valid_share=0.3"])


@pytest.mark.parametrize(
    ("model", "names", "reason"),
    [
        ("mmgcn", ["v_gcn.MLP.weight", "t_gcn.g_layer1.weight"], "outside of its parameters"),
        ("dragon", ["weight_u", "v_gcn.preference", "image_embedding.weight"], "every epoch"),
        ("kgat", ["user_embedding.weight", "entity_embedding.weight", "relation_embedding.weight",
                  "trans_w.weight", "aggregator_layers.0.W1.weight"], "one direction only"),
    ],
)  # fmt: skip
def test_what_cannot_be_represented_is_refused_with_the_reason(
    tmp_path, data, model, names, reason
):
    with pytest.raises(CheckpointError, match=reason):
        imported(tmp_path, dict.fromkeys(names, torch.zeros(2, 2)), model, data, {})
