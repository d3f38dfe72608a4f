"""Verify a run: train it again, or its first epochs, and compare the results."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hasten.config import RunConfig
from hasten.config_loading.build import load_config
from hasten.distributed.device import resolve_device
from hasten.errors import (
    CheckpointError,
    ConfigurationError,
    Interrupted,
    RunFolderError,
    UsageError,
)
from hasten.run import resume
from hasten.runs.checkpoint import checkpoint_name
from hasten.runs.manifest import recorded_hash
from hasten.runs.option_changes import stages_of
from hasten.runs.record import WEIGHTS, read_record
from hasten.runs.run_folder import CONFIG, UPDATE, RunFolder

#: significant digits in which losses and metrics must agree where bits may differ
DIGITS = 2
#: of the record: what decides the last bits of a result
_VERSIONS = ("hasten", "commit", "torch", "numpy", "python")
_MACHINE = ("processor", "usable_cores", "instructions", "devices")
_EFFECTIVE = ("device", "devices", "threads", "precision", "compile", "retreats")
#: keys of a line of metrics.jsonl that are no results
_NOT_COMPARED = ("kind", "epoch", "step", "time", "seconds", "examples_per_second")


def verify(run: Path, *, epochs: int | None = None, quiet: bool = True) -> dict[str, Any]:
    """Repeat a run in a temporary folder, and compare losses, metrics and weights with its record.

    The repetition uses the data and the configuration of the run folder, as many threads, and one
    process, whose micro-batches are those of all processes of the run. epochs: repeat only so many;
    None: all. If a file of the run has changed since it ended, nothing is repeated.

    Returns ``{"run", "same", "expected": "bits" | "digits", "required_digits", "changed": [text],
    "epochs", "resumed": [text], "environment": [{"name", "recorded", "here"}], "losses", "metrics",
    "weights"}``. resumed: with which other options the run went on.

    Raises:
        RunFolderError: there is no record, or no complete epoch to repeat.
        UsageError: the run has fewer epochs.
    """
    folder = RunFolder.open(run, lock=False)
    if (folder.path / UPDATE).exists():
        raise RunFolderError(
            f"{run}: is the update of another run, whose weights it began with: repeat the update "
            "(hasten update) to compare the two"
        )
    record, changed = read_record(folder)
    report: dict[str, Any] = {"run": str(run), "same": False, "changed": changed}
    if changed:
        return report
    if not record["epochs"]:
        raise RunFolderError(f"{run}: ended within its first epoch, so there is none to repeat")
    if epochs is not None and not 1 <= epochs <= record["epochs"]:
        raise UsageError(f"--epochs {epochs}: the run has 1 to {record['epochs']} complete epochs")
    until = epochs or record["epochs"]
    # checkpoints of epochs are not kept for ever
    checkpoint = folder.checkpoints / checkpoint_name(until, 0)
    try:
        recorded = recorded_hash(checkpoint, WEIGHTS, verify=True) if checkpoint.exists() else None
    except CheckpointError as error:
        return report | {"changed": [str(error)]}
    plan = stages_of(folder.path, load_config(folder.path / CONFIG), record["effective"], until)
    record = record | {"effective": plan.stages[-1].effective}
    with tempfile.TemporaryDirectory(prefix="hasten-verify-") as scratch:
        copy = Path(scratch) / "run"
        _prepare(folder, copy)
        try:
            for stage in plan.stages:
                config = _repeatable(stage.config, stage.effective)
                RunFolder(copy, None).write_config(config)
                resume(copy, quiet=quiet, until=stage.until)
        except Interrupted as error:
            raise Interrupted("interrupted: nothing was compared", error.signal_number) from error
        repeated = RunFolder.open(copy, lock=False)
        compared = _compare(folder, record, repeated, until, recorded, exact=plan.exact)
        return report | {"resumed": plan.notes} | compared


def _prepare(folder: RunFolder, again: Path) -> None:
    """A folder with the data of the run, to which a configuration makes a run."""
    again.mkdir()
    for name in ("data.json", "environment.json"):
        shutil.copyfile(folder.path / name, again / name)
    (again / "data").symlink_to(folder.data.resolve())


def _repeatable(config: RunConfig, effective: Mapping[str, Any]) -> RunConfig:
    """The configuration for one process on this machine that repeats what was in effect."""
    options = config.training
    changes: dict[str, Any] = {"max_time": None}
    if effective["accumulate"] is not None:  # it has gradient steps
        changes["accumulate"] = effective["accumulate"] * effective["devices"]
    if options.compile == "auto":  # do not measure again: it could decide otherwise
        compiled = [report for report in _reports(effective) if report["in_effect"]]
        changes["compile"] = "default" if compiled else "off"
    device = effective["device"].partition(":")[0]
    try:
        resolve_device(device)
    except ConfigurationError:
        device = "auto"
    training = options.model_copy(update=changes)
    update = {"training": training, "devices": 1, "device": device}
    return config.model_copy(update={**update, "threads": effective["threads"]})


def _compare(
    folder: RunFolder,
    record: Mapping[str, Any],
    again: RunFolder,
    until: int,
    recorded_weights: str | None,
    *,
    exact: bool,
) -> dict[str, Any]:
    """Compare the run with its repetition.

    kept: the hash of the weights after the last repeated epoch, if there is a checkpoint. exact:
    whether all options could be repeated.
    """
    repeated, _ = read_record(again)
    recorded_lines, repeated_lines = _lines(folder.path), _lines(again.path)
    best = record["metrics"]["epoch"]
    # the best checkpoint is among the epochs that were repeated
    selected = best <= until and ("valid", best) in recorded_lines
    complete = "metrics.json" in record["files"]
    # max_time ends a run within an epoch
    whole = complete and record["ended"] != "max_time" and until == record["epochs"]
    losses = _figures("train", recorded_lines, repeated_lines, until)
    metrics = _figures("valid", recorded_lines, repeated_lines, until)
    if complete and (selected or whole):
        for part in ("valid", "test"):
            metrics += _pairs(f"{part} of the best", record["metrics"][part], best, repeated)
    weights = {}
    if before := record["weights"]["final"] if whole else recorded_weights:
        weights[f"epoch {until}"] = before == repeated["weights"]["final"]
    if selected or whole:
        weights["best"] = record["weights"].get("best") == repeated["weights"]["best"]
    environment = list(_differences(record, repeated))
    exact = (
        exact
        and not environment
        and (
            repeated["effective"]["device"] == "cpu"
            or record["configuration"]["training.deterministic"]
        )
    )
    compared = {"losses": _agreement(losses), "metrics": _agreement(metrics)}
    if exact:
        same = all(each["equal"] for each in compared.values()) and all(weights.values())
    else:
        same = all(each["equal"] or each["digits"] >= DIGITS for each in compared.values())
    return {
        "same": same,
        "expected": "bits" if exact else "digits",
        "required_digits": DIGITS,
        "epochs": until,
        "environment": environment,
        **compared,
        "weights": weights,
    }


def _lines(run: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """The records of training and validation by kind and epoch."""
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {(x["kind"], x["epoch"]): x for x in lines if x["kind"] in ("train", "valid")}


_Pair = tuple[str, int, Any, Any]


def _figures(
    kind: str, recorded: Mapping[Any, Any], repeated: Mapping[Any, Any], until: int
) -> list[_Pair]:
    """(name, epoch, recorded, repeated) of the epochs that both have."""
    shared = sorted(key for key in recorded.keys() & repeated.keys() if key[0] == kind)
    return [
        (name, epoch, value, repeated[kind, epoch].get(name))
        for _, epoch in shared
        if epoch <= until
        for name, value in recorded[kind, epoch].items()
        if name not in _NOT_COMPARED
    ]


def _pairs(
    part: str, values: Mapping[str, Any], epoch: int, repeated: Mapping[str, Any]
) -> list[_Pair]:
    others = repeated["metrics"][part.partition(" ")[0]]
    return [(f"{name} ({part})", epoch, value, others.get(name)) for name, value in values.items()]


def _agreement(pairs: Sequence[_Pair]) -> dict[str, Any]:
    """Whether all figures are equal; else in how many digits, and which differs first and most."""
    different = [pair for pair in pairs if pair[2] != pair[3]]
    agreement: dict[str, Any] = {"compared": len(pairs), "equal": not different}
    if different:
        digits = [common_digits(recorded, repeated) for _, _, recorded, repeated in different]
        worst = different[digits.index(min(digits))]
        named_pairs = zip(("first", "worst"), (different[0], worst), strict=True)
        keys = ("name", "epoch", "recorded", "repeated")
        agreement |= {"digits": min(digits), "different": len(different)}
        agreement |= {name: dict(zip(keys, pair, strict=True)) for name, pair in named_pairs}
    return agreement


def common_digits(left: float | None, right: float | None) -> int:
    """In how many significant digits two different numbers agree; 0 if one is not finite."""
    if left is None or right is None:
        return 0
    relative = abs(left - right) / max(abs(left), abs(right))
    return max(0, math.floor(-math.log10(relative)))


def _differences(
    record: Mapping[str, Any], repeated: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """What differs between the environments of the run and of its repetition."""
    for section, names in (
        ("versions", _VERSIONS),
        ("machine", _MACHINE),
        ("effective", _EFFECTIVE),
    ):
        for name in names:
            before, here = record[section].get(name), repeated[section].get(name)
            if name == "compile":
                before, here = (
                    any(report["in_effect"] for report in _reports(each["effective"]))
                    for each in (record, repeated)
                )
            # of the beginning of a run that was resumed with others: as here
            unknown = name in ("device", "threads") and before in ("auto", None)
            if before != here and not unknown:
                yield {"name": f"{section}.{name}", "recorded": before, "here": here}


def _reports(effective: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The reports of compiling; none if it was off."""
    reports = effective["compile"]
    return reports if isinstance(reports, list) else []
