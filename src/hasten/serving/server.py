"""Run the web application: load the run, listen, and stop once all requests are answered."""

from __future__ import annotations

import gc
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hasten.console import write_stderr
from hasten.errors import UsageError
from hasten.loaded_run import load_run

if TYPE_CHECKING:
    from fastapi import FastAPI

#: what the workers of a service serve, as JSON
_VARIABLE = "HASTEN_SERVE"
#: seconds in which requests are answered after a signal
_GRACE = 10


@dataclass(frozen=True)
class Service:
    """What is served, and how: see ``hasten serve --help``. wait_ms, batch: of the batches."""

    run: str
    checkpoint: str = "best"
    device: str = "auto"
    threads: int = 1
    wait_ms: float = 0.0
    batch: int = 64

    def app(self) -> FastAPI:
        """Load the run and make its application."""
        from hasten.serving.app import create_app  # noqa: PLC0415 - optional packages
        from hasten.serving.engine import Engine  # noqa: PLC0415

        loaded = load_run(Path(self.run), checkpoint=self.checkpoint, device=self.device)
        torch.set_num_threads(self.threads)
        app = create_app(Engine(loaded), self.wait_ms / 1000, self.batch)
        gc.collect()
        gc.freeze()  # a full collection of what stays took 150 ms, in which no request is answered
        return app


def app_of_worker() -> FastAPI:
    """The application of one of several worker processes."""
    return Service(**json.loads(os.environ[_VARIABLE])).app()


def serve(service: Service, host: str, port: int, workers: int) -> None:
    """Serve until a signal arrives. port 0: a free port. Raises UsageError, HastenError.

    workers: processes that share the port; each loads the model.
    """
    try:
        import fastapi  # noqa: F401, PLC0415 - optional
        import uvicorn  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f'{error}: pip install "hasten[serve]"') from error
    listening = _listen(host, port)
    where = f"http://{host}:{listening.getsockname()[1]}"
    server_options: dict[str, Any] = {"log_level": "warning", "timeout_graceful_shutdown": _GRACE}
    if workers == 1:
        config = uvicorn.Config(service.app(), **server_options)
        write_stderr(f"serving {service.run} at {where}  (requests: {where}/docs; Ctrl-C stops)")
        uvicorn.Server(config).run(sockets=[listening])
        return
    from uvicorn.supervisors import Multiprocess  # noqa: PLC0415 - only here

    os.environ[_VARIABLE] = json.dumps(asdict(service))
    name = f"{__name__}:app_of_worker"
    config = uvicorn.Config(name, factory=True, workers=workers, **server_options)
    write_stderr(f"serving {service.run} at {where} in {workers} processes")
    Multiprocess(config, sockets=[listening]).run()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which delays answers by 40 ms, where it sees the protocol
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"--host {host} --port {port}: cannot listen there: {reason}") from error
    return listener
