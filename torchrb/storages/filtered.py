"""A storage as samplers are to see it: without the records that may not be drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchrb.journal import new_journal
from torchrb.ops.schemas import CONTROL_JOURNAL, CONTROL_SIZE, HEADER_BYTES
from torchrb.storages.base import Column, Storage
from torchrb.storages.memory import zeros


class Filtered:
    """A storage some of whose records are not live; all else is the storage's own.

    Whatever a sampler keeps follows the headers and the journal of a storage. This one has headers of its own, which
    stand before the tables of the other, and a journal that also tells which of the records have come or gone.
    """

    def __init__(self, storage: Storage, members: Callable[[], Tensor], num_members: Callable[[], int]) -> None:
        self._storage, self._members, self._num_members = storage, members, num_members
        self.control = zeros(CONTROL_SIZE, dtype=torch.int64, device=storage.device)
        self.lay_out(0)

    def lay_out(self, capacity: int) -> None:
        """Headers for so many slots, none of them live; whoever followed the journal starts anew."""
        device, position = self._storage.device, self.journal_position
        self.headers = zeros(capacity, HEADER_BYTES, dtype=torch.uint8, device=device)
        self.journal = new_journal(capacity, device)
        self.control[CONTROL_JOURNAL] = position + self.journal.shape[0] + 1

    def put(self, slots: Tensor, headers: Tensor) -> None:
        """Give distinct slots these headers, int64 ``[n, 2]``, and tell whoever follows."""
        self.headers.view(torch.int64)[slots] = headers
        position, size, num = self.journal_position, self.journal.shape[0], slots.shape[0]
        if num <= size:
            self.journal[(position + torch.arange(num, device=slots.device)) % size] = slots
        control = self._storage.control.clone()
        control[CONTROL_JOURNAL] = position + num
        self.control.copy_(control)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def __len__(self) -> int:
        return len(self._storage)

    @property
    def tables(self) -> list[Tensor]:
        return [self.headers, *self._storage.tables] if self._storage.tables else []

    @property
    def journal_position(self) -> int:
        return int(self.control[CONTROL_JOURNAL])

    @property
    def num_drawable(self) -> int:
        return self._num_members()

    def drawable(self) -> Tensor:
        return self._members()

    def key_column(self, key: Any) -> Column | None:
        return self._behind(self._storage.key_column(key))

    def reward_column(self, key: Any) -> Column:
        column = self._behind(self._storage.reward_column(key))
        assert column is not None
        return column

    def _behind(self, column: Column | None) -> Column | None:
        """A column as it stands behind these headers."""
        if column is None:
            return None
        table, *place = column.leaf
        return Column([self.headers, *column.tables], [table + 1, *place], column.template)
