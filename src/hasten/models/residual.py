"""How a sublayer's output joins what flows past it: the residual connections of sequential models.

A network has one :class:`Residuals`. It begins what flows through the blocks from the [T, D] tokens
(``expand``), ends it (``reduce``), and makes the connection of every sublayer, a module called as
``connection(flowing, branch)``. The branch is the sublayer with its pre-norm, a function of [T, D]
to [T, D]; under post-LN the norm comes after the sum: ``connection(flowing, branch, norm)``. What
flows is nobody's affair but the residual's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor, nn

Branch = Callable[[Tensor], Tensor]


class Residuals(Protocol):
    """The residual connections of one network."""

    def expand(self, x_TD: Tensor) -> Any:
        """What flows into the first block."""
        ...

    def reduce(self, flowing: Any) -> Tensor:
        """[T, D] from what flows out of the last block."""
        ...

    def connection(self, sublayer: int) -> nn.Module:
        """A new connection, for the sublayer of this number (from 0, through all blocks)."""
        ...


class PlainConnection(nn.Module):
    """``x + branch(x)`` (He et al. 2016)."""

    def forward(self, flowing: Tensor, branch: Branch, norm: Branch | None = None) -> Tensor:
        out = flowing + branch(flowing)
        return out if norm is None else norm(out)


class PlainResiduals:
    """What flows are the tokens themselves."""

    def expand(self, x_TD: Tensor) -> Tensor:
        return x_TD

    def reduce(self, flowing: Tensor) -> Tensor:
        return flowing

    def connection(self, sublayer: int) -> nn.Module:
        return PlainConnection()


def connect(connection: nn.Module, flowing: Any, branch: Branch, norm: Branch, *, pre: bool) -> Any:
    """Past one sublayer with its layer norm, before the branch or after the sum."""
    if pre:
        return connection(flowing, lambda x_TD: branch(norm(x_TD)))
    return connection(flowing, branch, norm)
