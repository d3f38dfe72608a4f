"""Turn a checkpoint of another library into a run folder."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.config_loading.build import build_config
from hasten.distributed.processes import Processes
from hasten.errors import CheckpointError, ConfigurationError, UsageError
from hasten.importing.read import read_weights
from hasten.importing.rows import find_rows
from hasten.importing.source import Source, Weights, find_source, load_into
from hasten.importing.sources import attention, pairs, triples, typed_graph
from hasten.new_run import new_run
from hasten.runs.allocator import configure_process
from hasten.runs.summary import Summary
from hasten.training_run import open_run

SOURCES: tuple[Source, ...] = (
    attention.SASREC,
    attention.TISASREC,
    attention.RECBOLE_SASREC,
    triples.CONVE,
    triples.PYKEEN_CONVE,
    triples.DISTMULT,
    triples.COMPLEX,
    pairs.BPR,
    pairs.LIGHTGCN,
    pairs.LIGHTGCN_AUTHORS,
    pairs.KGAT_TORCH,
    pairs.KGAT_RECBOLE,
    pairs.MMGCN_MMREC,
    pairs.DRAGON_MMREC,
    typed_graph.HGT_PYG,
)


def import_weights(
    file: Path,
    model: str,
    data: str,
    rows: Mapping[str, str],
    *,
    config: Path | None = None,
    sets: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    renames: Mapping[str, str] | None = None,
    approximate: bool = False,
    quiet: bool = False,
) -> Summary:
    """Make a run folder of a checkpoint, with its weights as epoch 0, and evaluate it.

    rows: where the rows of ``users``, ``items``, ``entities`` and ``relations`` come from, see
    :mod:`.rows`. renames: beginnings of names in the file, and those that a source has instead.
    approximate: import weights whose scores differ for some queries. Raises HastenError.
    """
    configure_process()
    start_time = time.perf_counter()
    weights = _renamed(read_weights(file), renames or {})
    source = find_source(SOURCES, model, weights)
    chosen = _configured(source, weights, data, config, sets, flags or {})
    with (
        Processes.join(chosen.device, chosen.distributed) as processes,
        new_run(processes, chosen, None, quiet, start_time) as setup,
    ):
        imported, dataset = setup.model, setup.dataset
        try:
            matched = find_rows(dataset, source.tables(weights), rows)
            load_into(imported, source.convert(weights, matched.of, imported, dataset))
            source.finish(weights, matched.of, imported)
            problem = source.inexact(weights, matched.of, dataset, imported)
            if problem is not None and not approximate:
                raise CheckpointError(f"{source.title}: {problem}. --approximate imports it anyway")
        except BaseException:
            setup.folder.discard()
            raise
        notes = [f"weights: {file}, {source.title}", *matched.notes]
        notes += [] if problem is None else [f"approximate: {problem}"]
        with open_run(setup, None) as training:
            for note in notes:
                training.journal.log_train(note)
            trainer = training.trainer
            if trainer.evaluate is not None:  # so that resuming keeps the imported best
                imported.eval()
                stopping = trainer.state.early_stopping
                stopping.update(trainer.evaluate().values[stopping.metric], 0)
                trainer.write(setup.folder.best)
            trainer.save()
            return training.summarize("imported")


def _renamed(weights: Weights, renames: Mapping[str, str]) -> dict[str, Any]:
    """The weights by the names that a source has. Raises UsageError for a rename without effect."""
    renamed = dict(weights)
    for old, new in renames.items():
        hit = [name for name in renamed if name == old or name.startswith(f"{old}.")]
        if not hit:
            names = ", ".join(list(renamed)[:20])
            raise UsageError(f"--rename {old}={new}: no tensor is called so; there are {names}")
        renamed |= {new + name.removeprefix(old): renamed.pop(name) for name in hit}
    return renamed


def _configured(
    source: Source,
    weights: Weights,
    data: str,
    config: Path | None,
    sets: Sequence[str],
    flags: Mapping[str, Any],
) -> RunConfig:
    """The configuration: what follows from the shapes, and what was given.

    Raises ConfigurationError if a key is missing that does not follow from the shapes.
    """
    follows = [f"{key}={value}" for key, value in source.settings(weights).items()]
    chosen = build_config(source.model, data, config, [*follows, *sets], flags)
    if lacking := [key for key in source.asks if not chosen.gives(key)]:
        missing = "; ".join(f"{source.asks[key]}: --set {key}=..." for key in lacking)
        raise ConfigurationError(f"{source.title}: {missing}")
    return chosen
