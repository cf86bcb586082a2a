"""What a process leaves behind that was killed in the middle of a call, and how a storage goes on without it.

Whoever takes the lock next sees that its holder died, and that nobody else is at work. Records that were being written
mix old and new bytes: they are dropped. All others stay, and so do those that the call had finished, though as a whole
it may be done in part. Every slot below the length holds a record again, as samplers expect.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrb.generations import words_of
from torchrb.ops.reference_tables import counts_from
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_LOCK,
    HEADER_BYTES,
    SLOT_BUSY,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
)


def repair(tables: list[Tensor], control: Tensor, journal: Tensor, num_cells: int = 1) -> int:
    """Bring a storage into a state that its ops could have left. Returns how many records were dropped.

    The caller holds the storage's lock. May be killed itself, and done again. A record that moves to fill a gap is
    another one to handles. ``num_cells``: rows that make a record; one that was not written in all of them is dropped.
    """
    control[CONTROL_LOCK] = 0
    control[CONTROL_JOURNAL] += journal.shape[0] + 1  # writes may not have been noted: every reader starts anew
    if not tables:
        return 0
    words, capacity = words_of(tables), tables[0].shape[0]
    torn = torch.nonzero((words & SLOT_BUSY) != 0).view(-1)
    if num_cells == 1:
        _retire(words, torn, control)
    else:
        torn = _retire_in_part(words, num_cells, control)
    live = torch.nonzero((words & SLOT_LIVE) != 0).view(-1)
    num = live.shape[0]
    gaps = torch.nonzero((words[:num] & SLOT_LIVE) == 0).view(-1)
    beyond = live[live >= num]
    if gaps.shape[0]:
        _move(tables, words, beyond, gaps, control)
    if num < capacity:  # nothing is overwritten while there is room
        control[CONTROL_CURSOR] = num
    control[CONTROL_LENGTH] = num
    return torn.shape[0]


def _retire_in_part(words: Tensor, num_cells: int, control: Tensor) -> Tensor:
    """Retire records with a torn cell, or whose cells are not of one write. Returns their slots."""
    cells = words.view(-1, num_cells)
    torn = torch.nonzero(((cells & SLOT_BUSY) != 0).any(1) | (cells != cells[:, :1]).any(1)).view(-1)
    counts = counts_from(cells[torn].amax(1, keepdim=True), control)
    cells[torn] = ((counts + 1) << SLOT_COUNT_SHIFT).expand(-1, num_cells)
    return torn


def _retire(words: Tensor, slots: Tensor, control: Tensor) -> None:
    words[slots] = (counts_from(words[slots], control) + 1) << SLOT_COUNT_SHIFT


def _move(tables: list[Tensor], words: Tensor, sources: Tensor, targets: Tensor, control: Tensor) -> None:
    counts = counts_from(words[targets], control) + 1
    words[targets] |= SLOT_BUSY
    head = HEADER_BYTES // 2  # the slot word; the stamp behind it goes along
    for number, table in enumerate(tables):
        body = table[:, head if number == 0 else 0 :]
        body[targets] = body[sources]
    words[targets] = (counts << SLOT_COUNT_SHIFT) | SLOT_LIVE
    _retire(words, sources, control)
