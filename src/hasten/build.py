"""Build the parts of a run: data, model, ranking tasks, initial weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor, nn

from hasten.config import (
    FeatureOptions,
    InteractionOptions,
    KnowledgeOptions,
    PairOptions,
    RunConfig,
    SequenceOptions,
    TripleOptions,
    TypedGraphOptions,
)
from hasten.config.data import READS
from hasten.config_loading.build import load_config
from hasten.data.event_store.manifest import holds_store
from hasten.data.event_store.mapped import MappedDataset
from hasten.data.event_store.opened import open_store
from hasten.data.graph.load import load_graph, with_node_features
from hasten.data.graph_store.manifest import holds_graph_store
from hasten.data.graph_store.opened import open_graph_store
from hasten.data.interactions.load import load_dataset
from hasten.data.interactions.load_features import load_features, load_pairs
from hasten.data.interactions.load_item_features import with_features
from hasten.data.interactions.load_knowledge import load_knowledge
from hasten.data.splits import refitted, require_validation
from hasten.data.store import fingerprint, load_stored
from hasten.data.tables import TEST, VALID, AnyDataset, Dataset, KnowledgeGraph
from hasten.distributed.processes import Processes
from hasten.distributed.replicas import merged_ranks
from hasten.distributed.row_shard import RowShard
from hasten.errors import CheckpointError, ConfigurationError, RunFolderError, UsageError
from hasten.evaluation.protocols import AnyTask, ranking_task
from hasten.evaluation.query_tiles import TileMemoryRetry
from hasten.evaluation.ranker import Evaluation, evaluate
from hasten.models.interface import Model, Sizes
from hasten.models.supports import Supports
from hasten.ops.random import Stream, key
from hasten.ops.ranking.candidate_shard import CandidateShard
from hasten.ops.sharded_table import sharding
from hasten.registry import load_model
from hasten.runs.checkpoint import Checkpoint
from hasten.runs.run_folder import RunFolder
from hasten.training.memory.limit import COPIES_WITH_ADAM, MemoryLimit
from hasten.training.state import phase_state


def load_data(config: RunConfig, table: object | None) -> AnyDataset:
    """Load the data of a run: from a table in memory or as configured."""
    dataset = _read(config, table)
    # Arrow keeps the memory of what it has parsed: 40 MiB after 3 MB of text
    pa.default_memory_pool().release_unused()
    if not config.data.refit:
        return dataset
    if isinstance(dataset, MappedDataset):
        require_validation(dataset)
        return dataset.trained_on_validation()
    return refitted(dataset)


def _read(config: RunConfig, table: object | None) -> AnyDataset:
    """Load the data for the options of a model family."""
    options = config.data
    seed = options.seed_for_split(config.seed)
    if table is None and options.path is not None:
        path = Path(options.path)
        if any(holds(path) for holds in (RunFolder.holds_run, holds_store, holds_graph_store)):
            return _stored(path, config)
    if isinstance(options, TripleOptions):
        return _read_graph(config, options, table, seed)
    if isinstance(options, PairOptions):
        return load_pairs(options, seed, table)
    if isinstance(options, FeatureOptions):
        return load_features(options, seed, table)
    if isinstance(options, KnowledgeOptions):
        return load_knowledge(options, seed, table)
    assert isinstance(options, InteractionOptions)
    dataset = load_dataset(options, seed, table)
    return with_features(dataset, options) if isinstance(options, SequenceOptions) else dataset


def _stored(run: Path, config: RunConfig) -> AnyDataset:
    """The data of a store, or those that a run stores, divided as in that run."""
    if holds_store(run):
        return _fitting(open_store(run, config.data), config, run)
    if holds_graph_store(run):
        return _fitting(open_graph_store(run, config.data), config, run)
    requested_options, default = config.data, type(config.data)()
    stored_options = load_config(run / "config.yaml").data
    for name in type(requested_options).model_fields.keys() - {"path", "refit"}:
        value = getattr(requested_options, name)
        if value != getattr(default, name) and value != getattr(stored_options, name, None):
            raise UsageError(
                f"data.{name} has no effect: {run} is a run, whose data are cleaned and divided"
            )
    return _fitting(load_stored(run / "data"), config, run)


def _fitting(dataset: AnyDataset, config: RunConfig, where: Path) -> AnyDataset:
    """The dataset. Raises UsageError if it lacks what the model reads."""
    options_class, lacks = READS[load_model(config.model.name).reads], ""
    if issubclass(options_class, TripleOptions) != isinstance(dataset, KnowledgeGraph):
        lacks = "triples" if issubclass(options_class, TripleOptions) else "interactions"
    elif isinstance(dataset, Dataset):
        if options_class is KnowledgeOptions and dataset.facts is None:
            lacks = "knowledge graph about the items"
        elif options_class is FeatureOptions and not dataset.modalities:
            lacks = "item features"
    features = isinstance(dataset, KnowledgeGraph) and dataset.features
    if getattr(config.model, "inputs", None) == "features" and not features:
        raise UsageError(
            f"{where}: its data hold no features of nodes, which model.inputs=features reads: "
            "name them when the data are prepared, --set data.features.TYPE=FILE, or give others "
            "for model.inputs"
        )
    if lacks:
        raise UsageError(f"{where}: its data hold no {lacks}, which {config.model.name} reads")
    return dataset


def _read_graph(
    config: RunConfig, options: TripleOptions, table: object | None, seed: int
) -> AnyDataset:
    """Load a graph, with node features if the model takes them as input."""
    files = options.features if isinstance(options, TypedGraphOptions) else {}
    reads_features = getattr(config.model, "inputs", None) == "features"
    if files and not reads_features:
        raise ConfigurationError(
            f"data.features has no effect on {config.model.name} unless model.inputs is features: "
            "add --set model.inputs=features"
        )
    if reads_features and not files:
        raise ConfigurationError(
            "model.inputs=features, but no features of nodes are named: "
            "--set data.features.TYPE=FILE (.npy or Parquet), for at least one type"
        )
    graph = load_graph(options, seed, table)
    return with_node_features(graph, files) if files else graph


def refuse_changed_source(
    run: Path, config: RunConfig, table: object | None, stored: AnyDataset
) -> list[str]:
    """Raise RunFolderError if the data have changed since the run stored a copy of them.

    A run can resume on its own copy. If the original data cannot be read, this is therefore no
    error, and a warning is returned.
    """
    try:
        now = load_data(config, table)
    except UsageError as error:
        return [f"the data are not compared with the copy that the run continues on: {error}"]
    if fingerprint(now) != fingerprint(stored):
        raise RunFolderError(
            f"{stored.source.path or 'the data'}: changed since the run {run} stored a copy; "
            f"continue on that copy with  hasten resume {run}  or train on the new data in another "
            "folder (--out)"
        )
    return []


def with_builtin_sample(config: RunConfig) -> RunConfig:
    """The configuration, with the built-in sample of the model if it names no data."""
    if config.data.path is not None or config.data.train is not None:
        return config
    sample = load_model(config.model.name).sample
    return config.model_copy(update={"data": config.data.model_copy(update={"path": sample})})


def ranking_tasks(dataset: AnyDataset, config: RunConfig) -> tuple[AnyTask, AnyTask | None]:
    """The ranking tasks of validation and test; test is None without ``evaluation.test``."""
    options, seed = config.evaluation, config.seed
    return (
        ranking_task(dataset, VALID, options, seed),
        ranking_task(dataset, TEST, options, seed) if options.test else None,
    )


def build_model(
    config: RunConfig,
    dataset: AnyDataset,
    device: torch.device,
    *,
    for_training: bool = False,
    processes: Processes | None = None,
) -> Model:
    """Build the model; its initial weights depend only on the seed.

    for_training: also require memory for gradients and optimizer state. processes: with
    ``training.shard_tables=always``, each process creates only its rows of the sharded tables.
    Raises HastenError if there is too little memory.
    """
    kind = load_model(config.model.name)
    trains_on_cpu = for_training and device.type == "cpu" and Supports.of(kind).gradient_steps
    parts: AbstractContextManager[None] = nullcontext()
    if config.training.shard_tables == "always":
        # weights of another run are read whole, before each process keeps its rows
        if processes is not None and processes.world > 1 and config.init_from is None:
            parts = sharding(partial(RowShard, processes))
        else:
            trains_on_cpu = False
    state = torch.get_rng_state()
    torch.manual_seed(key(config.seed, Stream.INITIALISATION) % 2**63)
    with MemoryLimit(copies=COPIES_WITH_ADAM if trains_on_cpu else 1), parts:
        model = kind(config.model, Sizes.of(dataset))
    torch.set_rng_state(state)
    model.attach(dataset)
    return model.to(device)


def evaluate_task(
    model: Model,
    task: AnyTask,
    config: RunConfig,
    processes: Processes,
    stop: Callable[[], bool] | None = None,
    memory_retry: TileMemoryRetry | None = None,
    shard: RowShard | None = None,
) -> Evaluation:
    """Evaluate the model; each process ranks its share of the queries.

    memory_retry: see :func:`hasten.evaluation.ranker.evaluate`; its number of rows is the same in
    all processes afterwards. shard: with sharded tables, the candidates that this process holds. It
    then scores these candidates for all queries, instead of all candidates for some queries.
    """
    metrics, merge = config.evaluation.metrics, partial(merged_ranks, processes)
    if shard is None:
        share: dict[str, Any] = {"process_rank": processes.rank, "world_size": processes.world}
        share |= {"stop": stop, "memory_retry": memory_retry}
    else:
        share = {
            "candidate_shard": CandidateShard(shard.first, shard.stop, partial(_sum, processes))
        }
        share["stop"] = None if stop is None else partial(_any, processes, stop)
    evaluation = evaluate(model, task, metrics, device=processes.device, merge=merge, **share)
    # results of different machines can differ in the last bits: rank 0 decides
    retry_rows = None if memory_retry is None else memory_retry.rows
    gathered = processes.gather([evaluation.values, retry_rows])
    if memory_retry is not None:
        memory_retry.rows = min(rows for _, rows in gathered)
    return replace(evaluation, values=gathered[0][0])


def _sum(processes: Processes, values: Tensor) -> Tensor:
    return processes.sum_(values, "the scores of an evaluation")


def _any(processes: Processes, stop: Callable[[], bool]) -> bool:
    """Whether ``stop`` holds on any process."""
    return bool(processes.sum_(torch.tensor(float(stop())), "the end of an evaluation") > 0)


def load_weights(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Load the weights of a checkpoint. Raises CheckpointError if they do not fit the model."""
    weights = checkpoint.tensors["weights"]
    try:  # not checked before: a model may change the shapes of its buffers while it loads
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{checkpoint.path}: its weights do not fit this model and these data: "
            f"{_misfit(model.state_dict(), weights)}"
        ) from error


def _misfit(model_weights: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> str:
    """The first of the reasons why weights do not fit, and how many more there are."""
    wrong = [f"it has no {name}" for name in model_weights.keys() - weights.keys()]
    wrong += [f"the model has no {name}" for name in weights.keys() - model_weights.keys()]
    wrong += [
        f"{name} is {list(weights[name].shape)} in it and {list(model_weights[name].shape)} here"
        for name in model_weights.keys() & weights.keys()
        if model_weights[name].shape != weights[name].shape
    ]
    return min(wrong, default="unknown") + (f" (and {len(wrong) - 1} more)" * (len(wrong) > 1))


def load_phase_states(
    model: Model, dataset: AnyDataset, config: RunConfig, checkpoint: Checkpoint
) -> None:
    """Build the phases and restore their state, unless scoring needs neither.

    Building them also builds what some models score with, such as the graph.
    """
    has_state = bool(checkpoint.tensors.get("phases"))
    if not has_state and not model.scores_need_phases:
        return
    for phase in model.phases(dataset, config.training):
        phase.load_state(phase_state(checkpoint, phase.name))
