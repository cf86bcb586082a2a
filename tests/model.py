"""What a replay buffer is, in plain Python: a ring of dicts that counts its writes. Slow, and obvious."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tests.oracle import Row

Record = dict[str, Any]


class Ring:
    """``rows[slot]``: the record there, or None. ``generations``, ``stamps``: of each slot."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.rows: list[Record | None] = [None] * capacity
        self.generations = [-1] * capacity
        self.stamps = [-1] * capacity
        self.cursor = self.length = self.writes = self.clock = 0

    def put(self, slot: int, record: Record) -> int:
        """A whole record into a slot; its generation."""
        self.rows[slot] = dict(record)
        self.generations[slot] += 1
        self.stamps[slot] = self.clock
        self.clock += 1
        return self.generations[slot]

    def extend(self, records: Sequence[Record]) -> list[tuple[int, int]]:
        """Handles of the records, each written at the cursor."""
        handles = []
        for record in records:
            slot = self.cursor
            handles.append((slot, self.put(slot, record)))
            self.cursor = (slot + 1) % self.capacity
            self.length = min(self.length + 1, self.capacity)
            self.writes += 1
        return handles

    def set_field(self, key: str, values: Sequence[Any], slots: Sequence[int]) -> None:
        for slot, value in zip(slots, values, strict=True):
            self.rows[slot][key] = value

    def empty(self, reset_writes: bool) -> None:
        for slot, row in enumerate(self.rows):
            if row is not None:
                self.rows[slot] = None
                self.generations[slot] += 1
        self.cursor = self.length = 0
        if reset_writes:
            self.writes = 0

    def update(
        self,
        handles: Sequence[tuple[int, int]],
        patch: dict[str, Sequence[Any]],
        version: Sequence[Any] | None,
        newer: bool,
    ) -> list[str]:
        """What becomes of each row: updated, stale, rejected, superseded."""
        fates, winner = [], {}
        before = [None if row is None else row["v"] for row in self.rows]
        for i, (slot, generation) in enumerate(handles):
            live = 0 <= slot < self.capacity and self.rows[slot] is not None and self.generations[slot] == generation
            if not live:
                fates.append("stale")
                continue
            if version is None:
                fates.append("superseded")
                winner[slot] = i
                continue
            fates.append("rejected")
            stored, given = before[slot], version[i]
            if given != given or not (stored != stored or given > stored or (given == stored and not newer)):
                continue
            if slot not in winner or given >= version[winner[slot]]:
                winner[slot] = i
        for slot, i in winner.items():
            fates[i] = "updated"
            self.rows[slot].update({key: values[i] for key, values in patch.items()})
            if version is not None:
                self.rows[slot]["v"] = version[i]
        return fates

    def groups(self) -> dict[int, list[Row]]:
        """Live rows by their group."""
        found: dict[int, list[Row]] = {}
        for slot, row in enumerate(self.rows):
            if row is not None:
                found.setdefault(row["g"], []).append(Row(slot, self.stamps[slot], row["r"]))
        return found


def same_number(a: float, b: float) -> bool:
    """Equal, or both NaN."""
    return a == b or (math.isnan(a) and math.isnan(b))
