"""Latency of ``hasten serve`` under requests that arrive at a given rate.

    python -m bench.serve_load RUN
    python -m bench.serve_load RUN --rates 50 --cores 0 --repeats 5 --provisional

Starts the service on the given cores and sends ``POST /recommend`` for random known users, and for
their histories as those of unknown users. Arrivals are a Poisson process that does not wait for
answers, and a latency counts from the planned arrival, so a service that falls behind is seen. The
result, with the percentiles of every repeat, goes to bench/results.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from bench.machine import load
from bench.results import RESULTS, circumstances, page, write_result

#: requests before the first repeat
WARM_UP = 200


def main(arguments: Sequence[str] | None = None, results: Path = RESULTS) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[10, 50, 100, 200])
    parser.add_argument("--seconds", type=float, default=20, help="of a repeat")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cores", help="the service's, such as 0,1; none: all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--wait-ms", type=float, default=0.0)
    parser.add_argument("--name", default="serve-load")
    parser.add_argument("--provisional", action="store_true", help="the machine is not quiet")
    options = parser.parse_args(arguments)
    before = load()
    bodies = requests_of(options.run)
    lines = []
    with service(options) as port:
        asyncio.run(repeat(port, bodies["user"][:WARM_UP], 100))
        for rate in options.rates:
            for kind, each in bodies.items():
                for number in range(options.repeats):
                    lines.append(measure(port, each, rate, kind, number, options.seconds))
                    print(json.dumps(lines[-1]), file=sys.stderr)
        batches = health(port)
    record = json.loads((options.run / "record.json").read_text())
    result = {
        "name": options.name,
        "model": record.get("model"),
        "cores": options.cores or "all",
        "threads": options.threads,
        "wait_ms": options.wait_ms,
        "lines": lines,
        "batches": {name: batches[name] for name in ("questions", "batches")},
        **circumstances(before, options.provisional),
        "repeat": "python -m bench.serve_load RUN " + " ".join((arguments or sys.argv[1:])[1:]),
    }
    print(markdown(result))
    print(write_result(result, markdown(result), results))
    return 0


def requests_of(run: Path) -> dict[str, list[bytes]]:
    """Bodies for 2,000 random users with a history, by kind."""
    from hasten.data.store import load_stored
    from hasten.data.tables import TEST, TRAIN, VALID, Dataset

    dataset = load_stored(run / "data")
    assert isinstance(dataset, Dataset)
    histories = dataset.histories(TRAIN, VALID, TEST)
    users = np.random.default_rng(0).choice(np.flatnonzero(histories.lengths), 2000)
    labels, items = dataset.users.labels.to_pylist(), dataset.items.labels.to_pylist()
    known = [{"user": labels[user]} for user in users]
    new = [{"history": [items[i] for i in histories.take(users[[n]]).items]} for n in range(2000)]
    return {
        kind: [json.dumps(body).encode() for body in bodies]
        for kind, bodies in (("user", known), ("history", new))
    }


@contextmanager
def service(options: argparse.Namespace) -> Iterator[int]:
    """The port of a running service."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [sys.executable, "-m", "hasten", "serve", str(options.run), "--port", str(port),
               "--threads", str(options.threads), "--wait-ms", str(options.wait_ms)]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        if options.cores:
            os.sched_setaffinity(process.pid, map(int, options.cores.split(",")))
        for _ in range(600):
            time.sleep(0.1)
            try:
                health(port)
                break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("the service did not start") from None
        yield port
    finally:
        process.terminate()
        process.wait(20)


def health(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def measure(
    port: int, bodies: Sequence[bytes], rate: float, kind: str, number: int, seconds: float
) -> dict[str, Any]:
    """The latencies of one repeat, in milliseconds."""
    start = number * 7919 % len(bodies)
    turned = [*bodies[start:], *bodies[:start]]
    count = int(rate * seconds)
    wanted = (turned * (count // len(turned) + 1))[:count]
    begin = time.perf_counter()
    found = 1e3 * np.array(asyncio.run(repeat(port, wanted, rate, seed=number)))
    took = time.perf_counter() - begin
    return {
        "rate": rate, "kind": kind, "repeat": number, "requests": len(found),
        "answered_per_second": round(len(found) / took, 1),
        **{f"p{q}": round(float(np.percentile(found, q)), 3) for q in (50, 95, 99)},
        "max": round(float(found.max()), 3),
    }  # fmt: skip


async def repeat(port: int, bodies: Sequence[bytes], rate: float, seed: int = 0) -> list[float]:
    """Seconds from the planned arrival of each request to its answer."""
    arrivals = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, len(bodies)))
    idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    writers: set[asyncio.StreamWriter] = set()
    begin = time.perf_counter()

    async def send(body: bytes, planned: float) -> float:
        while idle and idle[-1][0].at_eof():  # closed by the service after 5 idle seconds
            idle.pop()
        opened = idle.pop() if idle else await asyncio.open_connection("127.0.0.1", port)
        reader, writer = opened
        writers.add(writer)
        writer.write(
            b"POST /recommend HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        length = head.lower().split(b"content-length:")[1].split(b"\r\n")[0]
        await reader.readexactly(int(length))
        idle.append(opened)
        return time.perf_counter() - begin - planned

    sent = []
    for body, planned in zip(bodies, arrivals.tolist(), strict=True):
        delay = planned - (time.perf_counter() - begin)
        if delay > 0:
            await asyncio.sleep(delay)
        sent.append(asyncio.create_task(send(body, planned)))
    try:
        return await asyncio.gather(*sent)
    finally:
        for writer in writers:
            writer.close()
        await asyncio.gather(*(each.wait_closed() for each in writers), return_exceptions=True)


def markdown(result: dict[str, Any]) -> str:
    """The result for people."""
    about = (
        f"{result['model']}: requests for 10 items by a Poisson process, milliseconds from the "
        f"planned arrival to the answer; service on cores {result['cores']}, "
        f"{result['threads']} thread(s) for scoring, --wait-ms {result['wait_ms']:g}."
    )
    head = "| requests/s | kind | repeat | requests | p50 | p95 | p99 | max |"
    rows = [
        f"| {line['rate']:g} | {line['kind']} | {line['repeat']} | {line['requests']:,} | "
        + " | ".join(f"{line[name]:.1f}" for name in ("p50", "p95", "p99", "max")) + " |"
        for line in result["lines"]
    ]  # fmt: skip
    return page(result, about, [head, "| --- " * 8 + "|", *rows])


if __name__ == "__main__":
    sys.exit(main())
