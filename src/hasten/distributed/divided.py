"""Parameters that several processes train together, each moving its own part of them.

Adam reads and writes tables as long as the parameters. Where all processes do that with the same
gradients, they do the same work beside each other and compete for the memory. Here each sums,
measures, clips and moves its part alone, holds the moments of that part alone, and writes the new
weights where the others read them (ZeRO's first stage; Rajbhandari et al. 2020). For processes of
one machine with CPU devices, which share memory. The numbers are those of the undivided step.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from hasten.distributed.processes import Processes
from hasten.distributed.shared_memory import SharedRows, share

#: numbers from which a further meeting of the processes costs less than what it saves
FEWEST = 1 << 21


class DividedParameters:
    """``pieces``: what this process moves, leaves that lie in the parameters themselves.

    The parameters laid end to end are cut into as many parts as there are processes.
    """

    def __init__(
        self, processes: Processes, parameters: Sequence[nn.Parameter], memory: SharedRows
    ) -> None:
        self.processes, self.memory = processes, memory
        sizes = [parameter.numel() for parameter in parameters]
        self.count = sum(sizes)
        rank, world = processes.rank, processes.world
        self.begin, self.end = self.count * rank // world, self.count * (rank + 1) // world
        #: of each piece the number of its parameter, and where it lies in that
        self.places: list[tuple[int, slice]] = []
        self.pieces: list[Tensor] = []
        self._spans: list[slice] = []
        weights = memory.rows[0]
        self._foreign: tuple[list[Tensor], list[Tensor]] = ([], [])
        ends = list(itertools.accumulate(sizes))
        for number, (parameter, stop) in enumerate(zip(parameters, ends, strict=True)):
            flat, start = parameter.detach().view(-1), stop - sizes[number]
            first = min(max(self.begin, start), stop)
            last = min(max(self.end, first), stop)
            if first < last:
                place = slice(first - start, last - start)
                self.places.append((number, place))
                self.pieces.append(flat[place].requires_grad_())
                self._spans.append(slice(first, last))
            for begin, end in ((start, first), (last, stop)):
                if begin < end:
                    self._foreign[0].append(flat[begin - start : end - start])
                    self._foreign[1].append(weights[begin:end])
        self._shapes = [parameter.shape for parameter in parameters]
        self._sizes = sizes

    @classmethod
    def of(
        cls, processes: Processes | None, parameters: Sequence[nn.Parameter]
    ) -> DividedParameters | None:
        """Where it pays and the processes can; called by all of them."""
        if processes is None or processes.world < 2:
            return None
        count = sum(parameter.numel() for parameter in parameters)
        kinds = {(p.device.type, p.dtype, p.is_contiguous()) for p in parameters}
        if count < FEWEST or len(kinds) > 1 or next(iter(kinds))[::2] != ("cpu", True):
            return None
        memory = share(processes, 1, count + 2 * processes.world, parameters[0].dtype)
        return None if memory is None else cls(processes, parameters, memory)

    def take(self, gradients: Tensor) -> None:
        """Give the pieces their gradients, of those of all parameters end to end, [count]."""
        for piece, span in zip(self.pieces, self._spans, strict=True):
            piece.grad = gradients[span]

    def norm(self, kind: float) -> Tensor:
        """A norm of the gradients of all parameters, the same bytes on every process."""
        own = get_total_norm([piece.grad for piece in self.pieces if piece.grad is not None], kind)
        world = self.processes.world
        # a place for each kind: others may still read the norm that was asked for before
        norms = self.memory.rows[0][self.count :].view(2, world)[0 if kind == 2 else 1]
        norms[self.processes.rank] = own
        self.processes.meet(self.memory.semaphores, "the norm of gradients")
        found: Tensor = torch.linalg.vector_norm(norms, kind)
        return found

    @torch.no_grad()
    def spread(self) -> None:
        """All parameters as their processes have moved them."""
        self._write(self.pieces)
        self.processes.meet(self.memory.semaphores, "the new weights")
        torch._foreach_copy_(*self._foreign)

    @torch.no_grad()
    def whole(self, values: Sequence[Tensor]) -> list[Tensor]:
        """What all processes have of their pieces, put together as the parameters are.

        values: a tensor as long as each piece. All processes call it.
        """
        what = "a part of the optimiser's state"
        self.processes.meet(self.memory.semaphores, what)  # others may still read the new weights
        self._write(values)
        self.processes.meet(self.memory.semaphores, what)
        parts = torch.split(self.memory.rows[0][: self.count].clone(), self._sizes)
        self.processes.meet(self.memory.semaphores, what)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _write(self, values: Sequence[Tensor]) -> None:
        weights = self.memory.rows[0]
        torch._foreach_copy_([weights[span] for span in self._spans], list(values))
