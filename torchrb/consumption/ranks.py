"""A set of slots in which the member of any rank is found at once."""

from __future__ import annotations

import torch
from torch import Tensor

from torchrb.storages.memory import zeros

_FAN = 64


class SlotSet:
    """Some of ``capacity`` slots, in ascending order.

    A byte for each slot, and above them counts: a node has how many members its 64 children have. So a change costs the
    slots that change, and finding a member one look at 64 numbers a level, of which a million slots have four. The
    order is that of the slots, so it does not depend on how the set came about.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._levels: list[Tensor] = []
        size, dtype = capacity, torch.uint8
        while True:
            size = max(1, -(-size // _FAN))
            self._levels.append(zeros(size, _FAN, dtype=dtype, device=device))
            dtype = torch.int64
            if size == 1:
                break

    def __len__(self) -> int:
        return int(self._levels[-1].sum())

    def put(self, slots: Tensor, members: Tensor) -> None:
        """Say of distinct slots, int64 ``[n]``, whether they are in the set. Done again, it mends what was cut off."""
        self._levels[0].view(-1)[slots] = members.to(torch.uint8)
        for below, above in zip(self._levels, self._levels[1:], strict=False):
            slots = torch.unique(slots // _FAN)
            above.view(-1)[slots] = below[slots].sum(1, dtype=torch.int64)

    def at(self, ranks: Tensor) -> Tensor:
        """The members of ranks below the length, int64 ``[n]``, counted from 0."""
        slots = torch.zeros_like(ranks)
        for level in reversed(self._levels):
            counts = level[slots].cumsum(1, dtype=torch.int64)
            child = (counts <= ranks[:, None]).sum(1)
            before = counts.gather(1, (child - 1).clamp(min=0)[:, None]).view(-1)
            ranks = ranks - torch.where(child > 0, before, 0)
            slots = slots * _FAN + child
        return slots

    def all(self) -> Tensor:
        """All members, which looks at every slot."""
        return torch.nonzero(self._levels[0].view(-1)).view(-1)
