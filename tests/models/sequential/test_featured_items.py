"""Items with features: the equations, what they predict, cold items, the life of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

import hasten
from hasten.data.item_features import ItemFeatures
from hasten.data.tables import TRAIN
from hasten.errors import HastenError
from hasten.exporting.export import export
from hasten.influence.support import choose_method
from hasten.models.interface import Sizes
from hasten.models.sequential import base
from hasten.models.sequential.featured_items import FeaturedItems
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.ops.table import FixedTable
from tests.models.sequential.equations import ITEMS, LENGTH, phase_of, random_histories

VALUES = 5


def features(seed=0):
    """Random entries: none, one or several of an item."""
    generator = np.random.default_rng(seed)
    dense = generator.standard_normal((ITEMS, VALUES)) * (generator.random((ITEMS, VALUES)) < 0.4)
    item, value = np.nonzero(dense)
    weight = dense[item, value].astype(np.float32)
    labels = pa.array([f"c={i}" for i in range(VALUES)])
    return ItemFeatures(labels, item, value, weight, (("c", "categories"),), {})


def featured(kind, **options):
    torch.manual_seed(1)
    settings = {"width": 6, "max_length": LENGTH, "dropout": 0.0, **options}
    model = kind(kind.Options(**settings), Sizes(users=9, items=ITEMS, item_values=VALUES))
    codes, weights = features().padded(ITEMS)
    trained = (np.arange(ITEMS) % 4 > 0)[:, None].astype(np.float32)
    for name, values in (("codes", codes), ("weights", weights), ("trained", trained)):
        model.items.register_buffer(name, torch.from_numpy(values), persistent=False)
    return model.double()


@pytest.mark.parametrize("kind", [SASRec, TiSASRec])
@pytest.mark.parametrize(("loss", "few_rows"), [("ce", 0), ("bce", 1 << 17), ("bce", 0)])
def test_is_a_table_of_the_sums(kind, loss, few_rows, monkeypatch):
    """The loss and its gradients are those of a plain table ``M E + F W``."""
    monkeypatch.setattr(base, "FEW_ROWS", few_rows)
    model = featured(kind, loss=loss)
    histories, count = random_histories(), model.options.sampled
    phase = phase_of(model, histories, count)
    batch = phase.plan(0, 0, 0)
    phase.terms((), batch, batch.ids)[0].numerator.backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    table, sparse = model.items, features()
    dense = torch.zeros(ITEMS, VALUES, dtype=torch.float64)
    dense[sparse.item, sparse.value] = torch.from_numpy(sparse.weight).double()
    rows = table.trained * table.weight + dense @ table.values.weight
    plain = FixedTable(rows)
    torch.testing.assert_close(table.block(0, ITEMS), rows)
    ids = torch.tensor([[3, 0], [8, 3]])
    torch.testing.assert_close(table.rows(ids), rows[ids])
    torch.testing.assert_close(table.block(4, 9), rows[4:9])
    with table.computed_once():
        torch.testing.assert_close(table.rows(ids), rows[ids])
        torch.testing.assert_close(table.block(4, 9), rows[4:9])
    micro_batch = phase.build_micro_batch(batch, batch.ids.numpy())
    states = micro_batch.at_targets(model.encode(plain.rows(micro_batch.tokens), micro_batch))
    scores = states @ rows.T
    if loss == "ce":
        value = torch.nn.functional.cross_entropy(scores, micro_batch.targets, reduction="sum")
    else:
        softplus = torch.nn.functional.softplus
        value = softplus(-scores.gather(1, micro_batch.targets[:, None])).sum()
        value = value + softplus(scores.gather(1, micro_batch.negatives)).sum()
    value.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-7, atol=1e-9, msg=name)
    assert not found["items.weight"][::4].any()  # items without training have no row of their own


GROUPS, SIZE, COLD = 8, 12, 2


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """Each item is followed by a random item of the next group; two of each group are cold."""
    folder = tmp_path_factory.mktemp("planted")
    generator, events = np.random.default_rng(0), []
    for user in range(150):
        group = int(generator.integers(GROUPS))
        for time in range(7):
            warm = SIZE - COLD
            item = (group + time) % GROUPS * SIZE + int(generator.integers(warm))
            events.append(f"{user},i{item},{1000 * time}")
    (folder / "events.csv").write_text("\n".join(["user,item,time", *events]) + "\n")
    rows = [f"i{i},g{i // SIZE},{i % 5}" for i in range(GROUPS * SIZE)]
    (folder / "items.csv").write_text("\n".join(["item_id,group,noise", *rows]) + "\n")
    return folder


def train(planted, name, model="sasrec", **settings):
    small = {"model.width": 16, "model.dropout": 0.1, "training.average": None, "threads": 1}
    return hasten.train(
        model, planted / "events.csv", settings={**small, **settings}, out=planted / name,
        epochs=10, lr=5e-3, batch_size=16, metrics="recall", topk=SIZE, quiet=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(planted):
    return train(planted, "run", **{"data.item_features": str(planted / "items.csv")})


def test_what_only_the_feature_predicts(planted, run):
    without = train(planted, "without")
    metric = f"recall@{SIZE}"
    assert run.valid_metrics[metric] > 0.9
    assert run.valid_metrics[metric] > without.valid_metrics[metric] + 0.2


def test_cold_items_score_by_their_features(planted, run):
    history = {"visitor": [f"i{group * SIZE}" for group in (2, 3, 4)]}
    found = run.recommend(histories=history, topk=GROUPS * SIZE).to_table()
    rank = {label: place for place, label in enumerate(found["item_id"].to_pylist())}
    cold = [f"i{group * SIZE + SIZE - 1}" for group in range(GROUPS)]
    assert min(cold, key=rank.__getitem__) == cold[5]
    assert rank[cold[5]] < 2 * SIZE


def test_an_export_agrees(run, planted):
    exported = export(run.loaded, "torch", planted / "exported")
    assert exported.parity.overlap == 1.0


def test_influence_is_refused(run):
    with pytest.raises(HastenError, match="does not support influence"):
        choose_method(run.loaded.model, "sasrec", None, None, None)


def test_an_update_brings_new_values(run, planted):
    (planted / "new.csv").write_text(
        "user,item,time\n" + "".join(f"{user},new,9000\n{user},i1,9500\n" for user in range(5))
    )
    (planted / "more.csv").write_text("item_id,group,noise\nnew,extra,9\ni1,g7,3\ni2,g7,0\n")
    more = {"data.item_features": str(planted / "more.csv"),
            "data.item_columns": {"group": "category", "noise": "number"}}  # fmt: skip
    updated = hasten.update(
        run.path, planted / "new.csv", out=planted / "updated", quiet=True, settings=more
    )
    old, new = run.loaded.dataset, updated.loaded.dataset
    labels = new.item_features.values.to_pylist()
    assert set(labels) - set(old.item_features.values.to_pylist()) == {"group=extra"}
    assert new.item_features.scale == old.item_features.scale
    mean, deviation = old.item_features.scale["noise"]

    def entries(dataset, label):
        one, at = dataset.item_features, dataset.items.index(pa.array([label]))[0]
        mine = one.item == at
        names = one.values.take(pa.array(one.value[mine])).to_pylist()
        return dict(zip(names, one.weight[mine].tolist(), strict=True))

    assert entries(new, "new")["noise"] == pytest.approx((9 - mean) / deviation, rel=1e-5)
    assert entries(new, "i1") == entries(old, "i1")  # the run's own stay
    before, after = run.loaded.model.items, updated.loaded.model.items
    assert len(after.values) == len(before.values) + 1
    assert isinstance(after, FeaturedItems)
    trained = np.unique(new.interactions.item[new.part == TRAIN])
    assert np.flatnonzero(after.trained.numpy()).tolist() == trained.tolist()
