"""The records of a storage by what one of their fields is worth, lowest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from torchrb.generations import stamps_at, words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import CONTROL_STAMP, ORDERED_DTYPES, SLOT_LIVE
from torchrb.storages.base import Placement, Storage

REDUCTIONS = ("sum", "max", "min", "mean", "median")

# What a field is worth: NaN is below every number, and numbers are compared as Python does, exactly.
Worth = tuple[bool, Any]
_NAN: Worth = (False, 0)


# A record in the order in which records make way, the lowest worth first, of equals the one written last: its worth,
# the negative of its stamp, its slot. (Plain tuples of numbers: the garbage collector follows no such tuple.)
Entry = tuple[bool, Any, int, int]


class Ranking:
    """Which records of a storage make way for better ones.

    It follows the storage's journal, so it is right whoever wrote; what a write costs depends on the rows written since
    the last one, and on the logarithm of how many are stored.

    ``rows_visited``: records looked at so far.
    """

    def __init__(self, storage: Storage, key: Any, reduction: str) -> None:
        self._storage, self._key, self._reduction = storage, key, reduction
        self._entries: list[Entry | None] = []  # by slot, as the records are
        self._heap: list[Entry] = []  # of these, and of some that have gone
        self._reader = JournalReader()
        self.rows_visited = 0

    def catch_up(self, call: str) -> None:
        """Bring the ranking to the storage's present. The caller holds the storage's lock. KeyError and TypeError for a
        stored record that cannot be ranked.
        """
        storage = self._storage
        if not self._reader.moved(storage.control):
            return
        slots, position = self._reader.unread(storage.control, storage.journal)
        if slots is None or not self._entries:
            self._entries, self._heap, slots = [], [], torch.arange(len(storage), device=storage.device)
        if not storage.tables:
            return
        live = slots[(words_of(storage.tables)[slots] & SLOT_LIVE) != 0]
        told = worths(storage.values_at(self._key, live, call), self._key, self._reduction, call) if len(live) else []
        stamps = stamps_at(storage.tables, live).tolist()
        written = {slot: (*worth, -stamp, slot) for slot, worth, stamp in zip(live.tolist(), told, stamps, strict=True)}
        anew = not self._entries
        for slot in slots.tolist():
            if slot >= len(self._entries):
                self._entries += [None] * (slot + 1 - len(self._entries))
            self._entries[slot] = entry = written.get(slot)
            if entry is not None and not anew:
                heapq.heappush(self._heap, entry)
        self.rows_visited += slots.shape[0]
        if anew or len(self._heap) > 2 * len(self._entries) + 64:
            self._heap = [entry for entry in self._entries if entry is not None]
            heapq.heapify(self._heap)
        self._reader.accept(position)  # last: what was cut off is looked at again

    def place(self, coming: list[Worth]) -> Placement:
        """Where records of such worth go, as if they came one by one: to free slots while there are any, then over the
        lowest one that is worth less, else nowhere. Their final slots, -1 for those that did not stay.
        """
        try:
            return self._placed(coming)
        except BaseException:
            self._reader, self._entries = JournalReader(), []  # it may lack what was taken out to be compared
            raise

    def _placed(self, coming: list[Worth]) -> Placement:
        storage, length = self._storage, len(self._storage)
        cursor, free, stamp = storage.cursor, length, int(storage.control[CONTROL_STAMP])
        taken_out: list[Entry] = []  # stored ones that made way: the journal will tell that they have gone
        arrived: list[Entry] = []
        row_in: dict[int, int] = {}
        slots, accepted = [-1] * len(coming), 0
        for row, worth in enumerate(coming):
            if free < storage.max_size:
                slot, free = free, free + 1
            else:
                stored = self._lowest()
                heap = arrived if stored is None or (arrived and arrived[0] < stored) else self._heap
                if worth <= heap[0][:2]:
                    continue
                gone = heapq.heappop(heap)
                slot = gone[3]
                if heap is arrived:
                    slots[row_in[slot]] = -1
                else:
                    taken_out.append(gone)
            heapq.heappush(arrived, (*worth, -(stamp + row), slot))
            slots[row], row_in[slot], accepted = slot, row, accepted + 1
        for entry in taken_out:  # it is still there until the write is done
            heapq.heappush(self._heap, entry)
        if cursor == length % storage.max_size:
            cursor = free % storage.max_size
        where = torch.tensor(slots, dtype=torch.int64, device=storage.device)
        return Placement(where, cursor, storage.write_count + accepted)

    def _lowest(self) -> Entry | None:
        """The stored record that makes way first."""
        heap, entries = self._heap, self._entries
        while heap and entries[heap[0][3]] is not heap[0]:
            heapq.heappop(heap)
        return heap[0] if heap else None


def worths(values: Tensor | list[Any], key: Any, reduction: str, call: str) -> list[Worth]:
    """What each record's value of a field is worth. TypeError for what is no number or has no order."""
    if isinstance(values, Tensor):
        _check(values.dtype, values.shape[1:].numel(), key, call)
        if values.shape[1:].numel() == 1:
            return [_worth(value) for value in values.reshape(-1).tolist()]
        rows: Iterable[Any] = values.reshape(values.shape[0], -1).tolist()
    else:
        rows = [_numbers(value, key, call) for value in values]
    return [_worth(_REDUCED[reduction](row)) for row in rows]


def _worth(value: Any) -> Worth:
    return _NAN if value != value else (True, value)


def _numbers(value: Any, key: Any, call: str) -> list[Any]:
    if not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(
                f"{call}: TensorDictMaxValueWriter ranks by numbers, got {value!r} in field {key!r}."
            ) from None
    _check(value.dtype, value.numel(), key, call)
    return value.reshape(-1).tolist()


def _check(dtype: torch.dtype, num: int, key: Any, call: str) -> None:
    if dtype not in ORDERED_DTYPES or not num:
        raise TypeError(
            f"{call}: rank_key {key!r} of TensorDictMaxValueWriter must name one or more real numbers in each record, "
            f"got {num} of {dtype}."
        )


def _summed(numbers: list[Any]) -> Any:
    """In order, as float64; integers exactly."""
    total = numbers[0]
    for number in numbers[1:]:
        total += number
    return total


def _mean(numbers: list[Any]) -> Any:
    total = _summed(numbers)
    return total / len(numbers) if isinstance(total, float) else Fraction(total, len(numbers))


def _unless_nan(choice: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    return lambda numbers: next((number for number in numbers if number != number), None) or choice(numbers)


_REDUCED: dict[str, Callable[[list[Any]], Any]] = {
    "sum": _summed,
    "mean": _mean,
    "max": _unless_nan(max),
    "min": _unless_nan(min),
    "median": _unless_nan(lambda numbers: sorted(numbers)[(len(numbers) - 1) // 2]),
}
