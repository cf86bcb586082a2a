"""Rows on disk as a log: segments that hold a row each for some slots, where a later one counts.

What was not written since the last dump to a place stays in the segments that are there. A new one holds the rows that
were, and those of the segments before it that are not much larger: so segments shrink from each to the next by half
at least, there are few of them, and a row is written again only now and then. When they hold twice as many rows as
are stored, all is written anew.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchrb.persistence import FileEntry

_SPARE = 64  # rows that may be held in vain however few are stored


class Segment(NamedTuple):
    """A content file of rows, and whose they are: int64 ``[n]``."""

    file: FileEntry
    slots: Tensor


class Log(NamedTuple):
    """The segments of a dump, and where the storage's journal stood."""

    dump: str
    position: int
    segments: list[Segment]


def planned(log: Log | None, changed: Tensor | None, length: int) -> tuple[list[Segment], Tensor | None]:
    """Which segments stay, and the slots, ascending, of the rows to be written after them; None if there are none.

    ``changed``: the slots written since the log was; None where that is not known.
    """
    if log is None or changed is None:
        return [], torch.arange(length)
    fresh, kept = _below(changed, length), list(log.segments)
    if not fresh.shape[0] and length:
        return kept, None
    while kept and kept[-1].slots.shape[0] <= 2 * fresh.shape[0]:
        fresh = _below(torch.cat([fresh, kept.pop().slots]), length)
    held = sum(segment.slots.shape[0] for segment in kept) + fresh.shape[0]
    if not kept or held > 2 * length + _SPARE:
        return [], torch.arange(length)
    return kept, fresh


def _below(slots: Tensor, length: int) -> Tensor:
    return torch.unique(slots[slots < length])
