"""Some rows of an initialized table, without memory for the others.

torch fills a tensor with normal numbers in blocks of 16 from consecutive numbers of the generator.
So a table is drawn in pieces of whole blocks, and pieces without the rows that are kept are drawn
into the same buffer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: numbers of a block, and of a piece
_BLOCK, _PIECE = 16, 1 << 20


def xavier_normal_rows(count: int, width: int, first: int, stop: int) -> Tensor:
    """Rows first ... stop - 1 of a [count, width] tensor filled by ``xavier_normal_``.

    Bit for bit, and torch's generator is left as after the whole tensor.
    """
    size, deviation = count * width, math.sqrt(2 / (count + width))
    begin, end = first * width, stop * width
    found = torch.empty(stop - first, width)
    buffer = torch.empty(min(size, _PIECE + _BLOCK))
    start = 0
    while start < size:
        # the last block of a tensor is drawn with those before it: no shorter piece is left over
        length = size - start if size - start < _PIECE + _BLOCK else _PIECE
        piece = buffer[:length].normal_(0, deviation)
        low, high = max(begin, start), min(end, start + length)
        if low < high:
            found.view(-1)[low - begin : high - begin] = piece[low - start : high - start]
        start += length
    return found
