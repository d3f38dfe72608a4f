"""``hasten recommend``: recommend items to known users or for new histories."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hasten.cli import options, output
from hasten.cli.options import option, switch
from hasten.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from hasten.inference.recommend import Recommendations
    from hasten.inference.stream import Counts

#: users shown on a terminal; a file or a pipe gets all of them
SHOWN = 20
_COLUMNS = ("user_id", "rank", "item_id", "score", "item_name")
_EXPLAINED = ("user_id", "rank", "item_id", "score", "path", "attention", "explanation")


def recommend(  # noqa: PLR0912 - one branch per option
    run: Path = options.RUN,
    users: str | None = option(
        "FILE|a,b,c|all", "Users: a file with one id per line, a list, or all."
    ),
    topk: int = option("N", "Items per user.", default=10, min=1),
    history: str | None = option("a,b,c", "History of a new user: items, oldest first."),
    history_times: str | None = option(
        "t,u,v", "Times of --history in the data's time unit; default: evenly spaced."
    ),
    history_file: Path | None = option(
        "FILE", "Histories of new users: columns user_id,item_id[,timestamp]."
    ),
    until: str = option(
        "PART",
        "Last part of the data that counts as history: train, valid or test.",
        default="test",
    ),
    include_seen: bool = switch("--include-seen", "Also recommend items of the history."),
    allow: str | None = option("FILE", "Recommend only these items."),
    block: str | None = option("FILE", "Never recommend these items."),
    rules: Path | None = option(
        "FILE", "Business rules (YAML): exclusions, groups, category caps, diversity."
    ),
    unknown: str = option(
        "HOW", "Unknown users and items: error, or ignore: leave them out.", default="error"
    ),
    out: Path | None = options.OUT_FILE,
    format: str | None = options.OUT_FORMAT,
    explain: bool = switch("--explain", "With the paths of the graph that carry most attention."),
    paths: int | None = option("N", "Paths per item of --explain; default: 3.", min=1),
    checkpoint: str = options.CHECKPOINT,
    device: str | None = options.DEVICE,
    json: bool = options.JSON,
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Recommend items to users of RUN, or for histories that are new to it.

    By default all that is known of a user is the history: the training,
    validation and test parts. Items of the history are left out.

    hasten recommend runs/mine --users 1,2 --topk 5

    hasten recommend runs/mine --history 11,10,13 --out lists.parquet
    """
    if sum(choice is not None for choice in (users, history, history_file)) != 1:
        raise UsageError(
            "no users: give one of --users FILE|a,b,c|all, --history a,b,c and --history-file FILE"
        )
    if history_times is not None and history is None:
        raise UsageError("--history-times are those of --history a,b,c, which is not given")
    if paths is not None and not explain:
        raise UsageError("--paths is how many --explain gives, which is not given")
    options.one_of("until", until, ("train", "valid", "test"))
    options.one_of("unknown", unknown, ("error", "ignore"))
    options.prepare_process()
    from hasten.inference import export, inputs  # noqa: PLC0415 - brings pyarrow

    options.check_export(out, format)
    wanted = None if users in (None, "all") else inputs.read_labels(str(users), inputs.USER)
    histories: dict[str, list[str]] | None = None
    times: dict[str, list[float]] | None = None
    if history is not None:
        histories = {"new": inputs.split_labels(history)}
        times = None if history_times is None else {"new": inputs.split_times(history_times)}
    elif history_file is not None:
        histories, times = inputs.read_histories(history_file)
    allowed = None if allow is None else inputs.read_labels(allow, inputs.ITEM)
    blocked = None if block is None else inputs.read_labels(block, inputs.ITEM)
    from hasten.inference import recommend as engine  # noqa: PLC0415 - brings torch
    from hasten.inference import stream  # noqa: PLC0415 - as above
    from hasten.loaded_run import load_run  # noqa: PLC0415

    loaded = load_run(run, checkpoint=checkpoint, device=device or "auto")
    if explain:
        from hasten.inference import explain as paths_of  # noqa: PLC0415

        paths_of.require_paths(loaded.model)
    how: dict[str, Any] = {
        "exclude_seen": not include_seen,
        "allow": allowed,
        "block": blocked,
        "until": until,
        "unknown": unknown,
        "rules": rules,
    }
    table: Any = None
    if users == "all" and out is not None and not explain:
        counts = stream.write_recommendations(loaded, out, format, topk, _rate(), **how)
    else:
        found = engine.recommend(loaded, wanted, histories, topk, times=times, **how)
        counts = stream.Counts.of(found)
        table = paths_of.explain(loaded, found, paths or 3) if explain else found.to_table()
        if out is not None:
            export.write_table(table, out, format)
        counts = replace(counts, rows=len(table))
    _tell(counts, include_seen)
    if explain and (without := table["explanation"].null_count):
        output.say(
            f"{without} of {len(found)} items have no path: none of at most "
            f"{len(cast(Any, loaded.model).layers)} edges (the model's layers) leads to them from "
            "the user in the training graph, so they are ranked by their embeddings alone"
        )
    if out is not None:
        output.say(f"{counts.rows:,} rows for {counts.users:,} users in {out}")
    if json:
        about = {
            "run": run,
            "model": loaded.config.model.name,
            "checkpoint": checkpoint,
            "history": counts.known,
            "seen": "included" if include_seen else "excluded",
            "users": counts.users,
            "rows": counts.rows,
            "ignored": counts.ignored,
        }
        output.write_json(about | output.rows("recommendations", table, out))
    elif out is None:
        _show(found, table)


def _rate() -> Callable[[int, int], None]:
    """A function that says how many of the users are done, and how fast."""
    start_time = time.monotonic()

    def say(done: int, users: int) -> None:
        if done < users:
            each = (time.monotonic() - start_time) / done
            left = f"{each * (users - done):,.0f} s left"
            output.say(f"{done:,} of {users:,} users, {1 / each:,.0f} users/s, {left}")

    return say


def _tell(counts: Counts, include_seen: bool) -> None:
    seen = "may appear again" if include_seen else "are left out"
    output.say(f"history: {counts.known}; its items {seen}")
    for kind, count in counts.ignored.items():
        output.say(f"{count} {kind}s are unknown to the run and were ignored")
    if counts.without_history:
        output.say(f"{counts.without_history} users have no history there: the same items for all")
    if counts.short:
        output.say(f"{counts.short} of {counts.users} got fewer than {counts.topk} items")


def _show(recommendations: Recommendations, table: pa.Table) -> None:
    """Print the items of each user."""
    limit = SHOWN if sys.stdout.isatty() else len(recommendations.users)
    shown_users = set(recommendations.users[:limit].to_pylist())
    shown = [row for row in table.to_pylist() if row["user_id"] in shown_users]
    if not shown:
        return
    if "explanation" in table.column_names:
        output.show_rows(shown, _EXPLAINED, longest=200)
    else:
        output.show_rows(shown, _COLUMNS)
    hidden = len(recommendations.users) - limit
    if hidden > 0:
        output.say(f"{hidden:,} more users; --out FILE takes them all")
