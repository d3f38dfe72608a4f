"""The load generator, against a server that answers after a known time."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

import hasten
from bench import serve_load

ANSWER = b'{"items": [], "ignored": 0}'


class Server:
    """Answers one request at a time after ``seconds`` each, and closes every n-th connection."""

    def __init__(self, seconds=0.0, status=b"200 OK", close_every=0):
        self.seconds, self.status, self.close_every = seconds, status, close_every
        self.bodies, self.connections = [], 0

    @contextmanager
    def running(self):
        loop, ready = asyncio.new_event_loop(), threading.Event()
        listening = socket.create_server(("127.0.0.1", 0))

        async def serve():
            self.busy, self.end = asyncio.Lock(), asyncio.Event()
            async with await asyncio.start_server(self.answer, sock=listening):
                ready.set()
                await self.end.wait()
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.wait_for(asyncio.gather(*rest), 10)

        thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
        thread.start()
        ready.wait(10)
        try:
            yield listening.getsockname()[1]
        finally:
            loop.call_soon_threadsafe(self.end.set)
            thread.join(10)
            loop.close()

    async def answer(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                body = ANSWER
                if head.startswith(b"POST"):
                    length = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                    self.bodies.append(await reader.readexactly(length))
                    async with self.busy:
                        await asyncio.sleep(self.seconds)
                else:
                    body = json.dumps({"questions": len(self.bodies), "batches": 1}).encode()
                writer.write(
                    b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (self.status, len(body), body)
                )
                if self.close_every and len(self.bodies) % self.close_every == 0:
                    break
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            writer.close()


def arrivals(count, rate, seed):
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def test_a_latency_counts_from_the_planned_arrival():
    """20 arrivals in 20 ms at a server that takes 10 ms each: the queue grows, and is seen."""
    server = Server(seconds=0.01)
    bodies = [b"%d" % number for number in range(20)]
    with server.running() as port:
        found = np.array(asyncio.run(serve_load.repeat(port, bodies, 1000, seed=3)))
    assert sorted(server.bodies) == sorted(bodies)
    # the n-th answer cannot be ready before n + 1 times 10 ms after the first arrival
    done = np.sort(found + arrivals(20, 1000, 3))
    assert (done >= 0.0099 * np.arange(1, 21)).all()
    assert found.max() > 0.15


def test_connections_that_the_server_closed_are_not_used_again():
    server = Server(close_every=1)
    with server.running() as port:
        found = asyncio.run(serve_load.repeat(port, [b"x"] * 10, 50))
    assert len(found) == 10
    assert server.connections == 10


def test_an_answer_other_than_200_is_an_error():
    with Server(status=b"503 busy").running() as port, pytest.raises(AssertionError, match="503"):
        asyncio.run(serve_load.repeat(port, [b"x"], 100))


def test_a_measurement_repeats_the_requests_up_to_the_rate_and_reports_percentiles():
    server = Server(seconds=0.004)
    with server.running() as port:
        line = serve_load.measure(port, [b"a", b"bb"], 50, "user", 0, 0.5)
    assert len(server.bodies) == line["requests"] == 25
    assert set(server.bodies) == {b"a", b"bb"}
    assert 4 <= line["p50"] <= line["p95"] <= line["p99"] <= line["max"]


@pytest.mark.slow
def test_the_result_holds_every_repeat(tmp_path, monkeypatch, capsys):
    rows = [(u, (u + step) % 6, step) for u in range(5) for step in range(5)]
    table = dict(zip(("user", "item", "time"), map(list, zip(*rows, strict=True)), strict=True))
    run = hasten.train("pop", table, out=str(tmp_path / "run"), quiet=True).path
    server = Server()
    with server.running() as port:
        monkeypatch.setattr(serve_load, "WARM_UP", 3)
        monkeypatch.setattr(serve_load, "service", lambda _: nullcontext(port))
        given = [str(run), "--rates", "200", "--seconds", "0.05", "--repeats", "2", "--provisional"]
        serve_load.main(given, tmp_path)
    (result,) = (json.loads(path.read_text()) for path in tmp_path.glob("*.json"))
    asked = [(line["kind"], line["repeat"], line["requests"]) for line in result["lines"]]
    assert asked == [("user", 0, 10), ("user", 1, 10), ("history", 0, 10), ("history", 1, 10)]
    assert result["batches"]["questions"] == len(server.bodies)
    kinds = {tuple(json.loads(body)) for body in server.bodies}
    assert kinds == {("user",), ("history",)}
    assert "| 200 | history | 1 | 10 |" in capsys.readouterr().out
