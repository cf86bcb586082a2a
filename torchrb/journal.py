"""What was written since a reader last looked.

Every op that writes appends the slots it wrote to a ring on the storage and moves the storage's position. Whoever keeps
something derived from rows holds a `JournalReader` and catches up when it is asked, so no writer knows its readers. The
ring is as long as the storage: a reader that falls behind has more to catch up with than a rebuild costs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchrb.ops.schemas import CONTROL_JOURNAL

_MIN_ENTRIES = 64


def new_journal(capacity: int, device: torch.device) -> Tensor:
    """An empty ring, int64."""
    with torch.inference_mode(False):
        return torch.zeros(max(capacity, _MIN_ENTRIES), dtype=torch.int64, device=device)


class JournalReader:
    """A reader's own position in a storage's journal.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(4))
    >>> reader = JournalReader()
    >>> _ = rb.extend(torch.arange(3))
    >>> reader.catch_up(rb.storage.control, rb.storage.journal)
    tensor([0, 1, 2])
    >>> reader.catch_up(rb.storage.control, rb.storage.journal)
    tensor([], dtype=torch.int64)
    """

    def __init__(self) -> None:
        self._position = 0

    def moved(self, control: Tensor) -> bool:
        """Whether anything was written since `catch_up`."""
        return int(control[CONTROL_JOURNAL]) != self._position

    def catch_up(self, control: Tensor, journal: Tensor) -> Tensor | None:
        """The distinct slots written since the last call, int64, ascending; None when that is more than the ring
        holds, and everything must be taken as changed.
        """
        slots, position = self.unread(control, journal)
        self.accept(position)
        return slots

    def unread(self, control: Tensor, journal: Tensor) -> tuple[Tensor | None, int]:
        """What `catch_up` would tell, and the position to `accept` once it was dealt with: until then it is told again,
        so a reader that is cut off half-way misses nothing.
        """
        head, size = int(control[CONTROL_JOURNAL]), journal.shape[0]
        if head - self._position > size:
            return None, head
        return torch.unique(journal[torch.arange(self._position, head, device=journal.device) % size]), head

    def accept(self, position: int) -> None:
        """Go on from here."""
        self._position = position
