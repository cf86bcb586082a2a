"""Where each leaf of a record lives: packed into one row of bytes, or in columns of its own.

Ops see both as tables and a layout (`ops/schemas.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrb.generations import new_headers
from torchrb.ops.schemas import HEADER_BYTES, ORDERED_DTYPES
from torchrb.storages.memory import zeros

_WIDE_BYTES = 64  # a leaf this long is worth a vector alignment
_WIDE_ALIGNMENT = 16


# What a row may be made of: whole bytes that every backend takes.
STORABLE_DTYPES = ORDERED_DTYPES | {torch.uint64, torch.complex32, torch.complex64, torch.complex128}
STORABLE_DTYPES |= {dtype for name, dtype in vars(torch).items() if name.startswith(("float8_", "float4_"))}


class LeafSpec(NamedTuple):
    """One tensor field: its key, and dtype and shape of one record's value."""

    key: tuple[Any, ...]
    dtype: torch.dtype
    shape: torch.Size

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


@dataclass
class RecordTable:
    """The memory of a storage of tensors, as ops take it.

    ``layout[3 * i : 3 * i + 3]`` places leaf ``i``; ``templates[i]`` is an empty tensor of its dtype and row shape.
    """

    tables: list[Tensor]
    layout: list[int]
    templates: list[Tensor]

    def leaf(self, i: int) -> list[int]:
        return self.layout[3 * i : 3 * i + 3]

    def part(self, leaves: list[int]) -> list[int]:
        """The layout of some of the leaves."""
        return [number for i in leaves for number in self.leaf(i)]


def packed(
    leaves: list[LeafSpec], capacity: int, device: torch.device, zeros: Callable[..., Tensor] = zeros
) -> RecordTable:
    """One table: header, then short leaves by falling alignment, then wide ones on 16-byte boundaries.

    What is looked at row by row, such as keys, rewards and versions, then shares a cache line with the header.
    """
    place = dict.fromkeys(range(len(leaves)), 0)
    alignment = [_WIDE_ALIGNMENT if leaf.nbytes >= _WIDE_BYTES else leaf.dtype.itemsize for leaf in leaves]
    end = HEADER_BYTES
    for i in sorted(place, key=lambda i: (leaves[i].nbytes >= _WIDE_BYTES, -alignment[i])):
        place[i] = -(-end // alignment[i]) * alignment[i]
        end = place[i] + leaves[i].nbytes
    record_bytes = -(-end // _WIDE_ALIGNMENT) * _WIDE_ALIGNMENT
    base = zeros(capacity, record_bytes, dtype=torch.uint8, device=device)
    layout = [number for i, leaf in enumerate(leaves) for number in (0, place[i], leaf.nbytes)]
    return RecordTable([base], layout, _templates(leaves, device))


def columns(leaves: list[LeafSpec], tensors: list[Tensor], headers: Tensor | None = None) -> RecordTable:
    """A table a leaf over existing contiguous memory ``[capacity, *shape]``, and one for the headers."""
    capacity, device = tensors[0].shape[0], tensors[0].device
    tables = [new_headers(capacity, device) if headers is None else headers]
    layout: list[int] = []
    with torch.inference_mode(False):  # a view that changes the dtype belongs to the mode it was made in
        for leaf, tensor in zip(leaves, tensors, strict=True):
            rows = tensor.view(capacity, leaf.shape.numel())
            tables.append(rows.view(torch.uint8) if leaf.nbytes else rows.new_empty((capacity, 0), dtype=torch.uint8))
            layout += [len(tables) - 1, 0, leaf.nbytes]
    return RecordTable(tables, layout, _templates(leaves, device))


def _templates(leaves: list[LeafSpec], device: torch.device) -> list[Tensor]:
    return [torch.empty((0, *leaf.shape), dtype=leaf.dtype, device=device) for leaf in leaves]
