"""Slot words: who wrote a slot last, and whether it holds a record now.

`ops/schemas.py` has its bits. Every whole-record write and every clearing steps the count in it, so a pair
(index, generation) never names two records.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrb.ops.schemas import HEADER_BYTES, SLOT_COUNT_SHIFT, STAMP_SHIFT


def new_headers(capacity: int, device: torch.device) -> Tensor:
    """A table of nothing but headers: every slot never written, uint8 ``[capacity, 16]``."""
    with torch.inference_mode(False):
        return torch.zeros(capacity, HEADER_BYTES, dtype=torch.uint8, device=device)


def words_of(tables: list[Tensor]) -> Tensor:
    """The slot words of a storage, int64 ``[capacity]``, a view."""
    return tables[0][:, :HEADER_BYTES].view(torch.int64)[:, 0]


def stamps_at(tables: list[Tensor], slots: Tensor) -> Tensor:
    """When the record of each slot was written, as a number that goes up with every record written: int64."""
    stamps = tables[0][:, :HEADER_BYTES].view(torch.int64)[:, 1]
    return stamps[slots] >> STAMP_SHIFT


def generations_at(tables: list[Tensor], slots: Tensor) -> Tensor:
    """The generation of each slot: writes and clearings counted from 0; -1 for a slot never written or out of range.

    ``slots``: int64 of any shape; the result has its shape.
    """
    words = words_of(tables)
    inside = (slots >= 0) & (slots < words.shape[0])
    counts = words[torch.where(inside, slots, 0)] >> SLOT_COUNT_SHIFT
    return torch.where(inside, counts - 1, -1)
