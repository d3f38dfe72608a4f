"""Settings that fit a memory budget: those that save memory are probed, cheapest in time first.

The batch of an optimizer step stays the same, and so do the results, up to rounding. Mixed
precision, which changes the results, is tried last and never chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hasten.build import with_builtin_sample
from hasten.config import RunConfig
from hasten.distributed.device import resolve_device
from hasten.errors import ConfigurationError, HastenError
from hasten.models.supports import Supports
from hasten.planning.plan import OutOfMemoryError, Plan, plan_run
from hasten.registry import load_model
from hasten.runs.run_folder import RunFolder
from hasten.training.precision import slow_precision

#: the share of a budget that a predicted peak may take: the rest is for the error of predictions
SHARE = 0.95
#: a setting that saves less than this share of the memory is carried further only once, with this
#: many times as many micro-batches
_SAVES, _FAR = 0.02, 8
_MAX_MICRO_BATCHES = 1024


@dataclass(frozen=True)
class Candidate:
    """Settings that were tried.

    changes: options of training that differ from those given. plan: None if the probe ran out of
    memory. costs: what the changes cost, in words.
    """

    changes: dict[str, Any]
    plan: Plan | None
    costs: str

    @property
    def peak(self) -> float:
        return float("inf") if self.plan is None else self.plan.peak_memory_bytes

    @property
    def seconds(self) -> float:
        """Predicted seconds of an epoch."""
        return float("inf") if self.plan is None else self.plan.seconds["epoch"]

    def fits(self, budget: int) -> bool:
        """Whether the predicted peak leaves a reserve of the budget."""
        return self.peak <= SHARE * budget

    @property
    def exact(self) -> bool:
        """Whether the results stay the same, up to rounding."""
        return "precision" not in self.changes

    @property
    def text(self) -> str:
        return ", ".join(f"{k} {_word(v)}" for k, v in self.changes.items()) or "as given"


@dataclass(frozen=True)
class BudgetPlan:
    """The settings tried for a memory budget (bytes), in the order of their cost in time."""

    budget: int
    tried: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate | None:
        """The fastest exact settings that fit; None if none do."""
        fitting = (each for each in self.tried if each.exact and each.fits(self.budget))
        return min(fitting, key=lambda each: each.seconds, default=None)

    @property
    def smallest(self) -> int | None:
        """The smallest budget that some of the settings fit; None if all ran out of memory."""
        peaks = [each.plan.peak_memory_bytes for each in self.tried if each.plan and each.exact]
        return int(min(peaks) / SHARE) + 1 if peaks else None

    @property
    def refusal(self) -> str:
        """Why no settings were chosen."""
        if self.smallest is None:
            return f"no settings fit the memory of this machine: {self.tried[0].costs}"
        return (
            f"{mebibytes(self.budget)} are too few; the smallest budget for this model and batch "
            f"size is {mebibytes(self.smallest)}"
        )

    @property
    def reason(self) -> str:
        """Why these settings were chosen."""
        first, chosen = self.tried[0], self.chosen
        assert chosen is not None
        assert chosen.plan is not None
        peak = f"predicted peak {mebibytes(chosen.plan.peak_memory_bytes)}"
        if chosen is first:
            return f"{peak}: the settings as given fit {mebibytes(self.budget)}"
        before = "more than there is" if first.plan is None else mebibytes(int(first.peak))
        return (
            f"{peak} instead of {before}: the fastest of {len(self.tried)} settings that fit "
            f"{mebibytes(self.budget)}; {chosen.costs}"
        )

    def to_json(self) -> dict[str, Any]:
        chosen = self.chosen
        return {
            "budget_bytes": self.budget,
            "smallest_budget_bytes": self.smallest,
            "chosen": None if chosen is None else chosen.changes,
            "reason": None if chosen is None else self.reason,
            "tried": [{**asdict(each), "fits": each.fits(self.budget)} for each in self.tried],
        }


class BudgetError(HastenError):
    """No settings fit the memory budget."""

    code = "memory"
    exit_code = 2


def plan_budget(
    config: RunConfig, budget: int, tell: Callable[[Candidate], None] = lambda _: None
) -> BudgetPlan:
    """Probe settings until the fastest that fits is known. tell: called after each probe."""
    tried: list[Candidate] = []

    def attempt(changes: dict[str, Any]) -> Candidate:
        trial = _probed(config, changes, tried[0].plan if tried else None)
        tried.append(trial)
        tell(trial)
        return trial

    first = attempt({})
    if not first.fits(budget):
        for family in _families(config):
            before, left = first, family
            skipped: list[dict[str, Any]] = []
            saved = True
            while left:
                try:
                    now = attempt(left[0])
                except HastenError as error:
                    if error.code != ConfigurationError.code:
                        raise
                    # the model does not divide its batch into so many
                    left, skipped = skipped[-1:], skipped[:-1]
                    continue
                saves = now.peak <= (1 - _SAVES) * before.peak
                if now.fits(budget) or not (saves or saved):
                    break
                wanted = _micro_batches_that_fit(config, before, now, SHARE * budget)
                more, before, saved = left[1:], now, saves
                if not saves:  # predictions vary by as much: one further attempt, with far more
                    wanted = _FAR * int(now.changes.get("accumulate", 1))
                left = [each for each in more if each["accumulate"] >= wanted] or more[-1:]
                skipped = more[: len(more) - len(left)]
    return BudgetPlan(budget, tuple(tried))


def fit_run(
    config: RunConfig, budget: int, resume: bool = False
) -> tuple[RunConfig, dict[str, Any] | None]:
    """The configuration of a run within a memory budget, and what its folder keeps of the plan.

    resume: a run in ``config.out`` goes on with the settings that were chosen at its start. Raises
    BudgetError if no settings fit, with the smallest budget that some do.
    """
    if resume and config.out is not None and RunFolder.holds_run(config.out):
        before = RunFolder(config.out, None).read_plan()
        return (config if before is None else with_changes(config, before["chosen"])), None
    config = with_builtin_sample(config)
    plan = plan_budget(config, budget)
    chosen = plan.chosen
    if chosen is None or chosen.plan is None:
        raise BudgetError(
            f"--memory-budget: {plan.refusal}; hasten plan --budget shows what each setting "
            "needs, and a smaller model or batch needs less"
        )
    predicted = {
        "peak_memory_bytes": chosen.plan.peak_memory_bytes,
        "epoch_seconds": chosen.plan.seconds["epoch"],
        "memory": chosen.plan.memory,
    }
    record = {"budget_bytes": budget, "chosen": chosen.changes, "reason": plan.reason}
    return with_changes(config, chosen.changes), {**record, "predicted": predicted}


def with_changes(config: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """The configuration with other options of training."""
    training = config.training.model_copy(update=changes)
    return config.model_copy(update={"training": training})


def mebibytes(count: int) -> str:
    """A number of bytes in MiB, as text."""
    return f"{count / 2**20:,.0f} MiB"


def _micro_batches_that_fit(
    config: RunConfig, before: Candidate, now: Candidate, limit: float
) -> float:
    """How many micro-batches fit if the memory of two settings is a constant and a part of each.

    Skips probes of settings that will not fit. 0: unknown. If none fit, the number above which more
    hardly help.
    """
    micro_batches = config.training.accumulate
    shares = [1 / int(each.changes.get("accumulate", micro_batches)) for each in (before, now)]
    if shares[0] == shares[1] or before.plan is None or now.plan is None:
        return 0.0
    divided = (before.peak - now.peak) / (shares[0] - shares[1])
    constant = now.peak - divided * shares[1]
    return divided / max(limit - constant, _SAVES * constant)


def _families(config: RunConfig) -> Iterator[list[dict[str, Any]]]:
    """Changes that save memory: in each family, each saves more than the one before."""
    supports = Supports.of(load_model(config.model.name))
    if not supports.gradient_steps:
        return
    yield list(_micro_batches(config, {}))
    if supports.recompute and not config.training.recompute:
        recompute = {"recompute": True}
        yield [recompute, *_micro_batches(config, recompute)]
    fast = slow_precision("bf16", resolve_device(config.device)) is None
    if supports.precision and config.training.precision == "fp32" and fast:
        yield [{"precision": "bf16"}]


def _micro_batches(config: RunConfig, more: dict[str, Any]) -> Iterator[dict[str, Any]]:
    size = config.training.batch_size_per_device or config.training.batch_size
    count = 2 * config.training.accumulate
    while count <= min(size, _MAX_MICRO_BATCHES):
        yield {**more, "accumulate": count}
        count *= 2


def _probed(config: RunConfig, changes: dict[str, Any], first: Plan | None) -> Candidate:
    try:
        plan = plan_run(with_changes(config, changes))
    except OutOfMemoryError as error:
        return Candidate(changes, None, str(error))
    if not changes:
        return Candidate(changes, plan, "")
    costs = [_COSTS[name] for name in changes]
    if first is not None and first.seconds["epoch"]:
        more = plan.seconds["epoch"] / first.seconds["epoch"] - 1
        costs.append(f"{more:+.0%} seconds per epoch")
    return Candidate(changes, plan, "; ".join(costs))


_COSTS = {
    "accumulate": "smaller matrix products; same results up to rounding and other dropout masks",
    "precision": "other results: compare the metrics",
    "recompute": "activations are computed twice; same results",
}


def _word(value: Any) -> str:
    return "on" if value is True else str(value)
