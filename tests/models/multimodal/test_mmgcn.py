"""MMGCN against its equations in float64, its constants, what it must not do."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from hasten.config import TrainingOptions
from hasten.config_loading.build import build_config
from hasten.errors import ConfigurationError, DataError
from hasten.models.interface import Sizes
from hasten.models.multimodal import modal_data
from hasten.models.multimodal.mmgcn import MMGCN, MMGCNOptions
from hasten.models.multimodal.modal_data import Constants
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision
from hasten.training.step import OptimizerStep
from tests.models.multimodal.modal_data import (
    HELD,
    ITEMS,
    USERS,
    assert_same_loss,
    judged,
    loss_of,
    modal_dataset,
    naive_mmgcn,
)

CPU = torch.device("cpu")


def build(double=True, batch_size=6, widths=(5, 4), training=None, **options):
    dataset = modal_dataset(widths)
    torch.manual_seed(0)
    chosen = MMGCNOptions(**{"width": 6, "latent": 7, **options})
    model = MMGCN(chosen, Sizes.of(dataset))
    if double:
        model.double()
    settings = TrainingOptions(batch_size=batch_size, **(training or {}))
    (phase,) = model.phases(dataset, settings)
    return dataset, model, phase


def naive_loss(model, vectors, pairs, l2):
    user, positive, negative = pairs.user + ITEMS, pairs.positive, pairs.negative
    s = (vectors[user] * vectors[positive]).sum(1) - (vectors[user] * vectors[negative]).sum(1)
    users = torch.stack([user, user], 1).view(-1)
    items = torch.stack([positive, negative], 1).view(-1)
    penalty = (model.ids[users] ** 2 + model.ids[items] ** 2).mean()
    return -F.logsigmoid(s).mean() + l2 * (penalty + (model.channels[0].users ** 2).mean())


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [None, "aggregate first", "multiply first"])
@pytest.mark.parametrize("ids", ["trainable", "frozen"])
def test_loss_and_gradients_are_those_of_the_equations(layers, order, ids):
    l2 = 0.05 if ids == "trainable" else None
    dataset, model, phase = build(layers=layers, ids=ids, l2=l2, widths=(5, 4, 3))
    model.order = order
    batch = phase.plan(3, 1, 0)
    ours = loss_of(phase, batch, parts=2)
    naive = naive_loss(model, naive_mmgcn(model, dataset), phase.pairs(batch, batch.ids), l2 or 0.0)
    assert_same_loss(model, ours, naive)


def test_modalities_in_any_order_and_number():
    model = build(modalities=("text",), projected=("text",))[1]
    assert [c.modality for c in model.channels] == ["text"]
    assert model.channels[0].project is not None
    assert model.propagate(None).shape == (ITEMS + USERS, 6)
    with pytest.raises(ConfigurationError, match=r"no sound features in the data .*image, text"):
        build(modalities=("image", "sound"))
    with pytest.raises(ConfigurationError, match=r"names one twice"):
        build(modalities=("text", "text"))


def test_parameters_are_counted_as_published():
    """631,808 with 1,024-d sound, 384-d text and ids that are no parameters (a published log)."""
    options = MMGCNOptions(ids="frozen")
    model = MMGCN(options, Sizes(users=3, items=2, modalities=(("image", 1024), ("text", 384))))
    assert sum(p.numel() for p in model.parameters()) == 631_808
    names = dict(model.named_parameters())
    assert "ids" not in names
    assert "ids" in model.state_dict()  # but a run goes on from them
    trained = MMGCN(MMGCNOptions(ids="trainable"), model.sizes)
    assert sum(p.numel() for p in trained.parameters()) == 631_808 + 5 * 64 + 3 * (256 + 384)


def test_frozen_ids_are_not_moved_and_constants_change_nothing():
    """The same steps as when everything is computed in each of them."""

    def trained(recomputed):
        _, model, phase = build(ids="frozen", batch_size=8)
        before = {name: value.clone() for name, value in model.named_buffers()}
        if recomputed:
            model._constants = type(
                "Anew", (), {"__call__": lambda _, name, like, make: make().to(like)}
            )()
            model.order = "multiply first"
        step = OptimizerStep(
            phase, 0, TrainingOptions(batch_size=8), Precision("fp32", CPU), DataParallelRank(), CPU
        )
        for index in range(3):
            step(phase.plan(0, 0, index % phase.steps()), 1e-2)
        for name, value in model.named_buffers():
            assert torch.equal(value, before[name])
            assert not value.requires_grad
        return model.all_vectors()

    torch.testing.assert_close(trained(False), trained(True), rtol=1e-10, atol=1e-12)


def test_frozen_constants_are_summed_once(monkeypatch):
    _, model, phase = build(ids="frozen", projected=())
    model.order = "aggregate first"
    from hasten.ops.graph import bipartite

    widths = []
    original = bipartite.spmm
    monkeypatch.setattr(
        bipartite, "spmm", lambda g, w, x: widths.append(x.shape[1]) or original(g, w, x)
    )
    for index in range(3):
        loss_of(phase, phase.plan(0, 0, index))
    assert sorted(w for w in widths if w != 6) == [4, 4, 5, 5]  # once to users, once to items


def test_frozen_ids_have_no_penalty():
    with pytest.raises(ConfigurationError, match=r"model.l2.* it needs model.ids=trainable"):
        build_config("mmgcn", flags={"model.l2": "0.1"})
    assert build(ids="frozen")[1].l2 == 0
    assert build(ids="trainable")[1].l2 == 1e-4


def test_negatives_are_items_of_the_training_that_the_user_lacks():
    _, _, phase = build(batch_size=100)
    drawn = set()
    for epoch in range(60):
        batch = phase.plan(0, epoch, 0)
        pairs = phase.pairs(batch, batch.ids)
        assert len(pairs.user) == sum(map(len, HELD))  # every distinct pair once
        for user, positive, negative in zip(
            *(c.tolist() for c in (pairs.user, pairs.positive, pairs.negative)), strict=True
        ):
            assert positive in HELD[user]
            assert negative not in HELD[user]
            drawn.add((user, negative))
    seen = {item for held in HELD for item in held}
    assert drawn == {(u, i) for u, held in enumerate(HELD) for i in seen - set(held)}


def test_judging_uses_whole_graph_and_keeps_its_vectors():
    dataset, model, phase = build()
    with torch.inference_mode():
        expected = naive_mmgcn(model, dataset)
        scores = judged(dataset, model, expected)
        with model.encoded_once():
            torch.testing.assert_close(judged(dataset, model, expected), scores)
    state = phase.state()
    torch.testing.assert_close(state["vectors"], expected)
    loss_of(phase, phase.plan(0, 0, 0)).backward()  # constants made while judging serve training
    other = build()[1:]
    other[1].load_state(state)
    other[0]._dataset = None  # neither features nor graph are asked for
    assert torch.equal(judged(dataset, other[0], expected), scores)


def test_users_and_items_without_training_events_have_vectors():
    _, model, _ = build()
    vectors = model.all_vectors()
    assert torch.isfinite(vectors).all()
    assert len(vectors) == ITEMS + USERS
    assert vectors[8].abs().sum() > 0  # an item that only its features tell of


def test_a_user_with_all_items_is_refused():
    dataset = modal_dataset()
    keep = dataset.interactions.user == 3
    dataset.part[~keep] = 1
    model = MMGCN(MMGCNOptions(width=4), Sizes.of(dataset))
    with pytest.raises(DataError, match=r"all 1 items of the training part"):
        model.phases(dataset, TrainingOptions())


@pytest.mark.parametrize(("width", "dtype", "apart"), [
    (1024, torch.float32, 1040), (512, torch.float64, 520), (1000, torch.float32, 1000),
    (2048, torch.bfloat16, 2080),
])  # fmt: skip
def test_rows_of_constants_do_not_begin_at_whole_pages(width, dtype, apart, monkeypatch):
    monkeypatch.setattr(modal_data, "onednn_is_faster", lambda: False)
    made = torch.randn(3, width).to(dtype)
    kept = Constants()("some", torch.zeros(1, dtype=dtype), lambda: made)
    assert kept.stride() == (apart, 1)
    assert torch.equal(kept, made)


def test_rows_of_constants_have_no_gaps_where_onednn_multiplies(monkeypatch):
    monkeypatch.setattr(modal_data, "onednn_is_faster", lambda: True)
    made = torch.randn(3, 1024)
    assert Constants()("some", torch.zeros(1), lambda: made).is_contiguous()
