"""CUDA graphs on the simulated device: operations that were recorded run again on their tensors.

As with a real graph, what a replay reads are the tensors of the recording and arguments as they
were. Unlike it, the recording runs the operations too; so it works on copies of what it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.device.simulated import unwrap


class Recorded(TorchDispatchMode):
    """The operations of a block, below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        #: each storage that an operation wrote in place and did not make, and its earlier content
        self.before: dict[int, tuple[Tensor, Tensor]] = {}
        self.made: dict[int, Tensor] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None):
        arguments, named = tuple(arguments), named or {}
        plain = tree_map(unwrap, (arguments, named))
        given = {_storage(x) for x in tree_leaves(plain) if isinstance(x, Tensor)}
        for each in _written(function, *plain):
            if _storage(each) not in self.made and _storage(each) not in self.before:
                whole = _whole(each)
                self.before[_storage(each)] = whole, whole.clone()
        out = function(*arguments, **named)
        results = [unwrap(x) for x in tree_leaves(out) if isinstance(x, Tensor)]
        fresh = [x for x in results if _storage(x) not in given]
        for each in fresh:
            self.made[_storage(each)] = each  # held, so that its address is not used again
        self.calls.append((function, *plain, fresh))
        return out

    def undo(self) -> None:
        """Give what existed before the block its earlier content."""
        for tensor, content in self.before.values():
            tensor.copy_(content)

    @torch.no_grad()
    def replay(self) -> None:
        for function, arguments, named, fresh in self.calls:
            out = function(*arguments, **named)
            if fresh:
                found = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
                given = {_storage(x) for x in tree_leaves((arguments, named)) if _is(x)}
                news = [x for x in found if _storage(x) not in given]
                for target, value in zip(fresh, news, strict=True):
                    target.copy_(value)


class SimulatedGraphs:
    """In the place of :class:`hasten.training.capture.graph.CudaGraphs`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.replays = 0

    def warm_up(self, function: Callable[[], Any]) -> Any:
        return function()

    def record(self, function: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        recorded = Recorded()
        generator = torch.get_rng_state()
        with recorded:
            result = function()
        recorded.undo()
        torch.set_rng_state(generator)

        def replay() -> None:
            self.replays += 1
            recorded.replay()

        return replay, result

    def synchronize(self) -> None:
        pass


def _is(value: object) -> bool:
    return isinstance(value, Tensor)


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _whole(tensor: Tensor) -> Tensor:
    """All of the storage of a tensor."""
    return torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())


def _written(function: Any, arguments: Any, named: Any) -> Iterable[Tensor]:
    for number, each in enumerate(function._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            value = arguments[number] if number < len(arguments) else named.get(each.name)
            yield from (x for x in tree_leaves(value) if isinstance(x, Tensor))
