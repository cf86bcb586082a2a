"""States of storages of Python objects: records one by one, as trees of tensors and plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrb import persistence
from torchrb.generations import new_headers
from torchrb.journal import new_journal
from torchrb.ops.schemas import HEADER_BYTES
from torchrb.persistence import StateReader
from torchrb.storages.saving import Counters, PlannedRows, check_headers, new_headers_of, segments_of

if TYPE_CHECKING:
    from torchrb.storages.list import ListStorage


def segment(storage: ListStorage, slots: Tensor, call: str) -> dict[str, Any]:
    """The records of some slots."""
    whole = slots.shape[0] == len(storage)
    return {
        "num": slots.shape[0],
        "slots": None if whole else slots,
        "headers": storage.tables[0][slots, :HEADER_BYTES],
        "items": [persistence.plain(storage._items[slot], f"{call}: record {slot}") for slot in slots.tolist()],
    }


def _items_of(reader: StateReader, length: int) -> tuple[list[Any], Tensor]:
    """The records of a state, and their headers."""
    items: list[Any] = [None] * length
    headers = torch.zeros(length, HEADER_BYTES, dtype=torch.uint8)
    for part, slots in segments_of(reader, length) if length else ():
        num = part.number("num", 1)
        given = part.tensor("headers", torch.uint8, num, HEADER_BYTES)
        places = range(num) if slots is None else slots.tolist()
        for row, (place, item) in enumerate(zip(places, part.items("items", num), strict=True)):
            if place < length:
                items[place] = persistence.restored(item, f"{part.call}: record {place}")
                headers[place] = given[row]
    return items, headers


def plan(storage: ListStorage, reader: StateReader, counters: Counters) -> PlannedRows:
    """What `Saving._plan_rows` asks for. An unbounded storage takes as much room as is needed."""
    length, capacity = counters.length, storage.tables[0].shape[0]
    items, headers = _items_of(reader, length)
    check_headers(headers.view(torch.int64), counters, reader.call)
    own = [storage._restored(item, reader.call) for item in items]
    journal = storage.journal
    if length >= capacity and not storage.bounded:
        capacity = 2 * length
        journal = new_journal(capacity, storage.device)
    table = new_headers(capacity, storage.device)
    table[:length] = headers
    own += [None] * (capacity - length)

    def put() -> None:
        storage._items, storage._headers = own, [table]

    return PlannedRows(put, journal, True)


def data_of(reader: StateReader, length: int) -> tuple[list[Any], Tensor]:
    """The records of a state, and their headers."""
    return _items_of(reader, length)


def state_of(state: dict[str, Any], data: Any, headers: Any, call: str) -> dict[str, Any]:
    """A state like another one, but of these records."""
    state = {key: value for key, value in state.items() if key not in ("data", "headers")}
    items = list(data.unbind(0) if hasattr(data, "unbind") else data or ())
    num = len(items)
    if not isinstance(headers, Tensor) or headers.shape != (num, HEADER_BYTES) or headers.dtype != torch.uint8:
        headers = new_headers_of(num)
        state |= {"length": num, "cursor": num, "stamp": num, "capacity": num + 1}
    trees = [persistence.plain(item, f"{call}: record {place}") for place, item in enumerate(items)]
    rows = [{"num": num, "slots": None, "headers": headers, "items": trees}] if num else []
    return state | {"rows": rows}
