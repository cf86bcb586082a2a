"""The group index: which records share a key, as the storage is now."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchrb import ops
from torchrb.generations import live_slots
from torchrb.journal import JournalReader
from torchrb.storages.base import Storage


class GroupIndex:
    """Groups of a storage's live records by a key, in canonical order.

    Equality is by the full key (`storages.keys`); groups are ordered by a fixed 64-bit hash of it, then by the key, so
    that draws do not depend on the order in which rows arrived. The keys of rows are read once for each write; the
    grouping is rebuilt when the journal moved.

    ``members``, ``offsets``, ``num_groups``: as the op `group_index` returns them. ``counts``: (groups, groups of one
    record), ints. ``rebuilds``: how often the grouping was computed.
    """

    def __init__(self, storage: Storage, key: Any) -> None:
        self.storage, self.key = storage, key
        self.rebuilds = 0
        self.counts = (0, 0)
        self.members = self.offsets = self.num_groups = torch.empty(0, dtype=torch.int64)
        self._reader = JournalReader()
        self._words = torch.empty(0, 0, dtype=torch.int64)

    def catch_up(self, *, always: bool = False) -> None:
        """Bring the index to the storage's present. The caller holds the storage's lock. ``always``: read every key
        again, for key tensors that are changed behind the storage's back."""
        storage = self.storage
        if not (always or self._reader.moved(storage.control)):
            return
        reader = JournalReader() if always else self._reader
        changed = reader.catch_up(storage.control, storage.journal)
        length = len(storage)
        live = live_slots(storage.tables, length)
        capacity = storage.tables[0].shape[0]
        if always or changed is None or self._words.shape[0] != capacity:
            changed = live
        else:
            changed = changed[torch.isin(changed, live)]
        try:
            words = storage.group_words(self.key, changed)
            if self._words.shape != (capacity, words.shape[1]):
                self._words = words.new_zeros(capacity, words.shape[1])
        except Exception:
            self._reader = JournalReader()  # what failed now must be read again at the next call
            self._words = torch.empty(0, 0, dtype=torch.int64)
            raise
        self._words[changed] = words
        self.members, self.offsets, self.num_groups = ops.group_index(self._words[live], live)
        self.counts = self._count()
        self.rebuilds += 1

    def _count(self) -> tuple[int, int]:
        total = int(self.num_groups)
        sizes = torch.diff(self.offsets[: total + 1])
        return total, int((sizes == 1).sum())

    def sizes(self) -> Tensor:
        """Records in each group, int64 ``[groups]``, in canonical order."""
        return torch.diff(self.offsets[: self.counts[0] + 1])
