"""DistMult, ComplEx and ConvE give the same scores after import, in both directions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from hasten.errors import CheckpointError, DataError
from hasten.influence.queries import Selection
from hasten.influence.run import Options, compute_influence
from tests.importing.scores import imported, tail_scores

ENTITIES, RELATIONS, WIDTH = 20, 3, 12
ROWS = {"entities": "FILE", "relations": "ids"}


@pytest.fixture
def data(tmp_path):
    """A folder of triples; the names of entities are in another order than the rows."""
    draw = np.random.default_rng(1)
    triples = {(int(h), int(r), int(t)) for h, r, t in draw.integers(0, (20, 3, 20), (150, 3))}
    triples |= {(e, e % 3, (e + 1) % 20) for e in range(20)}
    lines = [f"e{h}\t{r}\te{t}\n" for h, r, t in sorted(triples)]
    folder = tmp_path / "kg"
    folder.mkdir()
    (folder / "train.txt").write_text("".join(lines))
    (folder / "valid.txt").write_text(lines[3])
    (folder / "test.txt").write_text(lines[5])
    order = tmp_path / "entity2id.txt"
    order.write_text(f"{ENTITIES}\n" + "".join(f"e{e}\t{(7 * e) % 20}\n" for e in range(20)))
    return folder


def rows_of(tmp_path):
    return {"entities": str(tmp_path / "entity2id.txt"), "relations": "ids"}


def by_label(run, scores):
    """The scores of e0, e1, ... in this order."""
    names = run.dataset.entities.labels.to_pylist()
    return torch.stack([scores[names.index(f"e{e}")] for e in range(ENTITIES)])


def check(run, score):
    """score(h, r, t) of rows: all triples of two queries for tails and two for heads."""
    names = run.dataset.entities.labels.to_pylist()
    relations = run.dataset.relations.labels.to_pylist()
    row = torch.arange(ENTITIES) * 7 % 20
    for known, relation in ((3, 1), (8, 2)):
        place = names.index(f"e{known}"), relations.index(relation)
        tails = by_label(run, tail_scores(run, *place))
        mine = row[known].expand(ENTITIES), torch.tensor(relation).expand(ENTITIES)
        torch.testing.assert_close(tails, score(*mine, row), rtol=0, atol=1e-5)
        heads = by_label(run, tail_scores(run, place[0], place[1] + RELATIONS))
        torch.testing.assert_close(heads, score(row, mine[1], mine[0]), rtol=0, atol=1e-5)


def pykeen(entities, relations, **more):
    return {
        "entity_representations.0._embeddings.weight": entities,
        "relation_representations.0._embeddings.weight": relations,
        **more,
    }


def test_distmult_of_pykeen(tmp_path, data):
    entity, relation = torch.randn(ENTITIES, WIDTH), torch.randn(RELATIONS, WIDTH)
    run = imported(tmp_path, pykeen(entity, relation), "distmult", data, rows_of(tmp_path))
    check(run, lambda h, r, t: (entity[h] * relation[r] * entity[t]).sum(1))


def test_complex_of_pykeen(tmp_path, data):
    entity, relation = torch.randn(ENTITIES, WIDTH), torch.randn(RELATIONS, WIDTH)
    run = imported(tmp_path, pykeen(entity, relation), "complex", data, rows_of(tmp_path))
    e, r_ = (torch.view_as_complex(x.view(len(x), -1, 2)) for x in (entity, relation))
    check(run, lambda h, r, t: (e[h] * r_[r] * e[t].conj()).sum(1).real)


class ConvE(nn.Module):
    """The network of the paper's code on rows h, r, with random running statistics."""

    def __init__(self, height, relations):
        super().__init__()
        columns, channels = WIDTH // height, 5
        self.shape = (-1, 1, height, columns)
        self.emb_e, self.emb_rel = nn.Embedding(ENTITIES, WIDTH), nn.Embedding(relations, WIDTH)
        self.bn0, self.bn1 = nn.BatchNorm2d(1), nn.BatchNorm2d(channels)
        self.bn2 = nn.BatchNorm1d(WIDTH)
        self.conv1 = nn.Conv2d(1, channels, 3)
        self.fc = nn.Linear(channels * (2 * height - 2) * (columns - 2), WIDTH)
        self.b = nn.Parameter(torch.randn(ENTITIES))
        for norm in (self.bn0, self.bn1, self.bn2):
            nn.init.uniform_(norm.weight, 0.5, 2)
            nn.init.normal_(norm.bias)
            nn.init.normal_(norm.running_mean)
            nn.init.uniform_(norm.running_var, 0.5, 2)
        self.eval()

    @torch.no_grad()
    def forward(self, h, r, t):
        x = torch.cat([self.emb_e(h).view(self.shape), self.emb_rel(r).view(self.shape)], 2)
        x = self.bn1(self.conv1(self.bn0(x))).relu()
        x = self.bn2(self.fc(x.flatten(1))).relu()
        return (x * self.emb_e(t)).sum(1) + self.b[t]

    def both(self, inverse):
        """score(h, r, t), by the inverse relation where the tail is known."""

        def score(h, r, t):
            asks_heads = bool((t == t[0]).all())
            return self(t, inverse(r), h) if asks_heads else self(h, r, t)

        return score


def test_conve_of_the_papers_code(tmp_path, data):
    net = ConvE(4, 2 * RELATIONS)
    sets = ["model.height=4"]
    run = imported(tmp_path, net.state_dict(), "conve", data, rows_of(tmp_path), sets)
    assert run.config.model.channels == 5
    found = compute_influence(run.path, Selection(part="test"), Options(topk=3), quiet=True)
    assert len(found) == 6
    check(run, net.both(lambda r: r + RELATIONS))


def test_conve_of_pykeen_with_a_flat_image_and_interleaved_inverses(tmp_path, data):
    net = ConvE(3, 2 * RELATIONS)
    parts = {"bn0": "hr2d.0", "conv1": "hr2d.2", "bn1": "hr2d.3", "fc": "hr1d.0", "bn2": "hr1d.2"}
    own = net.state_dict()
    weights = pykeen(own["emb_e.weight"], own["emb_rel.weight"])
    weights["entity_representations.1._embeddings.weight"] = own["b"][:, None]
    for name, value in own.items():
        if (part := name.partition("."))[0] in parts:
            weights[f"interaction.{parts[part[0]]}.{part[2]}"] = value
    sets = ["model.height=3"]
    run = imported(tmp_path, weights, "conve", data, rows_of(tmp_path), sets)
    forth = lambda r: 2 * r  # noqa: E731
    score = net.both(lambda r: r + 1)
    check(run, lambda h, r, t: score(h, forth(r), t))


def test_conve_without_inverse_relations_is_imported_only_on_request(tmp_path, data):
    net, sets, renamed = ConvE(4, RELATIONS), ["model.height=4"], {"emb_e": "entity"}
    weights = {k.replace("emb_e", "entity"): v for k, v in net.state_dict().items()}
    rows = rows_of(tmp_path)
    with pytest.raises(CheckpointError, match=r"differs in: emb_e.*entity\.weight"):
        imported(tmp_path, weights, "conve", data, rows, sets)
    renamed = {"entity": "emb_e"}
    with pytest.raises(CheckpointError, match="queries for heads"):
        imported(tmp_path, weights, "conve", data, rows, sets, renames=renamed)
    assert not (tmp_path / "run").exists()
    run = imported(tmp_path, weights, "conve", data, rows, sets, renames=renamed, approximate=True)
    names = run.dataset.entities.labels.to_pylist()
    tails = by_label(run, tail_scores(run, names.index("e3"), 1))
    row = torch.arange(ENTITIES) * 7 % 20
    want = net(row[3].expand(20), torch.ones(20, dtype=torch.long), row)
    torch.testing.assert_close(tails, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ("e0\t0\n", "19 of the 20 entities of the data have no line, the first: 'e1'"),
        ("".join(f"e{e}\t{e + 1}\n" for e in range(20)), "outside of the rows 0 to 19"),
        ("".join(f"e{e}\t{e // 2}\n" for e in range(20)), "several labels share a row"),
        ("e0\n", "expected a label and its row"),
    ],
)
def test_rows_are_checked(tmp_path, data, lines, problem):
    (tmp_path / "entity2id.txt").write_text(lines)
    weights = pykeen(torch.randn(ENTITIES, WIDTH), torch.randn(RELATIONS, WIDTH))
    with pytest.raises(DataError, match=problem):
        imported(tmp_path, weights, "distmult", data, rows_of(tmp_path))


def test_a_pickle_that_needs_code_is_refused_with_the_remedy(tmp_path, data):
    with pytest.raises(CheckpointError, match=r"torch\.save\(model\.state_dict\(\)"):
        imported(tmp_path, {"config": data, "state_dict": {}}, "distmult", data, ROWS)
