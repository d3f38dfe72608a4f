"""Initialize a run from the weights of another (``init_from``), matched by the ids of the data."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hasten.build import load_weights
from hasten.config import RunConfig
from hasten.data.store import DESCRIPTION, fingerprint, load_stored
from hasten.data.tables import AnyDataset
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import shared_checkpoint
from hasten.errors import CheckpointError, DataError
from hasten.models.interface import Model
from hasten.models.rows import Kind, KnownRows, grown_weights
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.resuming import read_initial_checkpoint
from hasten.runs.run_folder import RunFolder


def initial_checkpoint(processes: Processes, config: RunConfig) -> Checkpoint | None:
    """Read the checkpoint of ``init_from``, on every process; None if there is none."""
    if config.init_from is None:
        return None
    source = Path(config.init_from)
    return shared_checkpoint(processes, lambda: read_initial_checkpoint(source))


def apply_initial_weights(
    model: Model, checkpoint: Checkpoint | None, dataset: AnyDataset
) -> Sequence[str]:
    """Initialize the model from a checkpoint, if there is one; it may be one of another model.

    If the checkpoint is in a run with other users, items, entities or relations, their rows are
    matched by label, and new ones begin as in an update. Returns notes on what was matched.

    Raises:
        CheckpointError: the weights do not fit the model, or no label is known.
    """
    # adopt converts the weights of another model; False: they are this model's own
    if checkpoint is None or model.adopt(checkpoint.tensors["weights"]):
        return ()
    known = _known_rows(checkpoint, dataset) if model.rows_of() else None
    if known is None or known.same:
        load_weights(model, checkpoint)
        return ()
    old = checkpoint.tensors["weights"]
    try:
        weights = grown_weights(old, model.state_dict(), model.rows_of(), known, dataset)
    except DataError as error:
        raise CheckpointError(
            f"{checkpoint.path}: its weights do not fit this model: {error}"
        ) from error
    counts = {
        kind: (int((rows >= 0).sum()), len(rows))
        for kind, rows in known.old_row.items()
        if any(kind in rows.blocks for rows in model.rows_of().values())
    }
    if not any(matched for matched, _ in counts.values()):
        raise CheckpointError(
            f"{checkpoint.path}: none of its {' or '.join(counts)} occur in these data, so its "
            "weights cannot be matched by label"
        )
    model.load_state_dict(weights)
    matched_counts = ", ".join(
        f"{matched:,} of {size:,} {_words(kind)}" for kind, (matched, size) in counts.items()
    )
    return (f"init_from: weights of {matched_counts} are taken over by label",)


def _words(kind: Kind) -> str:
    words: dict[Kind, str] = {
        "node_types": "node types",
        "plain_nodes": "nodes without features",
        "item_values": "values of item features",
        "event_values": "values of event features",
    }
    return words.get(kind, kind)


def _known_rows(checkpoint: Checkpoint, dataset: AnyDataset) -> KnownRows | None:
    """The ids of the run that the checkpoint is in, matched by label.

    None if it is in no run, or the data are the same.
    """
    place = checkpoint.path.resolve()
    run = next((each for each in place.parents[:2] if RunFolder.holds_run(each)), None)
    if run is None:
        return None
    with suppress(OSError, ValueError, KeyError):
        described = json.loads((run / "data" / DESCRIPTION).read_text("utf-8"))
        if described["fingerprint"] == fingerprint(dataset):
            return None
    return KnownRows.of(load_stored(run / "data"), dataset)
