"""The configuration of a run and its sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SerializeAsAny, model_serializer

from hasten.config.data import DataOptions, InteractionOptions
from hasten.config.section import OnlyWith, Section


class Patience(Section):
    """Stop after so many evaluations, or epochs, without improvement; written "5 evaluations"."""

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


class TrainingOptions(Section):
    """The optimisation and its accelerations."""

    epochs: int = Field(100, ge=0, description="at most so many passes over the data")
    batch_size: int = Field(128, ge=1, description="examples per optimiser step, over everything")
    batch_size_per_device: int | None = Field(
        None, ge=1, description="instead of batch_size: examples per step and process"
    )
    lr: float = Field(1e-3, gt=0, description="learning rate")
    optimizer: Literal["adam", "adamw"] = Field("adam", description="AdamW decouples the decay")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Adam's moment decay")
    eps: float = Field(1e-8, gt=0, description="Adam's epsilon")
    weight_decay: float = Field(0.0, ge=0, description="L2 (adam) or decoupled (adamw) decay")
    lr_scaling: Literal["none", "sqrt", "linear"] = Field(
        "none", description="multiply lr by the number of processes, or its square root"
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="learning rate after the warm-up, down to min_lr at the last epoch"
    )
    min_lr: Annotated[float, OnlyWith("schedule", "linear", "cosine")] = Field(
        0.0, ge=0, description="learning rate at the end of a linear or cosine schedule"
    )
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    average: float | None = Field(
        None,
        gt=0,
        description="judge and keep the average of the weights over about so many epochs, which "
        "forgets exponentially; none: the weights themselves",
    )
    clip_norm: float | None = Field(None, gt=0, description="clip the gradient's norm to this")
    clip_norm_type: Annotated[
        Annotated[float, Field(gt=0)] | Literal["inf"], OnlyWith("clip_norm")
    ] = Field(2.0, description="which norm clip_norm is of: 2, 1, ..., or inf, the largest element")
    precision: Literal["fp32", "bf16", "fp16", "auto"] = Field(
        "fp32", description="auto: bf16 where the device computes it fast, else fp32"
    )
    accumulate: int = Field(1, ge=1, description="micro-batches a step; the result is the same")
    recompute: bool = Field(False, description="activation checkpointing: less memory, more time")
    cleanup_every: int | None = Field(
        None,
        ge=1,
        description="every so many steps give free memory back to the device (on the CPU to the "
        "system): less memory is held between steps, more time is taken; none: never",
    )
    compile: Literal["off", "auto", "default", "reduce-overhead"] = Field(
        "off", description="torch.compile; auto keeps it only if it is measured to be faster"
    )
    patience: Annotated[Patience | None, BeforeValidator(_patience)] = Field(
        None, description='"5 evaluations" or "20 epochs" without improvement end the run'
    )
    max_time: float | None = Field(None, gt=0, description="seconds after which to stop and save")
    deterministic: bool = Field(False, description="bit-exact on CUDA too, at a cost")
    bad_steps: int = Field(
        16, ge=1, description="non-finite steps in a row before precision drops or the run stops"
    )


class EvaluationOptions(Section):
    """How the model is judged; the protocol's text travels with every number."""

    every: int = Field(1, ge=1, description="evaluate on the validation set every so many epochs")
    metrics: tuple[str, ...] = Field(
        ("ndcg@10", "hr@10"), description="reported metrics; the first selects the checkpoint"
    )
    candidates: Literal["full", "uni100"] = Field(
        "full", description="rank the whole catalogue, or the target among 100 random others"
    )
    mask_history: bool = Field(False, description="take the items of the history out of the rank")
    users: Literal["all", "untied"] = Field(
        "all", description="untied: only those whose history ends before what is predicted begins"
    )
    ties: Literal["realistic", "optimistic", "pessimistic"] = Field(
        "realistic", description="rank among equal scores: their mean, the best or the worst"
    )


class CheckpointOptions(Section):
    """What is saved, when, and how much of it is kept."""

    every: int = Field(1, ge=1, description="save every so many epochs")
    every_steps: int | None = Field(None, ge=1, description="also save every so many steps")
    every_minutes: float | None = Field(None, gt=0, description="also save every so many minutes")
    keep: int = Field(2, ge=2, description="checkpoints kept beside best and final")


class DistributedOptions(Section):
    """How several processes find each other, and how long they wait for each other."""

    backend: Literal["auto", "nccl", "gloo"] = Field(
        "auto", description="of torch.distributed; auto: nccl on CUDA, else gloo"
    )
    master_port: int = Field(
        0, ge=0, lt=2**16, description="where the processes that devices starts meet; 0: a free one"
    )
    timeout: float = Field(
        600.0, gt=0, description="seconds that a process waits for the others at one point"
    )
    heartbeat: float = Field(
        60.0, ge=1, description="seconds without a heartbeat after which a process is lost"
    )


class RunConfig(Section):
    """One run. ``model`` has the type of the model's options, ``data`` that of what it reads."""

    model: SerializeAsAny[ModelOptions]
    data: SerializeAsAny[DataOptions] = InteractionOptions()
    training: TrainingOptions = TrainingOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    checkpoint: CheckpointOptions = CheckpointOptions()
    distributed: DistributedOptions = DistributedOptions()
    seed: int = Field(0, ge=0, lt=2**63, description="everything random follows from it")
    device: str = Field("auto", description="auto, cpu, cuda, cuda:0, mps")
    devices: int = Field(1, ge=1, description="processes on this machine, each on its own device")
    threads: int | None = Field(
        None, ge=1, description="CPU threads of a process; none: torch's choice, shared fairly"
    )
    out: Path | None = Field(None, description="the run folder; none: runs/<date>-<model>-...")
    init_from: str | None = Field(None, description="run or checkpoint to take weights from")


class ModelOptions(Section):
    """What the options of every model share: its name."""

    name: str


RunConfig.model_rebuild()
