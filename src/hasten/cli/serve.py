"""``hasten serve``: serve a trained model over HTTP."""

from __future__ import annotations

from pathlib import Path

import typer

from hasten.cli import options
from hasten.cli.options import option


def serve(
    run: Path = options.RUN,
    host: str = option("NAME", "Address to listen on; 0.0.0.0: all.", default="127.0.0.1"),
    port: int = option("N", "Port to listen on; 0: a free one.", default=8000, min=0),
    workers: int = option("N", "Processes; each loads the model.", default=1, min=1),
    threads: int = option("N", "CPU threads of a process for scoring.", default=1, min=1),
    wait_ms: float = typer.Option(
        0.0, metavar="MS", min=0.0, help="How long a request waits for others of its batch."
    ),
    batch: int = option("N", "Most requests that are scored together.", default=64, min=1),
    checkpoint: str = options.CHECKPOINT,
    device: str = option("NAME", "auto, cpu, cuda, cuda:0 or mps.", default="auto"),
    debug: bool = options.DEBUG,  # noqa: ARG001 - main() looks for it
) -> None:
    """Answer HTTP requests with the model of RUN, until Ctrl-C.

    POST /recommend, /similar and /predict take JSON; /health and /docs tell about the service.
    Requests that arrive at the same time are scored together.

    hasten serve runs/mine --port 8000
    """
    options.prepare_process()
    from hasten.serving.server import Service, serve  # noqa: PLC0415 - brings torch

    service = Service(str(run), checkpoint, device, threads, wait_ms, batch)
    serve(service, host, port, workers)
