"""Every option of every model changes something that can be observed, or is refused with a reason.

A key without an entry in the tables below fails, so a new option needs one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch

from hasten import api
from hasten.build import build_model, load_data, ranking_tasks
from hasten.config import AnyDataOptions, DistributedOptions, RunConfig
from hasten.config_loading.build import build_config, load_config
from hasten.config_loading.effects import refuse_without_effect, without_effect
from hasten.config_loading.keys import known_keys
from hasten.data.store import fingerprint
from hasten.distributed.device import prepare_torch, resolve_device
from hasten.distributed.launch import processes_to_start
from hasten.errors import ConfigurationError, HastenError
from hasten.evaluation.ranker import evaluate
from hasten.evaluation.validation_sample import validation_task
from hasten.models.supports import Supports
from hasten.registry import BUILT_IN, data_options_of, load_model
from hasten.runs.checkpoint import read_checkpoint
from hasten.runs.config_text import config_text
from hasten.runs.run_folder import RunFolder
from hasten.runs.trackers.open import artifacts, open_trackers
from hasten.scoring import TripleQueries
from hasten.training import trainer as trainer_module
from hasten.training.capture.step import capture_steps
from hasten.training.gradient_accumulation import DataParallelRank
from hasten.training.precision import Precision, refuse_emulated_fp16, resolve_precision
from hasten.training.resolve_config import resolve_config
from hasten.training.schedule import Schedule
from hasten.training.sharding.tables import shard_tables
from hasten.training.step import OptimizerStep
from tests.contract.cases import CASES

CPU = torch.device("cpu")
#: the smallest case of each model
CASE = {case.model: case for case in reversed(CASES)}
MODELS = [entry.name for entry in BUILT_IN]


def configured(model: str, changes: Mapping[str, Any]) -> Any:
    """The configuration of a new run, as ``hasten train`` builds it."""
    settings = {"device": "cpu", **CASE[model].settings, **changes}
    if "training.batch_size_per_device" in changes:
        settings.pop("training.batch_size", None)
    return build_config(model, flags=settings)


@cache
def dataset_of(model: str) -> Any:
    return load_data(configured(model, {}), CASE[model].data)


def built(config: Any) -> tuple[Any, list[Any]]:
    dataset = dataset_of(config.model.name)
    model = build_model(config, dataset, CPU)
    return model, list(model.phases(dataset, config.training))


def steps_of(config: Any) -> tuple[Any, list[Any], Schedule]:
    model, phases = built(config)
    precision = Precision(resolve_precision(config.training.precision, CPU), CPU)
    steps = [
        OptimizerStep(phase, number, config.training, precision, DataParallelRank(), CPU)
        for number, phase in enumerate(phases)
    ]
    schedule = Schedule.of(config.training, sum(phase.steps() for phase in phases))
    return model, steps, schedule


# What can be observed of a configuration.


def sharding(config: Any) -> Any:
    """The tables that two processes would share, or why they cannot."""
    two = SimpleNamespace(world=2, rank=0, local_world=2, device=CPU)
    try:
        return shard_tables(*built(config), config.training, two).names
    except ConfigurationError as error:
        return str(error)


def weights(config: Any) -> Any:
    """The parameters after two steps of each phase, and the size of the plan; or the scores."""
    model, steps, schedule = steps_of(config)
    if not steps:
        dataset = dataset_of(config.model.name)
        model.fit(dataset)
        queries = ranking_tasks(dataset, config)[0].queries
        return model.scorer(queries).block(0, len(dataset.items)).tolist()
    for step in steps:
        step.phase.start_epoch(config.seed, 0)
        for index in range(min(2, step.phase.steps())):
            step(step.phase.plan(config.seed, 0, index), schedule.at(index))
    planned = [step.phase.steps() for step in steps]
    return planned, {k: v.tolist() for k, v in model.state_dict().items()}


def self_scores(config: Any) -> list[float]:
    """The score of the first entity as an answer to its own queries."""
    model, _ = built(config)
    every = np.arange(2 * model.sizes.relations)
    scorer = model.eval().scorer(TripleQueries(np.zeros_like(every), every))
    return scorer.block(0, 1)[:, 0].tolist()


def learning_rates(config: Any) -> list[float]:
    _, _, schedule = steps_of(config)
    return [schedule.at(step) for step in range(20)]


def micro_batches(config: Any) -> int:
    """How often a step of the first phase computes its terms."""
    _, steps, _ = steps_of(config)
    phase, calls = steps[0].phase, []
    terms = phase.terms
    phase.terms = lambda *given: calls.append(1) or terms(*given)
    phase.start_epoch(config.seed, 0)
    steps[0].accumulate(phase.plan(config.seed, 0, 0))
    return len(calls)


def saved_numbers(config: Any) -> int:
    """Numbers that autograd keeps for the backward pass of a step."""
    _, steps, _ = steps_of(config)
    phase, kept = steps[0].phase, []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor.numel())
        return tensor

    phase.start_epoch(config.seed, 0)
    batch = phase.plan(config.seed, 0, 0)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        steps[0].accumulate(batch)
    return sum(kept)


def float32_products(config: Any) -> list[str]:
    """How a step multiplies in float32, on a device that has TF32."""
    found: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hasten.training.precision.has_tf32", lambda _: True)
        _, steps, _ = steps_of(config)
    phase, terms = steps[0].phase, steps[0].phase.terms
    phase.terms = lambda *given: (
        found.append(torch.backends.cuda.matmul.fp32_precision) or terms(*given)
    )
    phase.start_epoch(config.seed, 0)
    steps[0].accumulate(phase.plan(config.seed, 0, 0))
    return found


def why_not_captured(config: Any) -> list[str]:
    """What is told of the steps of all phases on a CPU, which has no graphs."""
    _, steps, _ = steps_of(config)
    return [each["note"] for each in capture_steps(steps, config.training)()]


def compiled_functions(config: Any) -> int:
    """How many functions would be compiled, by a compiler that returns them as they are."""
    if config.training.compile == "off":
        return 0
    _, phases = built(config)
    found: list[Any] = []
    for phase in phases:
        phase.compile_with(lambda function: found.append(function) or function)
    return len(found)


def protocol(config: Any) -> tuple[str, list[str]]:
    """How validation is measured, and the metrics reported."""
    model, phases = built(config)
    dataset = dataset_of(config.model.name)
    if not phases:
        model.fit(dataset)
    try:
        task = validation_task(ranking_tasks(dataset, config)[0], config.evaluation, config.seed)
    except ConfigurationError as error:  # not with these data
        return str(error), []
    return task.protocol.text(), sorted(
        evaluate(model.eval(), task, config.evaluation.metrics, device=CPU).values
    )


def evaluated_parts(config: Any) -> list[bool]:
    """Whether validation and test are evaluated."""
    return [task is not None for task in ranking_tasks(dataset_of(config.model.name), config)]


def split(config: Any) -> str:
    """Which interactions or triples are in which part."""
    return fingerprint(load_data(config, CASE[config.model.name].data))


def resolved_device(config: Any) -> str:
    try:
        return str(resolve_device(config.device))
    except HastenError as error:
        return str(error)


def threads(config: Any) -> int:
    before = torch.get_num_threads()
    try:
        prepare_torch(config.threads, config.training.deterministic, CPU)
        return torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def determinism(config: Any) -> bool:
    try:
        prepare_torch(config.threads, config.training.deterministic, CPU)
        return torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


def processes(config: Any) -> Any:
    """What several processes are started and joined with."""
    options: DistributedOptions = config.distributed
    started = processes_to_start(config.devices, False, options.master_port)
    return started, options.backend, options.master_port, options.timeout, options.heartbeat


def logging(config: Any) -> Any:
    """The trackers that a run opens, and the files that they keep."""
    opened: list[Any] = []

    def opens(name: str, options: Any, *_: Any) -> Any:
        opened.append((name, options.project))
        return SimpleNamespace(name=name, id="1")

    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("hasten.runs.trackers.open._open", opens)
        for name in ("config.yaml", "metrics.json"):
            (Path(folder) / name).write_text("")
        open_trackers(config.logging, RunFolder(Path(folder), None), lambda _: None)
        return opened, [path.name for path in artifacts(config.logging, Path(folder))]


def layout(config: Any) -> Any:
    """What a run of four processes trains with."""
    four = SimpleNamespace(world=4, local_world=4, device=CPU)
    training = resolve_config(config, four).config.training  # type: ignore[arg-type]
    return training.batch_size, training.lr


@cache
def _run(model: str, changes: tuple[tuple[str, Any], ...], folder: Path) -> Any:
    """What a short run leaves behind, or the message that it ends with."""
    case = CASE[model]
    usual = {"training.epochs": 4, "training.batch_size": 256, "checkpoint.keep": 20}
    out = folder / f"run{len(list(folder.iterdir()))}"
    released: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer_module, "release_memory", lambda _: released.append(1))
        try:
            result = api.train(
                model,
                case.data,
                settings={**usual, "threads": 1, "device": "cpu", **dict(changes)},
                out=str(out),
                quiet=True,
            )
        except HastenError as error:
            return str(error)
    tensors = read_checkpoint(out / "final", groups={"weights"}).tensors["weights"]
    records = (out / "metrics.jsonl").read_text().count('"kind": "valid"')
    return (
        sorted(path.name for path in (out / "checkpoints").iterdir()),
        (records, result.summary.epochs, result.summary.stopped_by, len(released)),
        {name: value.tolist() for name, value in tensors.items()},
    )


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("effects")


# The loop of every trained model is the same trainer: one small model shows these effects.
LOOP = "bprmf"
TINY = {"model.width": 4, "evaluation.metrics": ("ndcg@10",)}

#: key -> (what is changed, beside which other settings, what shows it)
Entry = tuple[Any, Mapping[str, Any], Callable[[Any], Any] | Literal["loop"]]
FALLING = {"training.schedule": "linear", "training.epochs": 2}
NO_NUMBER = {"training.lr": 1e30}
NO_GAIN = {"training.lr": 1e-12}


def refused_fp16(config: RunConfig) -> bool:
    """Whether a CPU without fp16 arithmetic refuses to train."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hasten.training.precision.cpu_computes_fp16", lambda: False)
        try:
            refuse_emulated_fp16(config.training, CPU)
        except ConfigurationError:
            return True
    return False


EFFECTS: dict[str, Entry] = {
    "training.epochs": (3, FALLING, learning_rates),
    "training.batch_size": (5, {}, weights),
    "training.batch_size_per_device": (5, {}, layout),
    "training.lr": (0.02, {}, weights),
    "training.optimizer": ("adamw", {"training.weight_decay": 0.1}, weights),
    "training.betas": ([0.5, 0.6], {}, weights),
    "training.eps": (0.1, {}, weights),
    "training.weight_decay": (0.1, {}, weights),
    "training.lr_scaling": ("sqrt", {}, layout),
    "training.schedule": ("linear", {"training.epochs": 3}, learning_rates),
    "training.min_lr": (1e-5, FALLING, learning_rates),
    "training.warmup_steps": (5, {}, learning_rates),
    "training.average": (1.0, {}, "loop"),
    "training.clip_norm": (1e-9, {}, weights),
    "training.clip_norm_type": ("inf", {"training.clip_norm": 1e-9}, weights),
    "training.precision": ("bf16", {}, weights),
    "training.matmul": ("highest", {}, float32_products),
    "training.emulate_fp16": (True, {"training.precision": "fp16"}, refused_fp16),
    "training.accumulate": (2, {}, micro_batches),
    "training.recompute": (True, {}, saved_numbers),
    "training.cleanup_every": (1, {}, "loop"),
    "training.compile": ("default", {}, compiled_functions),
    "training.capture": ("never", {}, why_not_captured),
    "training.shard_tables": ("always", {}, sharding),
    "training.patience": ("1 evaluations", NO_GAIN, "loop"),
    "training.max_time": (1e-9, {}, "loop"),
    "training.deterministic": (True, {}, determinism),
    "training.bad_steps": (1, NO_NUMBER, "loop"),
    "evaluation.every": (2, {}, "loop"),
    "evaluation.test": (False, {}, evaluated_parts),
    "evaluation.metrics": (["mrr"], {}, protocol),
    "evaluation.like": (None, {}, protocol),
    "evaluation.candidates": ("uni100", {"evaluation.mask_history": False}, protocol),
    "evaluation.mask_history": (None, {}, protocol),
    "evaluation.seen_targets": ("miss", {}, protocol),
    "evaluation.users": ("untied", {}, protocol),
    "evaluation.triples": (5, {}, protocol),
    "evaluation.ties": ("pessimistic", {}, protocol),
    "evaluation.filter_test": (False, {}, protocol),
    "checkpoint.every": (2, {}, "loop"),
    "checkpoint.every_steps": (1, {}, "loop"),
    "checkpoint.every_minutes": (1e-9, {}, "loop"),
    "checkpoint.keep": (3, {}, "loop"),
    "logging.to": (["wandb"], {}, logging),
    "logging.project": ("mine", {"logging.to": ["wandb"]}, logging),
    "logging.artifacts": ("none", {"logging.to": ["wandb"]}, logging),
    "distributed.backend": ("gloo", {}, processes),
    "distributed.master_port": (29999, {}, processes),
    "distributed.timeout": (5.0, {}, processes),
    "distributed.heartbeat": (5.0, {}, processes),
    "seed": (1, {}, weights),
    "device": ("cuda:77", {}, resolved_device),
    "devices": (2, {}, processes),
    "threads": (2, {}, threads),
    "init_from": ("/nowhere", {}, "loop"),
}

OF_USERS = {
    f"evaluation.{name}" for name in ("candidates", "mask_history", "seen_targets", "users")
}
OF_TRIPLES = {"evaluation.filter_test", "evaluation.triples"}
OF_STEPS = {
    key
    for key in EFFECTS
    if key.startswith(("training.", "checkpoint.")) and key != "training.deterministic"
} | {"evaluation.every", "init_from"}
NOT_RECOMPUTED, NOT_COMPILED = {"training.recompute"}, {"training.compile"}
NOT_SHARDED = {"training.shard_tables"}

#: model -> the options that are refused for it, whatever the others are
REFUSED: dict[str, set[str]] = {
    "sasrec": set(),
    "tisasrec": set(),
    "kgat": NOT_COMPILED,
    "bprmf": NOT_RECOMPUTED
    | NOT_COMPILED
    | {"training.precision", "training.emulate_fp16", "training.matmul"},
    "lightgcn": NOT_RECOMPUTED | NOT_COMPILED,
    "mmgcn": NOT_SHARDED,
    "dragon": NOT_COMPILED | NOT_SHARDED,
    "bm3": NOT_RECOMPUTED | NOT_COMPILED | NOT_SHARDED,
    "freedom": NOT_RECOMPUTED | NOT_COMPILED | NOT_SHARDED,
    "conve": set(),
    "distmult": NOT_RECOMPUTED,
    "complex": NOT_RECOMPUTED,
    "tucker": NOT_RECOMPUTED | NOT_COMPILED | NOT_SHARDED,
    "rotate": NOT_RECOMPUTED
    | NOT_SHARDED
    | NOT_COMPILED
    | {"training.precision", "training.emulate_fp16", "training.matmul"},
    "hgt": NOT_COMPILED | NOT_SHARDED,
    "degree": OF_STEPS,
    "pop": OF_STEPS,
    "ease": OF_STEPS,
    "slim": OF_STEPS,
    "itemknn": OF_STEPS,
    "gfcf": OF_STEPS,
}

#: model's option -> the others that it needs: without them it is refused
NEEDS: dict[str, dict[str, Any]] = {
    "sequential.negatives": {"model.loss": "bce"},
    "sequential.sampling": {"model.loss": "sampled-softmax"},
    "sequential.mask_known": {"model.loss": "sampled-softmax", "model.negatives": 8},
    "sequential.calibration": {"model.loss": "gbce"},
    "sasrec.padding": {"model.norm": "post"},
    "sequential.streams": {"model.residual": "mhc"},
    "sequential.projection": {"model.residual": "mhc"},
    "sequential.maps": {"model.residual": "mhc"},
    "knowledge_graph.label_smoothing": {"model.loss": "1-n", "model.negatives": None},
    "knowledge_graph.negatives": {"model.loss": "sampled"},
    "rotate.negatives": {},
    "hgt.fan_out": {"model.mode": "edges"},
}
#: model's option -> settings of the small case that contradict it
BESIDE = {"complex.loss": {"model.negatives": None}, "mmgcn.ids": {"model.l2": None}}
#: model's option -> a value that differs from the default, where its type suggests none
MODEL_VALUES: dict[str, Any] = {
    "tisasrec.embedding_l2": 0.1,
    "conve.height": 4,
    "kgat.layers": [12],
    "mmgcn.projected": ["text"],
    "multimodal.modalities": ["image"],
    "knowledge_graph.label_smoothing": 0.3,
    "knowledge_graph.negatives": 4,
    "sequential.negatives": 4,
    "hgt.steps_per_epoch": 2,
    "hgt.fan_out": 1,
    "hgt.shallow_width": 2,
    "hgt.contrastive_type": "node",
    "hgt.contrastive_relations": ["next"],
    "hgt.similarity_threshold": 0.6,
    "slim.tolerance": 0.1,
    "ease.l2": 7.0,
    "itemknn.neighbors": 3,
    "itemknn.shrinkage": 2.0,
    "gfcf.vectors": 4,
}
OPTIONS = [
    (model, key)
    for model in MODELS
    for key in known_keys(load_model(model).Options)
    if not key.startswith("data.")
    and key not in ("out", "recipe", "model.name")
    and (model, key) != ("rotate", "model.loss")  # one choice
]


def of_model(table: Mapping[str, Any], model: str, key: str) -> Any:
    """What a table says of an option, for the model or for its family."""
    name, family = key.partition(".")[2], load_model(model).__module__.split(".")[2]
    return table.get(f"{model}.{name}", table.get(f"{family}.{name}"))


def another(model: str, key: str, beside: Mapping[str, Any]) -> Any:
    """A value of a model's option that is not its default."""
    value, name = of_model(MODEL_VALUES, model, key), key.partition(".")[2]
    if value is not None:
        return value
    now = getattr(configured(model, beside).model, name)
    kind = load_model(model).Options.model_fields[name].annotation
    for part in (kind, *get_args(kind)):
        if get_origin(part) is Literal:
            return next(choice for choice in get_args(part) if choice != now)
    if isinstance(now, bool):
        return not now
    if isinstance(now, float):
        return now / 2 if now else 0.25
    assert isinstance(now, int), f"{key} of {model}: give it a value in MODEL_VALUES"
    return now * 2


@pytest.mark.parametrize(("model", "key"), OPTIONS)
def test_an_option_changes_something_or_is_refused(model: str, key: str, scratch: Path) -> None:
    if key.startswith("model."):
        _changes_the_model(model, key)
        return
    value, beside, view = EFFECTS[key]
    if key == "evaluation.like":
        value = "pykeen" if CASE[model].triples else "mmrec"
    if value is None:
        value = not configured(model, {}).evaluation.mask_history
    if key in REFUSED[model] | (OF_USERS if CASE[model].triples else OF_TRIPLES):
        with pytest.raises(ConfigurationError, match=rf"(?s){key} .*has no effect: {model} "):
            configured(model, {**beside, key: value})
        return
    if view == "loop":
        # every model with gradient steps is trained by the same loop
        assert Supports.of(load_model(model)).gradient_steps
        configured(model, {**beside, key: value})
        plain = tuple({**TINY, **beside}.items())
        other = tuple({**TINY, **beside, key: value}.items())
        assert _run(LOOP, plain, scratch) != _run(LOOP, other, scratch)
        return
    if key == "seed" and not Supports.of(load_model(model)).gradient_steps:
        beside, view = {"data.split": "ratio", "data.ratio_order": "random"}, split
        if CASE[model].triples:
            beside = {"data.split": "ratio"}
    base, changed = configured(model, beside), configured(model, {**beside, key: value})
    assert base != changed
    assert view(base) != view(changed)


def _changes_the_model(model: str, key: str) -> None:
    needs, beside = of_model(NEEDS, model, key) or {}, of_model(BESIDE, model, key) or {}
    value = another(model, key, {**beside, **needs})
    if needs:
        with pytest.raises(ConfigurationError, match=key.partition(".")[2]):
            build_config(
                model,
                flags={key: value, "model.loss": "1vsall" if "negatives" in key else "sampled"}
                if CASE[model].triples and "loss" in str(needs)
                else {key: value},
            )
    view = self_scores if key == "model.exclude_self" else weights
    base = view(configured(model, {**beside, **needs}))
    try:
        changed = view(configured(model, {**beside, **needs, key: value}))
    except ConfigurationError as error:  # not with these data
        assert key in str(error)  # noqa: PT017 - else it must change the weights
    else:
        assert base != changed


@pytest.mark.parametrize("model", MODELS)
def test_a_data_option_that_the_model_does_not_read_is_refused(model: str) -> None:
    read = data_options_of(load_model(model)).model_fields
    values = {"dict": "{a: b}", "bool": "true", "int": "3", "float": "0.5"}
    for name, field in AnyDataOptions.model_fields.items():
        if name not in read:
            text = values.get(getattr(field.annotation, "__name__", "dict"), "other")
            with pytest.raises(ConfigurationError, match=rf"data\.{name} .*no effect on {model}"):
                build_config(model, sets=[f"data.{name}={text}"])


def test_every_key_has_an_entry() -> None:
    keys = {key for key in known_keys(None) if not key.startswith("data.")}
    assert keys - {"out", "recipe"} == set(EFFECTS)  # recipes: tests/recipes
    assert set(REFUSED) == set(MODELS)


def test_a_value_that_repeats_the_default_is_accepted() -> None:
    assert not without_effect(build_config("pop", flags={"epochs": 100, "recompute": False}))


@pytest.mark.parametrize(
    ("changes", "needs"),
    [
        ({"training.min_lr": 1e-5}, r"training\.schedule=linear\|cosine, which is constant"),
        ({"training.clip_norm_type": "inf"}, r"training\.clip_norm, which is none"),
        ({"model.negatives": 3}, r"model\.loss=bce\|gbce\|sampled-softmax, which is ce"),
    ],
)
def test_an_option_without_the_one_it_needs_is_refused(changes: dict[str, Any], needs: str) -> None:
    with pytest.raises(ConfigurationError, match=f"has no effect: it needs {needs}"):
        build_config(
            "bprmf" if "training.min_lr" in changes else "tisasrec",
            flags={**changes, "training.clip_norm": None}
            if "training.clip_norm_type" in changes
            else changes,
        )


def test_the_configuration_of_an_existing_run_is_loaded_whatever_it_says(tmp_path: Path) -> None:
    config = build_config("distmult")
    without_effect = {"recompute": True, "min_lr": 0.1, "schedule": "constant"}
    accepted = config.training.model_copy(update=without_effect)
    file = tmp_path / "config.yaml"
    file.write_text(config_text(config.model_copy(update={"training": accepted})))
    loaded = load_config(file)
    assert loaded.training.recompute
    refuse_without_effect(loaded, changed={"training.epochs"})
    with pytest.raises(ConfigurationError, match="2 options have no effect"):
        build_config(config_file=file)
