"""Features of events: the equation and its gradients, no leak, what they predict, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import hasten
from hasten.data.event_features import EventEntries
from hasten.data.tables import TRAIN, VALID
from hasten.errors import HastenError
from hasten.evaluation.protocols import ranking_task
from hasten.influence.support import choose_method
from hasten.models.interface import Sizes
from hasten.models.sequential.base import SequentialModel, SequentialOptions
from hasten.models.sequential.sasrec import SASRec
from hasten.models.sequential.tisasrec import TiSASRec
from hasten.scoring import RecommenderQueries
from hasten.verify import verify
from tests.models.sequential.equations import (
    LENGTH,
    build,
    phase_of,
    random_histories,
    reference_loss,
    reference_states,
)

VALUES = 6


def described(seed=3):
    """Random histories, whose events have two categories and a number, some of them missing."""
    histories, generator = random_histories(), np.random.default_rng(seed)
    count = len(histories.items)
    value = np.stack(
        [generator.integers(0, 3, count), generator.integers(3, 5, count), np.full(count, 5)], 1
    )
    weight = np.ones((count, 3), np.float32)
    weight[:, 2] = generator.standard_normal(count) * (generator.random(count) < 0.8)
    return replace(histories, features=EventEntries(value.astype(np.int32), weight))


@pytest.mark.parametrize("kind", [SASRec, TiSASRec])
@pytest.mark.parametrize(
    "options",
    [{"loss": "ce"}, {"loss": "bce", "negatives": 2, "heads": 2}, {"loss": "ce", "block": "ligr"}],
    ids=["ce", "bce", "ligr"],
)
def test_the_equation_and_its_gradients(kind, options):
    model, histories = build(kind, event_values=VALUES, **options), described()
    phase = phase_of(model, histories, options.get("negatives", 0))
    batch = phase.plan(0, 0, 0)
    micro_batch = phase.build_micro_batch(batch, batch.ids.numpy())
    expected = reference_loss(model, histories, micro_batch.negatives)
    found = phase.terms((), batch, batch.ids)[0].numerator
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    parameters = dict(model.named_parameters())
    wanted = torch.autograd.grad(expected, list(parameters.values()))
    for name, one, other in zip(
        parameters, torch.autograd.grad(found, list(parameters.values())), wanted, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10, msg=name)
        if name == "event_inputs.weight":
            assert one.abs().amax(1).min() > 0


@pytest.mark.parametrize("kind", [SASRec, TiSASRec])
def test_queries_are_the_states_of_the_last_events(kind):
    model, histories = build(kind, event_values=VALUES).eval(), described()
    found = model.query_vectors(RecommenderQueries(np.arange(9), histories))
    for user in range(9):
        rows = np.arange(histories.offsets[user], histories.offsets[user + 1])[-LENGTH:]
        states = reference_states(
            model, histories.items[rows], histories.times[rows].tolist(),
            histories.features.take(rows),
        )  # fmt: skip
        torch.testing.assert_close(found[user], states[-1])


@pytest.mark.parametrize("kind", [SASRec, TiSASRec])
def test_residual_streams_get_them_too(kind):
    """mHC: each stream begins with the input, whose features are a part of it."""
    model, histories = build(kind, event_values=VALUES, residual="mhc").eval(), described()
    queries = RecommenderQueries(np.arange(9), histories)
    zero = np.zeros_like(histories.features.weight)
    without = replace(histories, features=EventEntries(histories.features.value, zero))
    plain = build(kind, residual="mhc").eval()
    plain.load_state_dict({n: t for n, t in model.state_dict().items() if "event" not in n})
    torch.testing.assert_close(
        model.query_vectors(RecommenderQueries(np.arange(9), without)),
        plain.query_vectors(RecommenderQueries(np.arange(9), random_histories())),
        rtol=0, atol=0,
    )  # fmt: skip
    # a feature that is the same for all events is a vector added to every item
    constant = EventEntries(np.full_like(histories.features.value[:, :1], 4), zero[:, :1] + 1)
    same = RecommenderQueries(np.arange(9), replace(histories, features=constant))
    with torch.no_grad():
        shift = model.event_inputs.weight[4] / model.options.width**0.5
        plain.items.weight += shift
    torch.testing.assert_close(
        model.query_vectors(same), plain.query_vectors(replace_user(queries, random_histories()))
    )


def replace_user(queries, histories):
    return RecommenderQueries(queries.user, histories)


@pytest.mark.parametrize("kind", [SASRec, TiSASRec])
def test_the_last_event_of_training_has_no_features_in_any_input(kind):
    """It is a target only: any features of it give the same loss."""
    model, histories = build(kind, event_values=VALUES), described()
    changed = histories.features.take(np.arange(len(histories.items)))
    changed.value[histories.offsets[1:] - 1] = 0
    changed.weight[histories.offsets[1:] - 1] = 7
    losses = []
    for each in (histories, replace(histories, features=changed)):
        phase = phase_of(model, each)
        batch = phase.plan(0, 0, 0)
        losses.append(phase.terms((), batch, batch.ids)[0].numerator.item())
    assert losses[0] == losses[1]


KINDS, EACH, USERS = 6, 4, 240
SMALL = {"model.width": 16, "model.dropout": 0.1, "training.average": None, "threads": 1}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """The channel of an event determines the kind of the next item, which its item does not.

    The price that is paid is noise, and missing in places.
    """
    path = tmp_path_factory.mktemp("planted") / "events.csv"
    generator, rows = np.random.default_rng(0), ["user,item,time,channel,price"]
    for user in range(USERS):
        kind = int(generator.integers(KINDS))
        for time in range(8):
            item = kind * EACH + int(generator.integers(EACH))
            kind = int(generator.integers(KINDS))
            price = f"{generator.normal(20, 5):.2f}" if generator.random() < 0.9 else ""
            rows.append(f"{user},i{item},{1000 * time},c{kind},{price}")
    path.write_text("\n".join(rows) + "\n")
    return path


def train(path, name, model="sasrec", columns="channel,price", **settings):
    features = {"data.event_features": columns} if columns else {}
    return hasten.train(
        model, path, settings={**SMALL, **features, **settings}, out=path.parent / name, epochs=14,
        lr=1e-2, batch_size=16, metrics="recall", topk=EACH, quiet=True,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(planted):
    return train(planted, "run")


@pytest.mark.parametrize("model", ["sasrec", "tisasrec"])
def test_what_only_the_feature_predicts(model, planted, run):
    metric = f"recall@{EACH}"
    found = run if model == "sasrec" else train(planted, "timed", model)
    without = train(planted, f"{model}-without", model, columns=None)
    assert found.valid_metrics[metric] > 0.9  # the items of the kind come first
    assert without.valid_metrics[metric] < 0.35  # 4 of 24 items by chance: 0.17


def test_the_event_to_be_predicted_gives_nothing_away(run):
    """Any features of the events of valid and test give the same scores."""
    dataset, model = run.loaded.dataset, run.loaded.model
    options = run.loaded.config.evaluation
    changed = dataset.event_features.take(np.arange(len(dataset.part)))
    for cells in changed.cells:
        cells[dataset.part != TRAIN] = 3 if cells.dtype == np.int32 else 99.0
    other = replace(dataset, event_features=changed)
    assert not np.array_equal(changed.entries.value, dataset.event_features.entries.value)
    scores = [
        model.scorer(ranking_task(each, VALID, options, 0).queries).block(0, KINDS * EACH)
        for each in (dataset, other)
    ]
    assert torch.equal(*scores)


def test_influence_is_refused(run):
    with pytest.raises(HastenError, match="does not support influence"):
        choose_method(run.loaded.model, "sasrec", None, None, None)


def test_a_model_that_would_not_read_them_is_refused():
    class Plain(SequentialModel):
        name = "plain"

        def encode(self, rows_TD, batch):
            return rows_TD

    with pytest.raises(HastenError, match="no effect on plain"):
        Plain(SequentialOptions(name="plain"), Sizes(users=2, items=3, event_values=2))


@pytest.mark.parametrize("model", ["pop", "ease", "bprmf"])
def test_models_of_other_data_refuse_the_option(model, planted):
    with pytest.raises(HastenError, match=r"data\.event_features"):
        train(planted, f"never-{model}", model)


def test_an_update_brings_new_values(run, planted):
    """Known rows keep their weights; numbers stay standardized as in the run."""
    new = planted.parent / "new.csv"
    rows = [f"{user},i{user % 24},{9000 + 10 * t},{'extra' if t else 'c2'},{99 + t}"
            for user in range(40) for t in range(3)]  # fmt: skip
    new.write_text("\n".join(["user,item,time,channel,price", *rows]) + "\n")
    updated = hasten.update(
        run.path, new, out=planted.parent / "updated", quiet=True, epochs=1,
        settings={"training.lr": 1e-12},
    ).loaded  # fmt: skip
    old, data = run.loaded.dataset.event_features, updated.dataset
    channel, price = data.event_features.columns
    assert channel.values == (*old.columns[0].values, "extra")
    assert price == old.columns[1]
    added = data.interactions.time >= 9000
    assert data.event_features.cells[1][added].tolist() == [99, 100, 101] * 40
    assert data.event_features.cells[0][added].tolist() == [2, KINDS, KINDS] * 40
    assert np.array_equal(
        np.sort(data.event_features.cells[1][~added]), np.sort(old.cells[1]), equal_nan=True
    )
    before = run.loaded.model.event_inputs.weight
    after = updated.model.event_inputs.weight
    torch.testing.assert_close(after[: KINDS + 1], before[: KINDS + 1], rtol=0, atol=1e-6)
    torch.testing.assert_close(after[-1], before[-1], rtol=0, atol=1e-6)  # the price
    assert len(after) == len(before) + 1


def test_an_update_needs_the_columns(run, planted):
    new = planted.parent / "few.csv"
    new.write_text("user,item,time,channel\n1,i1,9000,c1\n")
    with pytest.raises(HastenError, match=r"event_features=price, but the header has no such"):
        hasten.update(run.path, new, out=planted.parent / "refused", quiet=True)
    with pytest.raises(HastenError, match=r"data\.event_features cannot change in an update"):
        hasten.update(
            run.path, new, out=planted.parent / "refused", quiet=True,
            settings={"data.event_features": "channel"},
        )  # fmt: skip


def test_another_run_begins_with_the_known_values(run, planted):
    """init_from: rows of other data are matched by column and value."""
    other = planted.parent / "other.csv"
    other.write_text(planted.read_text().replace(",c0,", ",zero,"))
    settings = {**SMALL, "data.event_features": "channel,price", "init_from": str(run.path)}
    second = hasten.train(
        "sasrec", other, settings=settings, out=planted.parent / "second", epochs=1, lr=1e-12,
        quiet=True,
    ).loaded  # fmt: skip
    labels = second.dataset.event_features.labels.to_pylist()
    places = [labels.index(label) for label in run.loaded.dataset.event_features.labels.to_pylist()
              if label != "channel\tc0"]  # fmt: skip
    before = run.loaded.model.event_inputs.weight
    kept = [i for i in range(len(before)) if i != 1]
    after = second.model.event_inputs.weight
    torch.testing.assert_close(after[places], before[kept], rtol=0, atol=1e-6)
    assert labels.index("channel\tzero") not in places


def test_similar_items_and_vectors(run):
    vectors = run.loaded.user_vectors("train").vectors
    dataset = run.loaded.dataset
    known = dataset.histories(TRAIN)
    queries = RecommenderQueries(np.arange(USERS), known)
    with torch.no_grad():
        expected = run.loaded.model.query_vectors(queries)
    np.testing.assert_allclose(vectors, expected, 1e-4, 1e-5)
    assert len(run.loaded.similar_items("i1", 3)) == 3


def test_a_repetition_is_the_same(run):
    assert verify(run.path)["same"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["sasrec", "tisasrec"])
def test_two_processes_train_the_same_weights(model, planted):
    weights = []
    for devices in (1, 2):
        loaded = hasten.train(
            model, planted, out=planted.parent / f"{model}-{devices}", epochs=2, quiet=True,
            settings={**SMALL, "model.dropout": 0.0, "data.event_features": "channel,price",
                      "devices": devices, "device": "cpu"},
        ).loaded  # fmt: skip
        weights.append(loaded.model.state_dict())
    for name, one in weights[0].items():
        torch.testing.assert_close(weights[1][name], one, rtol=0, atol=1e-5, msg=name)
