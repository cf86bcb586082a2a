"""What the twins share: views of a storage's tables, and values in the order of their own type."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrb.ops.schemas import CONTROL_EPOCH, EPOCH_COUNTS, HEADER_BYTES, SLOT_COUNT_SHIFT

_INT64_MAX, _INT64_MIN = torch.iinfo(torch.int64).max, torch.iinfo(torch.int64).min


def header_of(tables: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Views of all slot words and all stamps."""
    header = tables[0][:, :HEADER_BYTES].view(torch.int64)
    return header[:, 0], header[:, 1]


def counts_from(words: Tensor, control: Tensor) -> Tensor:
    """The counts that writes of slots go on from: those in their words, or the beginning of the storage's epoch."""
    counts, epoch = words >> SLOT_COUNT_SHIFT, control[CONTROL_EPOCH]
    return torch.where((counts >= epoch) & (counts - epoch < EPOCH_COUNTS), counts, epoch)


def cells_of(tables: list[Tensor], layout: list[int], leaf: int) -> Tensor:
    """A leaf of all rows, as bytes ``[capacity, bytes]``, a view."""
    table, offset, nbytes = layout[3 * leaf : 3 * leaf + 3]
    return tables[table][:, offset : offset + nbytes]


def typed(cells: Tensor, template: Tensor) -> Tensor:
    """Bytes ``[n, bytes]`` as ``[n, *shape]`` of the template ``[0, *shape]``."""
    shape = (cells.shape[0], *template.shape[1:])
    return cells.view(template.dtype).view(shape) if cells.shape[1] else template.new_empty(shape)


def sortable(rewards: Tensor) -> Tensor:
    """int64 in the order of the rewards, exactly: number > -inf > NaN, -0.0 equal to 0.0."""
    if not rewards.is_floating_point():
        return rewards.to(torch.int64)
    wide = rewards.to(torch.float64)
    bits = torch.where(wide == 0, 0.0, wide).view(torch.int64)
    return torch.where(wide.isnan(), _INT64_MIN, torch.where(bits < 0, bits ^ _INT64_MAX, bits))
