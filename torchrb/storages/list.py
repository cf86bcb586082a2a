"""Storages of Python objects: any record, one at a time, in a list by slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tensordict import is_non_tensor, is_tensor_collection
from torch import Tensor

from torchrb import ops
from torchrb.generations import new_headers
from torchrb.journal import new_journal
from torchrb.ops.schemas import CONTROL_CURSOR, CONTROL_JOURNAL
from torchrb.persistence import StateReader
from torchrb.storages import object_state
from torchrb.storages.base import Placement, Storage
from torchrb.storages.copies import own_copy
from torchrb.storages.saving import Counters, PlannedRows
from torchrb.storages.staging import placing
from torchrb.storages.structure import as_path, paths_in, shown

_UNBOUNDED = 2**32 - 1
_FIRST_SLOTS = 1024
_MISSING: Any = object()


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
            items = self._take(data, one, "add" if one else "extend")
            self._staging.settle()
            self._make_room(len(items))
            first, capacity = self.cursor, self._headers[0].shape[0]
            expected = [(first + i) % capacity for i in range(len(items))]
            with self._staging as staging:
                staging.note(placing([self._items], expected, [items]))
                slots, generations = ops.append_rows_(self.tables, self.control, self.journal, [], [], len(items))
                staging.written(placing([self._items], slots.tolist(), [items]))
            return slots, generations

    def _put(self, slots: Tensor, taken: list[Any], call: str, placement: Placement | None = None) -> Tensor:
        if len(taken) != slots.shape[0]:
            raise ValueError(f"{call}: {slots.shape[0]} records are addressed, got data for {len(taken)}.")
        return self._put_items(slots, taken, True, placement)

    def _put_items(self, slots: Tensor, items: list[Any], renew: bool, placement: Placement | None = None) -> Tensor:
        place = placing([self._items], slots.tolist(), [items])

        def finish() -> Any:
            if placement is not None:
                placement.advance(self.control)
            return place()

        with self._staging as staging:
            staging.note(finish)
            generations = ops.write_rows_(self.tables, self.control, self.journal, [], slots, [], renew)
            staging.written(finish)
        return generations

    def _num_rows(self, taken: list[Any]) -> int:
        return len(taken)

    def _rows_of(self, taken: list[Any], rows: Tensor) -> list[Any]:
        return [taken[row] for row in rows.tolist()]

    def _values_of(self, taken: list[Any], key: Any, call: str) -> list[Any]:
        return [self._value(item, key, call) for item in taken]

    def values_at(self, key: Any, slots: Tensor, call: str) -> list[Any]:
        self._staging.settle()
        return [self._value(self._items[slot], key, call) for slot in slots.tolist()]

    def _value(self, item: Any, key: Any, call: str) -> Any:
        """One record's value of a field: a tensor, or the Python value of a non-tensor field."""
        if not is_tensor_collection(item):
            raise TypeError(f"{call}: records with field {key!r} must be tensordicts, got {type(item).__name__}.")
        value = item.get(shown(as_path(key)), default=_MISSING)
        if value is _MISSING:
            known = list(item.keys(include_nested=True, leaves_only=True))
            raise KeyError(f"{call}: no field {key!r} is stored; stored are {known}.")
        return value.tolist() if is_non_tensor(value) else value

    def _take_fields(self, fields: Mapping[Any, Any], call: str) -> Any:
        raise TypeError(
            f"{call}: {type(self).__name__} keeps whole records and has no fields to set. Use LazyTensorStorage."
        )

    def _put_fields(self, slots: Tensor, taken: Any, call: str) -> None:
        raise NotImplementedError  # `_take_fields` has refused

    def clear(self, reset_writes: bool = True) -> None:
        with self.lock:

            def forget() -> list[Any]:
                replaced, self._items[:] = self._items[:], [None] * len(self._items)
                return replaced

            with self._staging as staging:
                staging.note(forget)
                super().clear(reset_writes)
                staging.written(forget)

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        """A list of records, or a single one for an index of shape ``()``."""
        if shape is not None and len(shape) > 1:
            raise TypeError(
                f"{type(self).__name__}: an index must have one dimension, got shape {[*shape]}. Flatten it."
            )
        with self.lock:
            self._staging.settle()
            kept = [self._items[slot] for slot in slots.tolist()]
            generations = self.generations(slots)
            items = [own_copy(item) for item in kept]  # last: an object's own code may write here
        return (items[0] if shape == () else items), generations

    @property
    def field_paths(self) -> list[tuple]:
        with self.lock:
            self._staging.settle()
            return list(paths_in(self._items[0])) if len(self) else []

    def read_fields(self, paths: list[tuple], slots: Tensor) -> list[Any]:
        with self.lock:
            self._staging.settle()
            kept = [self._items[slot] for slot in slots.tolist()]
            columns = [[_value_at(item, path) for item in kept] for path in paths]
            return [_as_column(own_copy(column), self.device) for column in columns]

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

    def _take(self, data: Any, one: bool, call: str) -> list[Any]:
        return [self._own(data)] if one else [self._own(item) for item in self._split(data, call)]

    def _own(self, item: Any) -> Any:
        """A record as it is kept. Raises before anything was written."""
        return own_copy(item, self.items_device)

    # --- saved states; see `storages.saving` and `storages.object_state`

    kind = "objects"

    def _told(self, call: str) -> dict[str, Any]:
        return {}

    def _segment(self, slots: Tensor, call: str) -> dict[str, Any]:
        return object_state.segment(self, slots, call)

    def _restored(self, item: Any, call: str) -> Any:
        """A record of a saved state as it is kept. ValueError for one that cannot be."""
        return self._own(item)

    def _plan_rows(self, reader: StateReader, counters: Counters, placed: Any) -> PlannedRows:
        return object_state.plan(self, reader, counters)

    def _data_of(self, reader: StateReader, length: int) -> tuple[Any, Tensor]:
        return object_state.data_of(reader, length)

    def _state_of(self, state: dict[str, Any], data: Any, headers: Any, call: str) -> dict[str, Any]:
        return object_state.state_of(state, data, headers, call)

    # --- slots

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


def _value_at(record: Any, path: tuple) -> Any:
    """A field of a tensordict or a dict."""
    value = record
    for name in path:
        value = value.get(name) if hasattr(value, "get") else None
    if value is None and path not in list(paths_in(record)):
        raise KeyError(f"no field {shown(path)!r} is in a stored record: {record!r}.")
    return value.tolist() if is_non_tensor(value) else value


def _as_column(values: list[Any], device: torch.device) -> Any:
    """Values as one tensor where they are numbers of one type and shape."""
    if values and all(isinstance(value, Tensor) for value in values):
        if len({(value.shape, value.dtype) for value in values}) > 1:
            return values
        return torch.stack([value.to(device) for value in values])
    if values and isinstance(values[0], int | float) and all(type(value) is type(values[0]) for value in values):
        return torch.tensor(values, device=device)
    return values
