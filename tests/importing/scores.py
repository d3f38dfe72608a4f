"""Import a checkpoint into a run, and the scores of that run by label."""

from __future__ import annotations

import numpy as np
import torch

from hasten.importing.run import import_weights
from hasten.loaded_run import load_run
from hasten.scoring import RecommenderQueries, TripleQueries


def imported(tmp_path, weights, model, data, rows, sets=(), **more):
    """The loaded run of these weights."""
    file = tmp_path / "weights.pth"
    torch.save(weights, file)
    flags = {"out": tmp_path / "run", "device": "cpu"}
    import_weights(file, model, str(data), rows, sets=sets, flags=flags, quiet=True, **more)
    return load_run(tmp_path / "run", device="cpu")


def user_scores(run, *parts):
    """The labels of users and items, and [U, N] the scores after these parts."""
    dataset = run.dataset
    queries = RecommenderQueries(np.arange(len(dataset.users)), dataset.histories(*parts))
    with torch.no_grad(), run.model.encoded_once():
        scores = run.model.scorer(queries).block(0, len(dataset.items))
    return dataset.users.labels.to_pylist(), dataset.items.labels.to_pylist(), scores


def tail_scores(run, head, relation):
    """[N] the scores of all entities as tails of a query by label; relation + R: of heads."""
    queries = TripleQueries(np.array([head]), np.array([relation]))
    with torch.no_grad():
        return run.model.scorer(queries).block(0, len(run.dataset.entities))[0]
