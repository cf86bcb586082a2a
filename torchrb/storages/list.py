"""Storages of Python objects: any record, one at a time, in a list by slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import is_tensor_collection
from torch import Tensor

from torchrb import ops
from torchrb.generations import new_headers
from torchrb.journal import new_journal
from torchrb.ops.schemas import CONTROL_CURSOR, CONTROL_JOURNAL
from torchrb.storages.base import Storage
from torchrb.storages.copies import own_copy

_UNBOUNDED = 2**32 - 1
_FIRST_SLOTS = 1024


class ListStorage(Storage):
    """A list of arbitrary objects.

    Args:
        max_size: capacity in records; None for no bound.
        compilable: accepted for compatibility.
        device: where tensors in records are moved when stored; None leaves them where they are.

    Every record is copied when stored and when read, tensors detached; objects that are not tensors, tensordicts or
    containers of these are deep-copied. ``extend`` takes an iterable of records, each stored as it is.

    >>> from torchrb import ListStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=ListStorage(10), collate_fn=lambda records: records)
    >>> _ = rb.extend(["a", 1, None])
    >>> rb[:]
    ['a', 1, None]
    """

    def __init__(
        self, max_size: int | None = None, *, compilable: bool = False, device: torch.device | str | int | None = None
    ) -> None:
        self.bounded = max_size is not None
        super().__init__(_FIRST_SLOTS if max_size is None else max_size)
        self.items_device = None if device is None else torch.device(device)
        self._headers = [new_headers(self.max_size, self.device)]
        self._items: list[Any] = [None] * self.max_size
        if max_size is None:
            self.max_size = _UNBOUNDED

    @property
    def tables(self) -> list[Tensor]:
        return self._headers

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        with self.lock:
            items = [self._take(data)] if one else [self._take(item) for item in self._split(data, "extend")]
            self._make_room(len(items))
            slots, generations = ops.append_rows_(self.tables, self.control, self.journal, [], [], len(items))
            self._keep(slots, items)
            return slots, generations

    def write(self, slots: Tensor, data: Any, *, one: bool = False, call: str = "write") -> Tensor:
        with self.lock:
            items = [self._take(data)] if one else [self._take(item) for item in self._split(data, call)]
            if len(items) != slots.shape[0]:
                raise ValueError(f"{call}: {slots.shape[0]} records are addressed, got data for {len(items)}.")
            generations = ops.write_rows_(self.tables, self.control, self.journal, [], slots, [], True)
            self._keep(slots, items)
            return generations

    def write_fields(self, slots: Tensor, fields: Mapping[Any, Any], call: str = "write_fields") -> None:
        raise TypeError(
            f"{call}: {type(self).__name__} keeps whole records and has no fields to set. Use LazyTensorStorage."
        )

    def clear(self, reset_writes: bool = True) -> None:
        with self.lock:
            super().clear(reset_writes)
            self._items[:] = [None] * len(self._items)

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        """A list of records, or a single one for an index of shape ``()``."""
        if shape is not None and len(shape) > 1:
            raise TypeError(
                f"{type(self).__name__}: an index must have one dimension, got shape {[*shape]}. Flatten it."
            )
        with self.lock:
            kept = [self._items[slot] for slot in slots.tolist()]
            generations = self.generations(slots)
            items = [own_copy(item) for item in kept]  # last: an object's own code may write here
        return (items[0] if shape == () else items), generations

    # --- what a record is

    def _split(self, data: Any, call: str) -> Any:
        """The records in a batch."""
        if is_tensor_collection(data):
            if not data.batch_dims:
                raise ValueError(f"{call}: a batch needs a batch size, got batch_size=[]. One record is for add().")
            return data.unbind(0)
        if isinstance(data, str | bytes | Mapping) or not hasattr(data, "__iter__"):
            raise TypeError(
                f"{call}: {type(self).__name__} takes an iterable of records, got {type(data).__name__}. "
                "Put a single one into a list."
            )
        return data

    def _take(self, item: Any) -> Any:
        """A record as it is kept. Raises before anything was written."""
        return own_copy(item, self.items_device)

    # --- slots

    def _keep(self, slots: Tensor, items: list[Any]) -> None:
        replaced = []  # let go of when all are in place: an object's own code (`__del__`) may write here
        for slot, item in zip(slots.tolist(), items, strict=True):
            replaced.append(self._items[slot])
            self._items[slot] = item

    def _make_room(self, num: int) -> None:
        """An unbounded storage doubles before it would turn round; readers of its journal start anew."""
        capacity, needed = self._headers[0].shape[0], int(self._counters[CONTROL_CURSOR]) + num
        if self.bounded or needed < capacity:
            return
        grown = max(2 * capacity, needed + 1)
        headers = new_headers(grown, self.device)
        headers[:capacity] = self._headers[0]
        journal = new_journal(grown, self.device)
        self._items += [None] * (grown - len(self._items))  # in this order every step can be the last
        self.control[CONTROL_JOURNAL] += grown + 1
        self._headers, self.journal = [headers], journal
