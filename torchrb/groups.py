"""The group index: which records share a key, as the storage is now."""

from __future__ import annotations

from typing import Any

import torch

from torchrb import ops
from torchrb.generations import words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import (
    INDEX_GROUPS,
    INDEX_OUTCAST,
    INDEX_POSITION,
    INDEX_SINGLETONS,
    INDEX_STATE_SIZE,
    INDEX_VISITED,
    SLOT_LIVE,
    group_links_size,
)
from torchrb.storages.base import Column, Storage
from torchrb.storages.keys import DIGEST_WORDS
from torchrb.storages.memory import zeros


class GroupIndex:
    """Groups of a storage's live records by a key, in canonical order.

    Equality is by the full key, for strings and the like by a 128-bit digest (`storages.keys`); groups are ordered
    by a fixed 64-bit hash of it, then by the key, so that draws do not depend on the order in which rows arrived. The
    index follows the storage's journal: catching up costs what was written since, whichever way, and never depends on
    how much is stored.

    ``keys``, ``links``, ``state``: the index itself, as the ops `group_index_update_` and `sample_groups` take it. On a
    GPU the host waits for it only where it asks for one of the numbers below.
    """

    def __init__(self, storage: Storage, key: Any) -> None:
        self.storage, self.key = storage, key
        self.keys = self.links = torch.empty(0, dtype=torch.int64)
        self.state = zeros(INDEX_STATE_SIZE, dtype=torch.int64, device=storage.device)
        self.state[INDEX_OUTCAST] = -1
        self._on_gpu = storage.device.type == "cuda"
        if self._on_gpu:
            storage.lock.owns(self.state)
        # As with the storage's counters: on a CPU a view, which costs a fraction of Tensor.item.
        self._numbers = self.state.numpy().data if storage.device.type == "cpu" else None
        self._digests: _Digests | None = None

    @property
    def num_groups(self) -> int:
        return int(self.state[INDEX_GROUPS])

    @property
    def num_singletons(self) -> int:
        """Groups of one record."""
        return int(self.state[INDEX_SINGLETONS])

    @property
    def rows_visited(self) -> int:
        """Records looked at so far."""
        return int(self.state[INDEX_VISITED])

    def counts(self) -> list[int] | torch.Tensor:
        """Groups, and groups of one record, as they are now: a copy, on a GPU where it lies."""
        if self._numbers is None:
            return self.state[INDEX_GROUPS : INDEX_SINGLETONS + 1].clone()
        return [self._numbers[INDEX_GROUPS], self._numbers[INDEX_SINGLETONS]]

    def catch_up(self, *, always: bool = False) -> None:
        """Bring the index to the storage's present. The caller holds the storage's lock.

        ``always``: look at every record again, for keys that are changed behind the storage's back. ValueError when a
        live record's key is NaN, at every call until it is overwritten. (On a GPU the flags of the draw tell, and
        `refuse_outcasts` raises.)
        """
        numbers = self._numbers
        if numbers is None:
            self._update(always)
            return
        if always or numbers[INDEX_POSITION] != self.storage.journal_position:
            self._update(always)
        if numbers[INDEX_OUTCAST] >= 0:
            self.refuse_outcasts()

    def refuse_outcasts(self) -> None:
        """ValueError when the index has met a live record whose key is NaN."""
        outcast = int(self.state[INDEX_OUTCAST])
        if outcast >= 0:
            raise ValueError(
                f"PromptGroupSampler: group key {self.key!r} is NaN in the record at index {outcast}, and NaN is no "
                "group. Overwrite that record, or group by an integer id."
            )

    def _update(self, always: bool) -> None:
        storage = self.storage
        column = storage.key_column(self.key)
        if column is None:
            self._digests = self._digests or _Digests(storage, self.key)
            column = self._digests.catch_up(always)
        capacity, words = storage.tables[0].shape[0], column.template.shape[1:].numel()
        if self.keys.shape != (capacity, words):
            keys = zeros(capacity, words, dtype=torch.int64, device=storage.device)
            links = zeros(group_links_size(capacity, storage.device.type), dtype=torch.int32, device=storage.device)
            self.keys, self.links = keys, links
            if self._on_gpu:
                storage.lock.owns(keys, links)
            self.state[INDEX_POSITION] = 0
        ops.group_index_update_(self.keys, self.links, self.state, storage.control, storage.journal, *column, always)


class _Digests:
    """Words of keys that are not numbers, by slot: kept up to date from the journal, so each write is hashed once."""

    def __init__(self, storage: Storage, key: Any) -> None:
        self._storage, self._key = storage, key
        self._reader = JournalReader()
        self._words = torch.empty(0, DIGEST_WORDS, dtype=torch.int64)

    def catch_up(self, always: bool) -> Column:
        storage, tables = self._storage, self._storage.tables
        capacity = tables[0].shape[0]
        try:
            changed = self._reader.catch_up(storage.control, storage.journal)
            if always or changed is None or self._words.shape[0] != capacity:
                self._words = zeros(capacity, DIGEST_WORDS, dtype=torch.int64, device=storage.device)
                changed = torch.arange(len(storage), device=storage.device)
            changed = changed[(words_of(tables)[changed] & SLOT_LIVE) != 0]
            self._words[changed] = storage.key_words(self._key, changed)
        except BaseException:
            self._reader = JournalReader()  # what cannot be a key now is looked at again by the next call
            self._words = self._words[:0]
            raise
        return Column([tables[0], self._words.view(torch.uint8)], [1, 0, 8 * DIGEST_WORDS], self._words[:0])
