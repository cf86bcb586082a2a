"""A storage's groups that have as many records as a draw wants of each, and no others."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from torchrb import ops
from torchrb.generations import words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import HEADER_BYTES, SLOT_LIVE
from torchrb.storages import Storage
from torchrb.storages.filtered import Filtered

_Key = tuple[int, ...]


class CompleteGroups:
    """A storage without the records of groups that have fewer than ``size``, for a group index to follow.

    Who is in which group is kept on the host, row by row, from the storage's journal: catching up costs the rows
    written since, and those of the groups that have become complete, or are no longer. A record whose key is NaN, and
    so in no group, stays, for whoever refuses it. The caller holds the storage's lock.

    ``num_complete``: groups that have enough records. ``rows_visited``: records looked at so far.
    """

    def __init__(self, storage: Storage, key: Any, size: int) -> None:
        self.storage, self.key, self.size = storage, key, size
        self.rows_visited = 0
        self._view = Filtered(storage, lambda: self._slots_left(), lambda: self._slots_left().shape[0])
        self._forget()

    def _forget(self) -> None:
        self._reader, self._capacity = JournalReader(), -1
        self._groups: dict[_Key, set[int]] = {}
        self._key_of: dict[int, _Key] = {}
        self.num_complete = 0

    @property
    def largest(self) -> int:
        """Records of the largest group, which looks at all of them."""
        return max(map(len, self._groups.values()), default=0)

    def catch_up(self, *, always: bool = False) -> Storage:
        """Follow the storage; returns it without the others' records. ``always``: look at every record again."""
        storage = self.storage
        if always or self._reader.moved(storage.control):
            try:
                slots, position = self._reader.unread(storage.control, storage.journal)
                capacity = storage.tables[0].shape[0]
                if always or slots is None or self._capacity != capacity:
                    self._forget()
                    self._view.lay_out(capacity)
                    self._capacity, slots = capacity, torch.arange(capacity, device=storage.device)
                self._follow(slots)
                self._reader.accept(position)
            except BaseException:  # cut off half-way, or there is a record that cannot be grouped
                self._forget()
                raise
        return cast(Storage, self._view)

    def _follow(self, slots: Tensor) -> None:
        storage = self.storage
        live = slots[(words_of(storage.tables)[slots] & SLOT_LIVE) != 0]
        keys = dict(zip(live.tolist(), self._keys(live), strict=True))
        changed, before = set(slots.tolist()), dict[_Key, int]()
        self.rows_visited += len(changed)
        for slot in changed:
            old, new = self._key_of.pop(slot, None), keys.get(slot)
            for key in (old, new):
                if key is not None:
                    before.setdefault(key, len(self._groups.get(key, ())))
            if old is not None:
                self._groups[old].discard(slot)
            if new is not None:
                self._key_of[slot] = new
                self._groups.setdefault(new, set()).add(slot)
        for key, size in before.items():
            rows = self._groups.get(key, set())
            complete, was = len(rows) >= self.size, size >= self.size
            if complete != was:
                self.num_complete += 1 if complete else -1
                changed |= rows
            if not rows:
                self._groups.pop(key, None)
        places = torch.tensor(sorted(changed), dtype=torch.int64, device=storage.device)
        hidden = [
            slot in self._key_of and len(self._groups[self._key_of[slot]]) < self.size for slot in sorted(changed)
        ]
        headers = storage.tables[0][:, :HEADER_BYTES].view(torch.int64)[places]
        hide = torch.tensor(hidden, dtype=torch.bool, device=storage.device)
        headers[:, 0] = torch.where(hide, headers[:, 0] & ~SLOT_LIVE, headers[:, 0])
        self._view.put(places, headers)

    def _keys(self, slots: Tensor) -> list[_Key | None]:
        """The words of records' keys, as the group index has them; None for a NaN."""
        if not slots.shape[0]:
            return []
        column = self.storage.key_column(self.key)
        if column is None:
            return [tuple(words) for words in self.storage.key_words(self.key, slots).tolist()]
        values = ops.read_rows(column.tables, column.leaf, [column.template], slots)[0][0].reshape(slots.shape[0], -1)
        nan = torch.zeros(slots.shape[0], dtype=torch.bool)
        if values.is_floating_point():
            wide = values.to(torch.float64)
            nan, values = wide.isnan().any(1), torch.where(wide == 0, 0.0, wide).view(torch.int64)
        words = values.to(torch.int64).tolist()
        return [None if none else tuple(row) for row, none in zip(words, nan.tolist(), strict=True)]

    def _slots_left(self) -> Tensor:
        words = self._view.headers.view(torch.int64)[:, 0]
        return torch.nonzero((words & SLOT_LIVE) != 0).view(-1)
