"""``hasten influence``, whole: a run's checkpoints, what is asked, the passes, the rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import nn

from hasten.arrays import Int64
from hasten.build import build_model, load_weights
from hasten.config import RunConfig
from hasten.configuration.build import load_config
from hasten.data.store import load_stored
from hasten.data.tables import TRAIN, VALID, AnyDataset, Dataset, KnowledgeGraph, Triples
from hasten.distributed.device import prepare_torch
from hasten.distributed.processes import Processes
from hasten.errors import UsageError
from hasten.influence.checkpoints import Traced, choose
from hasten.influence.completion import CompletionFactors, TripleSource, training_answers
from hasten.influence.factors import Arithmetic, Layers, Loss
from hasten.influence.next_item import EventSource, without_draws
from hasten.influence.queries import (
    events_of,
    part_of_events,
    part_of_graph,
    require_history,
    triples_of,
)
from hasten.influence.result import (
    Found,
    Influences,
    event_table,
    of_examples,
    of_tests,
    triple_table,
)
from hasten.influence.sketch import Sketch
from hasten.influence.support import body_of, require_traceable
from hasten.influence.trace import Limits, Weighted, trace, trace_self
from hasten.models.knowledge_graph.base import TripleModel
from hasten.ops.random import Stream, key, uniform
from hasten.runs.allocator import tune_process
from hasten.runs.checkpoint import read_checkpoint
from hasten.runs.run_folder import RunFolder
from hasten.scoring import RecommenderQueries
from hasten.training.schedule import Schedule

Precision = Literal["fp32", "bf16", "fp64"]


@dataclass(frozen=True)
class Asked:
    """What is to be explained; all absent: every training example by itself.

    labels: triples (h, r, t), or events (user, item) or (user,); part: valid or test; limit: at
    most so many tests.
    """

    labels: Sequence[tuple[str, ...]] | None = None
    part: str | None = None
    limit: int | None = None

    @property
    def itself(self) -> bool:
        return self.labels is None and self.part is None


@dataclass(frozen=True)
class Options:
    """How it is traced; docs/influence.md says what each means."""

    loss: Loss = "positive"
    layers: Layers = "all"
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
        """``exact``, or by which approximations; a column of every row."""
        said = []
        if self.sample_rate < 1:
            said.append(f"approximate: {self.sample_rate:g} of the training examples sampled")
        if self.projection is not None:
            said.append(f"approximate: gradients projected to {self.projection} numbers")
        return "; ".join(said) or "exact"


@dataclass(frozen=True)
class _Run:
    """A run's model without weights yet, its data and the chosen checkpoints."""

    path: Path
    config: RunConfig
    dataset: AnyDataset
    model: nn.Module
    checkpoints: Sequence[Traced]
    arithmetic: Arithmetic

    def weighted(self) -> list[Weighted]:
        """The checkpoints, each read when it is needed; one alone is read once."""
        loaded: list[str] = []

        def load(checkpoint: Traced) -> None:
            if loaded[-1:] != [checkpoint.name]:
                load_weights(self.model, read_checkpoint(checkpoint.path, groups={"weights"}))
                loaded.append(checkpoint.name)

        return [Weighted(c.name, c.lr, lambda c=c: load(c)) for c in self.checkpoints]  # type: ignore[misc]


def influence(
    run: Path, asked: Asked, options: Options, *, device: str | None = None, quiet: bool = False
) -> Influences:
    """Trace what is asked; the same on every process. Raises HastenError."""
    begin = time.perf_counter()
    tune_process()
    RunFolder.open(run, lock=False)
    distributed = load_config(run / "config.yaml").distributed
    with Processes.join(device or "auto", distributed) as processes:
        held = processes.together("loading the run", lambda: _load(run, options, processes))
        limits = Limits(options.memory, options.block)
        graph = isinstance(held.dataset, KnowledgeGraph)
        make = _of_triples if graph else _of_events
        tracing = processes.together("reading what is asked", lambda: make(held, asked, options))
        if asked.itself:
            own = trace_self(
                tracing.source, held.weighted(), limits=limits, processes=processes, quiet=quiet
            )
            found = of_examples(own, options.topk)
        else:
            assert options.topk is not None
            best = trace(
                tracing.source,
                held.weighted(),
                topk=options.topk,
                limits=limits,
                arithmetic=held.arithmetic,
                processes=processes,
                quiet=quiet,
                sketch=tracing.sketch,
            )
            found = of_tests(*best)
        table = tracing.table(found)
        about = {
            "run": run,
            "model": held.config.model.name,
            "checkpoints": [
                {"name": c.name, "epoch": c.epoch, "step": c.step, "lr": c.lr}
                for c in held.checkpoints
            ],
            "loss": options.loss,
            "layers": options.layers,
            "method": options.method,
            "exact": options.method == "exact",
            "precision": options.precision,
            "tests": tracing.source.tests,
            "train": tracing.source.members.shape[1],
            "rows": table.num_rows,
            "devices": processes.world,
            "seconds": time.perf_counter() - begin,
        }
    return Influences(table, about)


def _load(run: Path, options: Options, processes: Processes) -> _Run:
    """The run, ready for its weights, and refusals of what cannot be traced."""
    with RunFolder.open(run, lock=False) as folder:
        config = load_config(folder.path / "config.yaml")
        dataset = load_stored(folder.data)
        prepare_torch(config, processes.device, processes.launch)
        model = build_model(config, dataset, processes.device).eval()
        require_traceable(model, config.model.name, options.loss, options.layers)

        def lr_at(step: int) -> float:
            phases = model.phases(dataset, config.training)
            return Schedule.of(config.training, sum(phase.steps() for phase in phases)).at(step)

        chosen = choose(folder, options.checkpoints, lr_at)
    if options.precision == "fp64":
        model = model.double()
    low = torch.bfloat16 if options.precision == "bf16" else None
    return _Run(run, config, dataset, model, chosen, Arithmetic(low))


class _TripleTracing:
    """Triples: the source, and its rows."""

    def __init__(self, held: _Run, asked: Asked, options: Options) -> None:
        graph = held.dataset
        assert isinstance(graph, KnowledgeGraph)
        self.graph, self.method = graph, options.method
        self.given = _test_triples(graph, asked)
        model = cast(TripleModel, held.model)
        body = body_of(model, held.arithmetic)
        assert body is not None
        factors = CompletionFactors(
            model, body, training_answers(graph), options.loss, options.layers, held.arithmetic
        )
        kept = sampled(len(graph.of(TRAIN)), options)
        self.source = TripleSource(graph, factors, self.given, kept)
        rows, relations = len(graph.entities), 2 * len(graph.relations)
        self.sketch = sketch_of(options, rows, relations)

    def table(self, found: Found) -> Any:
        return triple_table(found, self.graph, self.source.triples, self.given, self.method)


class _EventTracing:
    """Events: the source, and its rows."""

    def __init__(self, held: _Run, asked: Asked, options: Options) -> None:
        dataset = held.dataset
        assert isinstance(dataset, Dataset)
        self.dataset, self.method = dataset, options.method
        self.given = _test_events(dataset, asked)
        phase = without_draws(cast(Any, held.model).phases(dataset, held.config.training)[0])
        users, items = self.given
        histories = dataset.histories(TRAIN, VALID).take(users)
        self.source = EventSource(
            cast(Any, held.model),
            phase,
            RecommenderQueries(users, histories),
            items,
            options.loss,
            held.arithmetic,
            sampled(int(phase.targets.sum()), options),
        )
        self.sketch = sketch_of(options, len(dataset.items))

    def table(self, found: Found) -> Any:
        events = self.source.events(found.example)
        tests = self.given if len(self.given[0]) else None
        return event_table(found, self.dataset, events, tests, self.method)


def _of_triples(held: _Run, asked: Asked, options: Options) -> Any:
    return _TripleTracing(held, asked, options)


def _of_events(held: _Run, asked: Asked, options: Options) -> Any:
    return _EventTracing(held, asked, options)


def _test_triples(graph: KnowledgeGraph, asked: Asked) -> Triples:
    if asked.itself:
        return Triples(*(np.empty(0, np.int64) for _ in range(3)))
    if asked.part is not None:
        found = part_of_graph(graph, asked.part)
    else:
        labels = cast(Sequence[tuple[str, str, str]], asked.labels)
        if any(len(row) != 3 for row in labels):
            raise UsageError("this run is of triples: give --triple h,r,t, --test FILE or --part")
        found = triples_of(graph, list(labels))
    return found.take(np.arange(len(found))[: asked.limit])


def _test_events(dataset: Dataset, asked: Asked) -> tuple[Int64, Int64]:
    if asked.itself:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if asked.part is not None:
        users, items = part_of_events(dataset, asked.part)
    else:
        labels = cast(Sequence[tuple[str, ...]], asked.labels)
        if any(len(row) == 3 for row in labels):
            raise UsageError("this run is of events: give --event user,item, --test FILE or --part")
        users, items = events_of(dataset, list(labels))
    users, items = users[: asked.limit], items[: asked.limit]
    require_history(dataset, users)
    return users, items


def sampled(count: int, options: Options) -> Int64:
    """The training examples that are looked at: each with the probability of the sample rate."""
    every = np.arange(count, dtype=np.int64)
    if options.sample_rate >= 1:
        return every
    drawn = uniform(key(options.seed, Stream.INFLUENCE, 0), torch.from_numpy(every)).numpy()
    kept = every[drawn < options.sample_rate]
    if not len(kept):
        raise UsageError(
            f"--sample-rate {options.sample_rate:g}: none of the {count:,} training examples is "
            "left; give a larger one"
        )
    return kept


def sketch_of(options: Options, rows: int, relations: int = 0) -> Sketch | None:
    """The projection that is asked for."""
    if options.projection is None:
        return None
    return Sketch(options.projection, options.seed, rows, relations)
