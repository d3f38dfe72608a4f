"""``model.exclude_self``: entities are ranked last as answers to their own queries."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hasten import load, train
from hasten.models.interface import Sizes
from hasten.models.self_links import self_link_scores
from hasten.registry import load_model
from hasten.scoring import TripleQueries

MODELS = ("distmult", "complex", "tucker", "conve", "rotate")
WIDTH = {"distmult": 8, "complex": 8, "tucker": 8, "conve": 100, "rotate": 8}


@pytest.fixture
def graph(tmp_path):
    """a is next to b, and back; likes links x to itself; rare has no training triple."""
    parts = {
        "train": ["a next b", "b next a", "c next d", "x likes x", "x likes a", "d likes c"],
        "valid": ["d next c", "a rare b"],
        "test": ["a next c"],
    }
    for part, lines in parts.items():
        text = "".join("\t".join(line.split()) + "\n" for line in lines)
        (tmp_path / f"{part}.tsv").write_text(text)
    return tmp_path


def trained(graph, model, **settings):
    return train(
        model,
        graph,
        epochs=1,
        threads=1,
        quiet=True,
        out=graph / f"run-{model}-{settings.get('model.exclude_self')}",
        settings={"data.unknown": "keep", "model.width": WIDTH[model], **settings},
    )


@pytest.mark.parametrize("model", MODELS)
def test_only_entities_of_their_own_queries_are_last_and_only_without_self_links(graph, model):
    settings = {"model.loss": "sampled"} if model != "rotate" else {}
    run = trained(graph, model, **settings).loaded
    data, found = run.dataset, run.model.eval()
    assert found.options.exclude_self
    entities, relations = len(data.entities), len(data.relations)
    names = data.relations.labels.to_pylist()
    lists = dict(zip(names, self_link_scores(data)[:relations].tolist(), strict=True))
    assert lists == {"next": -1e9, "likes": 0, "rare": 0}

    every = np.arange(entities)
    for name in names:
        for relation in (names.index(name), names.index(name) + relations):
            queries = TripleQueries(every, np.full(entities, relation))
            with torch.no_grad():
                scores = found.scorer(queries).block(0, entities)
                halves = [
                    found.scorer(queries).block(0, 2),
                    found.scorer(queries).block(2, entities),
                ]
                kept, found.self_link_scores = found.self_link_scores, None
                plain = found.scorer(queries).block(0, entities)
                found.self_link_scores = kept
            expected = plain.clone()
            expected.diagonal().add_(lists[name])
            torch.testing.assert_close(scores, expected)
            torch.testing.assert_close(torch.cat(halves, 1), expected)


@pytest.mark.parametrize("model", MODELS)
def test_the_option_changes_no_training_and_a_run_without_it_loads_as_before(graph, model):
    runs = [trained(graph, model, **{"model.exclude_self": on}) for on in (True, False)]
    first, second = (dict(run.loaded.model.state_dict()) for run in runs)
    assert list(first) == list(second)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert load(runs[1].loaded.path).model.self_link_scores is None


def test_an_entity_is_no_answer_to_its_own_query(graph):
    # untrained embeddings of a distmult: an entity is closest to itself
    run = trained(graph, "distmult").loaded
    data, model = run.dataset, run.model.eval()
    with torch.no_grad():
        model.entities.weight.copy_(torch.eye(len(data.entities), 8))
        model.relations.weight.fill_(1.0)
    a, b = (data.entities.labels.to_pylist().index(name) for name in "ab")
    relation = data.relations.labels.to_pylist().index("next")
    scorer = model.scorer(TripleQueries(np.array([a]), np.array([relation])))
    with torch.no_grad():
        scores = scorer.block(0, len(data.entities))[0]
    assert int(scores.argmin()) == a
    model.self_link_scores = None
    with torch.no_grad():
        scores = model.scorer(TripleQueries(np.array([a]), np.array([relation]))).block(0, 5)[0]
    assert int(scores.argmax()) == a
    assert b != a


def test_models_without_the_data_rank_all_entities():
    kind = load_model("distmult")
    model = kind(kind.Options(width=4, exclude_self=True), Sizes(entities=3, relations=1))
    assert model.self_link_scores is None
