"""A function as a CUDA graph: its kernels are recorded once and launched together from then on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


class CudaGraphs:
    """The graphs of one phase. They run one at a time, so they share memory and a stream."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None
        #: PyTorch frees the cuBLAS workspaces of a stream together with any graph that was recorded
        #: on it, also if other graphs still use them (pytorch/pytorch#193402): so all are kept
        self._recorded: list[torch.cuda.CUDAGraph] = []

    def warm_up(self, function: Callable[[], Result]) -> Result:
        """Call a function on the stream of the graphs, so that what it creates belongs there."""
        current = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(current)
        with torch.cuda.stream(self.stream):
            result = function()
        current.wait_stream(self.stream)
        return result

    def record(self, function: Callable[[], Result]) -> tuple[Callable[[], None], Result]:
        """Record what a function launches, without running it.

        Returns what runs it, on the current stream, and the function's result: tensors that every
        run overwrites.
        """
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # thread_local: the thread that prepares the next batch may allocate meanwhile
        mode = "thread_local"
        with torch.cuda.graph(graph, self._pool, self.stream, capture_error_mode=mode):
            result = function()
        self._recorded.append(graph)
        return graph.replay, result

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        torch.cuda.synchronize(self.device)
