"""The configuration of a run and its sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_serializer

from hasten.config.data import DataOptions, InteractionOptions
from hasten.config.section import OnlyWith, Section


class Patience(Section):
    """Early stopping: evaluations or epochs without improvement, such as "5 evaluations"."""

    count: Annotated[int, Field(ge=1)]
    unit: Literal["evaluations", "epochs"]

    @model_serializer
    def __str__(self) -> str:
        return f"{self.count} {self.unit}"


def _patience(value: Any) -> Any:
    """Accept 5, "5", "5 evaluations", "20 epochs" or "none"."""
    if isinstance(value, int) and not isinstance(value, bool):
        return {"count": value, "unit": "evaluations"}
    if isinstance(value, str):
        if value.strip().lower() == "none":
            return None
        match = re.fullmatch(r"(\d+)(?:\s*(evaluation|epoch)s?)?", value.strip())
        if match is None:
            raise ValueError('expected "5 evaluations", "20 epochs", a number or "none"')
        return {"count": int(match[1]), "unit": (match[2] or "evaluation") + "s"}
    return value


_Beta = Annotated[float, Field(ge=0, lt=1)]


class TrainingOptions(Section):
    """Optimization, its length and its accelerations."""

    epochs: int = Field(100, ge=0, description="maximum number of passes over the data")
    batch_size: int = Field(
        128, ge=1, description="examples per optimizer step, over all processes"
    )
    batch_size_per_device: int | None = Field(
        None, ge=1, description="examples per step and process, instead of batch_size"
    )
    lr: float = Field(1e-3, gt=0, description="learning rate")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="adamw: decoupled weight decay")
    betas: tuple[_Beta, _Beta] = Field((0.9, 0.999), description="decay rates of Adam's moments")
    eps: float = Field(1e-8, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(
        0.0, ge=0, description="weight decay: L2 (adam) or decoupled (adamw)"
    )
    lr_scaling: Literal["none", "sqrt", "linear"] = Field(
        "none", description="scale lr by the number of processes, or by its square root"
    )
    schedule: Literal["constant", "linear", "cosine", "inverse-sqrt"] = Field(
        "constant",
        description="learning rate after warmup: constant, decreasing to min_lr, or divided by the "
        "square root of the steps since",
    )
    min_lr: Annotated[float, OnlyWith("schedule", "linear", "cosine")] = Field(
        0.0, ge=0, description="learning rate at the end of a linear or cosine schedule"
    )
    warmup_steps: int = Field(0, ge=0, description="steps of linear learning-rate warmup")
    average: float | None = Field(
        None,
        gt=0,
        description="evaluate and save the moving average (EMA) of the weights over about "
        "this many epochs; none: the weights themselves",
    )
    clip_norm: float | None = Field(
        None, gt=0, description="gradient clipping: maximum norm; none: no clipping"
    )
    clip_norm_type: Annotated[
        Annotated[float, Field(gt=0)] | Literal["inf"], OnlyWith("clip_norm")
    ] = Field(2.0, description="order of the norm of clip_norm: 2, 1, ... or inf (largest element)")
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "fp32",
        description="mixed precision (autocast); auto: bf16 where it is fast, "
        "with fp32 in modules that overflow or deviate; else fp32",
    )
    matmul: Literal["auto", "tf32", "highest"] = Field(
        "auto",
        description="float32 matrix products in training on NVIDIA GPUs: tf32 (faster, 10-bit "
        "mantissas) or highest; auto: tf32 where the GPU has it",
    )
    emulate_fp16: Annotated[bool, OnlyWith("precision", "fp16")] = Field(
        False,
        description="train with precision=fp16 on a CPU without fp16 arithmetic too; slower",
    )
    accumulate: int = Field(
        1,
        ge=1,
        description="gradient accumulation: micro-batches per step; same result, less memory",
    )
    recompute: bool = Field(False, description="activation checkpointing: less memory, more time")
    cleanup_every: int | None = Field(
        None,
        ge=1,
        description="return cached memory to the device (on the CPU: to the system) every N steps: "
        "less memory, more time; none: never",
    )
    compile: Literal["off", "auto", "default", "reduce-overhead"] = Field(
        "off",
        description="torch.compile; auto: only if it would save more time than compiling took",
    )
    capture: Literal["auto", "always", "never"] = Field(
        "auto",
        description="CUDA graphs of whole training steps; auto: on CUDA, where steps are alike and "
        "graphs are measured to be faster",
    )
    shard_tables: Literal["auto", "always", "never"] = Field(
        "auto",
        description="divide the rows of embedding tables over the processes; auto: on CPUs, if "
        "whole tables would take half of the memory",
    )
    patience: Annotated[Patience | None, BeforeValidator(_patience)] = Field(
        None, description='early stopping: "5 evaluations" or "20 epochs" without improvement'
    )
    max_time: float | None = Field(None, gt=0, description="stop and save after this many seconds")
    deterministic: bool = Field(False, description="bit-exact results on CUDA too; slower")
    bad_steps: int = Field(
        16, ge=1, description="consecutive non-finite steps before precision drops or the run stops"
    )


Library = Literal["recbole", "rectools", "bert4rec", "kgat", "mmrec", "libkge", "pykeen"]


class EvaluationOptions(Section):
    """Evaluation protocol and metrics."""

    every: int = Field(1, ge=1, description="epochs between evaluations on the validation set")
    test: bool = Field(
        True,
        description="evaluate on the test set too; false: only on the validation set, and "
        "hasten evaluate RUN --part test does it later",
    )
    metrics: tuple[str, ...] = Field(
        ("ndcg@10", "recall@20"), description="reported metrics; the first selects the checkpoint"
    )
    like: Library | None = Field(
        None,
        description="protocol of another library: sets the options of evaluation, and the split of "
        "a new run; none: no protocol of another library",
    )
    candidates: Literal["full", "trained", "uni100", "pop100"] = Field(
        "full",
        description="rank all items, or those in the training part, or the target among 100 other "
        "items, sampled uniformly or by popularity",
    )
    mask_history: bool | Literal["auto", "train"] = Field(
        "auto",
        description="select the model by the ranking without the items of the user's history (both "
        "rankings are reported); auto: unless more than 5 % of the training events are repeats; "
        "train: without the training items only, in the test too",
    )
    seen_targets: Literal["rank", "unmask", "miss", "drop"] = Field(
        "rank",
        description="targets that are masked items themselves: rank them, also let them compete "
        "with the user's other targets (unmask), count them as misses, or leave them out (drop)",
    )
    users: Literal["all", "untied"] | Annotated[int, Field(ge=1)] = Field(
        "all",
        description="untied: only users whose history ends before their targets begin; a number: "
        "while training, validate on so many users, sampled with the seed, and on all at the end",
    )
    triples: Literal["all"] | Annotated[int, Field(ge=1)] = Field(
        "all",
        description="knowledge graphs: a number: while training, validate on so many triples, "
        "sampled with the seed, and on all at the end",
    )
    ties: Literal["realistic", "optimistic", "pessimistic", "rounded"] = Field(
        "realistic",
        description="rank among equal scores: the mean, the best, the worst or the rounded-up mean",
    )
    filter_test: bool = Field(
        True,
        description="knowledge graphs: known test triples are no candidates in validation either",
    )


class CheckpointOptions(Section):
    """When checkpoints are saved, and how many are kept."""

    every: int | None = Field(
        None,
        ge=1,
        description="epochs between checkpoints; none: one, but skip those that would make saving "
        "take more than 5 % of the time",
    )
    every_steps: int | None = Field(None, ge=1, description="also save every N steps")
    every_minutes: float | None = Field(None, gt=0, description="also save every N minutes")
    keep: int = Field(2, ge=2, description="newest checkpoints kept, besides best and final")


class LoggingOptions(Section):
    """Experiment trackers, beside the run folder and TensorBoard."""

    to: tuple[Literal["mlflow", "wandb"], ...] | None = Field(
        None, min_length=1, description="experiment trackers: mlflow, wandb or both"
    )
    project: Annotated[str, OnlyWith("to")] = Field(
        "hasten",
        min_length=1,
        description="name of the experiment in mlflow, or the project in wandb",
    )
    artifacts: Annotated[Literal["none", "record", "model"], OnlyWith("to")] = Field(
        "record",
        description="files that a tracker keeps at the end: config.yaml, metrics.json and "
        "record.json; model: the best checkpoint too",
    )


class DistributedOptions(Section):
    """Communication between processes, and its timeouts."""

    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="torch.distributed backend; auto: nccl on CUDA, else gloo"
    )
    master_port: int = Field(
        0, ge=0, lt=2**16, description="port of the rendezvous of local processes; 0: a free port"
    )
    timeout: float = Field(
        600.0, gt=0, description="seconds to wait for the other processes in a collective operation"
    )
    heartbeat: float = Field(
        60.0,
        ge=1,
        description="heartbeat timeout: seconds after which a silent process counts as lost",
    )


class RunConfig(Section):
    """One run. ``model`` holds the options of the model, ``data`` those of the data it reads."""

    model: SerializeAsAny[ModelOptions]
    data: SerializeAsAny[DataOptions] = InteractionOptions()
    training: TrainingOptions = TrainingOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    logging: LoggingOptions = LoggingOptions()
    distributed: DistributedOptions = DistributedOptions()
    seed: int = Field(0, ge=0, lt=2**63, description="seed of everything random")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, mps")
    devices: int = Field(1, ge=1, description="processes on this machine, one device each")
    threads: int | None = Field(
        None,
        ge=1,
        le=4096,
        description="CPU threads per process; none: torch's default, divided among the processes",
    )
    out: Path | None = Field(None, description="run folder; none: runs/<date>-<model>-<data>-<n>")
    recipe: str | None = Field(
        None,
        description="measured settings for what is not set otherwise: NAME, or DATASET/NAME where "
        "the data have another name (hasten recipes list)",
    )
    init_from: str | None = Field(
        None, description="run or checkpoint to load initial weights from"
    )

    def gives(self, key: str) -> bool:
        """Whether a dotted key was given. A recipe gives all keys: it is a complete set."""
        section, _, name = key.rpartition(".")
        holder = getattr(self, section) if section else self
        return self.recipe is not None or name in holder.model_fields_set

    def given(self, key: str, default: Any) -> Any:
        """The value of a dotted key of a section if it was given, else ``default``."""
        section, _, name = key.partition(".")
        return getattr(getattr(self, section), name) if self.gives(key) else default


class ModelOptions(Section):
    """Base class of all model options."""

    name: str


RunConfig.model_rebuild()
