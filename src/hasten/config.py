"""The typed run configuration: everything a run depends on, in one validated object.

Built by :mod:`hasten.configuration.build` from defaults < the model's defaults < a YAML file <
``--set`` < flags; saved resolved as ``config.yaml`` in the run folder.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializeAsAny,
    model_serializer,
    model_validator,
)


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values are checked."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False
    )


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


class DataOptions(Section):
    """What to read, how to clean it and how to split it."""

    path: str | None = Field(None, description="file, folder or registered name; none: a sample")
    format: str | None = Field(None, description="format name where it cannot be recognised")
    train: str | None = Field(None, description="training file, where files are named one by one")
    valid: str | None = Field(None, description="validation file (given split)")
    test: str | None = Field(None, description="test file (given split)")
    times: str | None = Field(None, description="file of times parallel to a file of sequences")
    names: str | None = Field(
        None, description="file of names of items or entities: id<separator>name"
    )
    separator: str | None = Field(None, description="column separator; none: recognised")
    entities: str | None = Field(
        None, description="triples: file of the entities, label<separator>number, or JSON"
    )
    relations: str | None = Field(
        None, description="triples: file of the relations, label<separator>number, or JSON"
    )
    relation_names: str | None = Field(
        None, description="triples: file of relation names, as data.names; or a JSON object"
    )
    unknown: Literal["error", "drop", "rank-last", "keep"] = Field(
        "error",
        description="valid and test triples with an entity or relation of no training triple: "
        "keep scores it untrained, rank-last counts it as a miss",
    )
    columns: dict[str, str] = Field(
        default_factory=dict, description="our column name -> name in the file (user, item, ...)"
    )
    ids: Literal["auto", "numbers", "labels"] = Field(
        "auto", description="numbers: whole, from 0 to 2^31-1; labels: any text; auto: by content"
    )
    time_unit: Literal["s", "ms", "us", "ns"] = Field("s", description="unit of the time column")
    duplicates: Literal["keep", "drop", "error"] = Field(
        "keep", description="repeated (user, item, time) events, or triples"
    )
    min_rating: float | None = Field(None, description="keep events rated at least this")
    k_core: int = Field(0, ge=0, description="repeatedly drop users and items with fewer events")
    split: Literal["auto", "leave-last-two-out", "ratio", "given"] = Field(
        "auto", description="auto: given where the files say so, else leave-last-two-out"
    )
    ratios: tuple[float, float, float] = Field(
        (0.8, 0.1, 0.1),
        description="train, valid, test shares of each user's events, or of triples",
    )
    ratio_order: Literal["time", "random"] = Field(
        "time", description="ratio split: each user's last events, or a seeded random choice"
    )

    valid_share: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each user's train items for validation, where a given split has none",
    )
    refit: bool = Field(
        False,
        description="train on the validation part too, for as many epochs as were selected",
    )
    kg: str | None = Field(None, description="file of triples about the items")
    nodes: str | None = Field(
        None, description="typed graphs: table of all nodes with the columns id, name, kind"
    )
    edges: dict[str, str] = Field(
        default_factory=dict,
        description="typed graphs: relation -> CSV file of its edges, whose header names the types",
    )
    node_types: tuple[str, ...] | None = Field(
        None, description="typed graphs: only nodes of these types, and the edges between them"
    )
    edge_types: tuple[str, ...] | None = Field(
        None, description="typed graphs: only these relations"
    )
    symmetric: tuple[str, ...] = Field(
        (), description="typed graphs: relations whose edges have no direction"
    )
    links: str | None = Field(
        None, description="file of item<separator>entity, where kg calls items otherwise"
    )
    features: dict[str, str] = Field(
        default_factory=dict,
        description="modality (typed graphs: type of nodes) -> file of features (.npy, .parquet)",
    )

    @model_validator(mode="after")
    def _check_ratios(self) -> DataOptions:
        if min(self.ratios) < 0 or self.ratios[0] <= 0 or abs(sum(self.ratios) - 1) > 1e-6:
            raise ValueError("ratios must be three shares that sum to 1, the first above 0")
        return self


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
    min_lr: float = Field(0.0, ge=0, description="where linear and cosine schedules end")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up")
    average: float | None = Field(
        None,
        gt=0,
        description="judge and keep the average of the weights over about so many epochs, which "
        "forgets exponentially; none: the weights themselves",
    )
    clip_norm: float | None = Field(None, gt=0, description="clip the gradient's norm to this")
    clip_norm_type: Annotated[float, Field(gt=0)] | Literal["inf"] = Field(
        2.0, description="which norm clip_norm is of: 2, 1, ..., or inf, the largest element"
    )
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

    @model_validator(mode="after")
    def _check_clipping(self) -> TrainingOptions:
        if self.clip_norm is None and self.clip_norm_type != 2:
            raise ValueError("clip_norm_type has no effect without clip_norm")
        return self


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
        60.0, ge=1, description="seconds without a sign of life after which a process is given up"
    )


class RunConfig(Section):
    """One run, whole. ``model`` carries the name and the options of that model."""

    model: SerializeAsAny[ModelOptions]
    data: DataOptions = DataOptions()
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
