"""``hasten influence``: load the run, choose the tests, run TracIn, and build the rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import pyarrow as pa
import torch

from hasten.arrays import Int64
from hasten.build import build_model, load_weights
from hasten.config import RunConfig
from hasten.config_loading.build import load_config
from hasten.data.mapped_datasets import in_memory
from hasten.data.store import load_stored
from hasten.data.tables import TRAIN, AnyDataset, Dataset, KnowledgeGraph
from hasten.distributed.device import prepare_torch
from hasten.distributed.processes import Processes
from hasten.errors import UsageError
from hasten.influence.autograd import AutogradSource
from hasten.influence.checkpoints import choose_checkpoints
from hasten.influence.events import FactoredEvents
from hasten.influence.factored import FactoredSource
from hasten.influence.factors import Arithmetic, Layers, Loss
from hasten.influence.losses import EventLosses, TripleLosses
from hasten.influence.queries import Selection, select_events, select_triples
from hasten.influence.result import (
    InfluenceRows,
    Influences,
    Table,
    event_columns,
    influence_table,
    self_rows,
    test_rows,
    triple_columns,
)
from hasten.influence.sketch import Sketch
from hasten.influence.support import Method, choose_method, encoder_of
from hasten.influence.trace import Checkpoint, Limits, Source, trace, trace_self
from hasten.influence.triples import Answers, FactoredTriples, TripleFactors
from hasten.models.interface import Model
from hasten.models.knowledge_graph.factorized import FactorizedTripleModel
from hasten.objectives.completion import CompletionPhase
from hasten.objectives.next_item import NextItemPhase
from hasten.ops.random import Stream, key, uniform
from hasten.runs.allocator import configure_process
from hasten.runs.checkpoint import read_checkpoint
from hasten.runs.run_folder import RunFolder
from hasten.scoring import RecommenderQueries
from hasten.training.schedule import Schedule

Precision = Literal["fp32", "bf16", "fp64"]
P = TypeVar("P", CompletionPhase, NextItemPhase)


@dataclass(frozen=True)
class Options:
    """How influence is computed; see docs/influence.md. loss, layers: None for the default."""

    loss: Loss | None = None
    layers: Layers | None = None
    checkpoints: str = "best"
    topk: int | None = 20
    sample_rate: float = 1.0
    projection: int | None = None
    seed: int = 0
    memory: int = 2 << 30
    block: int = 512
    precision: Precision = "fp32"

    @property
    def method(self) -> str:
        """``exact``, or the approximations; a column of every row."""
        approximations = []
        if self.sample_rate < 1:
            approximations.append(
                f"approximate: {self.sample_rate:g} of the training examples sampled"
            )
        if self.projection is not None:
            approximations.append(f"approximate: gradients projected to {self.projection} numbers")
        return "; ".join(approximations) or "exact"

    @property
    def of_factors(self) -> str | None:
        """The option that only factored gradients support, if it is given."""
        if self.projection is not None:
            return "--projection"
        return "--precision bf16" if self.precision == "bf16" else None


@dataclass(frozen=True)
class LoadedRun:
    """A run: its model, still without weights, its data, and the chosen checkpoints."""

    config: RunConfig
    dataset: AnyDataset
    model: Model
    checkpoints: Sequence[Checkpoint]
    method: Method
    arithmetic: Arithmetic


def compute_influence(
    run: Path,
    selection: Selection,
    options: Options,
    *,
    device: str | None = None,
    quiet: bool = False,
) -> Influences:
    """The influence of training examples on the selected tests. Raises HastenError.

    Every process returns the same.
    """
    start_time = time.perf_counter()
    configure_process()
    RunFolder.open(run, lock=False)
    distributed = load_config(run / "config.yaml").distributed
    with Processes.join(device or "auto", distributed) as processes:
        loaded = processes.run_on_all_ranks(
            "loading the run", lambda: _load(run, options, processes)
        )
        graph = isinstance(loaded.dataset, KnowledgeGraph)
        prepare = _triples if graph else _events
        source, table_of = processes.run_on_all_ranks(
            "reading the test examples", lambda: prepare(loaded, selection, options)
        )
        limits = Limits(options.memory, options.block)
        checkpoints = loaded.checkpoints
        if selection.empty:
            norms = trace_self(source, checkpoints, limits=limits, processes=processes, quiet=quiet)
            table = table_of(self_rows(norms, options.topk))
        else:
            assert options.topk is not None
            best = trace(
                source, checkpoints, topk=options.topk, limits=limits, processes=processes,
                quiet=quiet,
            )  # fmt: skip
            table = table_of(test_rows(*best))
        about = {
            "run": run,
            "model": loaded.config.model.name,
            "checkpoints": [
                {"name": c.name, "epoch": c.epoch, "step": c.step, "lr": c.lr} for c in checkpoints
            ],
            "loss": loaded.method.loss,
            "layers": loaded.method.layers,
            "method": options.method,
            "exact": options.method == "exact",
            "precision": options.precision,
            "tests": source.examples.tests,
            "train": source.examples.terms_of.shape[1],
            "rows": table.num_rows,
            "devices": processes.world,
            "seconds": time.perf_counter() - start_time,
        }
    return Influences(table, about)


def _load(run: Path, options: Options, processes: Processes) -> LoadedRun:
    """The run without weights. Raises UsageError if its model does not support the options."""
    with RunFolder.open(run, lock=False) as folder:
        config = load_config(folder.path / "config.yaml")
        dataset = in_memory(load_stored(folder.data))
        prepare_torch(
            config.threads, config.training.deterministic, processes.device, processes.launch
        )
        model = build_model(config, dataset, processes.device).eval()
        method = choose_method(
            model, config.model.name, options.loss, options.layers, options.of_factors
        )

        def lr_at(step: int) -> float:
            phases = model.phases(dataset, config.training)
            return Schedule.of(config.training, sum(phase.steps() for phase in phases)).at(step)

        read: list[Path] = []

        def load(path: Path) -> None:
            if read[-1:] != [path]:  # a single checkpoint is read once
                load_weights(model, read_checkpoint(path, groups={"weights"}))
                read.append(path)

        checkpoints = choose_checkpoints(folder, options.checkpoints, lr_at, load)
    if options.precision == "fp64":
        model = model.double()
    low = torch.bfloat16 if options.precision == "bf16" else None
    return LoadedRun(config, dataset, model, checkpoints, method, Arithmetic(low))


def _triples(run: LoadedRun, selection: Selection, options: Options) -> tuple[Source, Table]:
    """The source of a run of triples, and the table of its rows."""
    graph, method = run.dataset, run.method
    assert isinstance(graph, KnowledgeGraph)
    tests = select_triples(graph, selection, run.config.data)
    chosen = sampled(len(graph.of(TRAIN)), options)
    source: Source
    if method.factored:
        encoder = encoder_of(run.model, run.arithmetic)
        assert encoder is not None
        factors = TripleFactors(
            cast(FactorizedTripleModel, run.model), encoder, Answers.build(graph), method.loss,
            method.layers, run.arithmetic,
        )  # fmt: skip
        sketch = sketch_of(options, len(graph.entities), 2 * len(graph.relations))
        examples = FactoredTriples(graph, factors, tests, chosen)
        source = FactoredSource(examples, run.arithmetic, sketch)
    else:
        phase = _single_phase(run, CompletionPhase)
        losses = TripleLosses(phase, graph, tests, chosen, run.config.seed)
        source = AutogradSource(cast(Any, run.model), losses)
    train = graph.of(TRAIN).take(chosen)

    def table(rows: InfluenceRows) -> pa.Table:
        of_tests = triple_columns(graph, tests.take(rows.test), "test_") if len(tests) else {}
        of_train = triple_columns(graph, train.take(rows.example))
        return influence_table(rows, of_tests, of_train, options.method)

    return source, table


def _events(run: LoadedRun, selection: Selection, options: Options) -> tuple[Source, Table]:
    """The source of a run of interactions, and the table of its rows."""
    dataset = run.dataset
    assert isinstance(dataset, Dataset)
    users, items = select_events(dataset, selection)
    histories = dataset.histories(*selection.known).take(users)
    phase = _single_phase(run, NextItemPhase)
    chosen = sampled(int(phase.target_counts.sum()), options)
    examples: FactoredEvents | EventLosses
    source: Source
    if run.method.factored:
        queries = RecommenderQueries(users, histories)
        examples = FactoredEvents(
            cast(Any, run.model), phase, queries, items, run.method.loss, run.arithmetic, chosen
        )
        sketch = sketch_of(options, len(dataset.items))
        source = FactoredSource(examples, run.arithmetic, sketch)
    else:
        examples = EventLosses(phase, histories, items, chosen, run.config.seed, len(dataset.items))
        source = AutogradSource(cast(Any, run.model), examples)

    def table(rows: InfluenceRows) -> pa.Table:
        of_tests = {}
        if len(users):
            of_tests = event_columns(dataset, users[rows.test], items[rows.test], "test_")
        user, item, position = examples.events(rows.example)
        of_train = event_columns(dataset, user, item) | {"position": position + 1}
        return influence_table(rows, of_tests, of_train, options.method)

    return source, table


def _single_phase(run: LoadedRun, kind: type[P]) -> P:
    """The model's only training phase. Raises UsageError if it is of another kind."""
    phases = run.model.phases(run.dataset, run.config.training)
    if len(phases) != 1 or not isinstance(phases[0], kind):
        raise UsageError(
            f"{run.config.model.name} does not support influence: it is not trained by a single "
            f"{kind.__name__}"
        )
    return phases[0]


def sampled(count: int, options: Options) -> Int64:
    """int64 the training examples to evaluate, each with the probability of the sample rate."""
    every = np.arange(count, dtype=np.int64)
    if options.sample_rate >= 1:
        return every
    random = uniform(key(options.seed, Stream.INFLUENCE, 0), torch.from_numpy(every)).numpy()
    chosen = every[random < options.sample_rate]
    if not len(chosen):
        raise UsageError(
            f"--sample-rate {options.sample_rate:g}: none of the {count:,} training examples is "
            "left; give a larger one"
        )
    return chosen


def sketch_of(options: Options, rows: int, relations: int = 0) -> Sketch | None:
    """The random projection, if one is given."""
    if options.projection is None:
        return None
    return Sketch(options.projection, options.seed, rows, relations)
