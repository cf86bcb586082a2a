"""The part of a storage that is saved and loaded: snapshots in memory, dumps on disk.

A state is a dict: of what ``kind`` of storage it is, its ``capacity``, its counters (``cursor``, ``length``,
``writes``, ``stamp``), ``rows``, which is a list of segments (`storages.segments`), and what the kind adds. In memory
there is one segment. On disk the state without its rows has a file, and so has each segment. Where save hooks are
registered there are no segments: the state has the ``data`` that they returned, and the ``headers`` of its records.
"""

from __future__ import annotations

import os
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchrb import persistence
from torchrb.journal import JournalReader
from torchrb.ops.schemas import (
    CONTROL_CLEARS,
    CONTROL_CURSOR,
    CONTROL_EPOCH,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_STAMP,
    CONTROL_WRITES,
    EPOCH_COUNTS,
    HEADER_BYTES,
    SLOT_BUSY,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
    STAMP_SHIFT,
)
from torchrb.persistence import Dump, StateReader
from torchrb.storages.segments import Log, Segment, planned
from torchrb.storages.staging import Staging

PART = "storage"  # its name in a dump
_FORMAT = 1
_MOST_LOGS = 4  # directories that a storage is dumped to in turn
_MOST_COUNT = 1 << 61

Hook = Callable[[Any], Any]


class Counters(NamedTuple):
    """The counters of a saved state, as they will be."""

    cursor: int
    length: int
    writes: int
    stamp: int


class Loaded(NamedTuple):
    """A state from a directory: the dump it was read from, the segments that it has there (None where hooks changed
    it), and memory that its rows were read into and that may become the storage's.
    """

    state: dict[str, Any]
    dump: Dump
    segments: list[Segment] | None
    placed: Any


class PlannedRows(NamedTuple):
    """What puts the rows of a state, without the counters, in place, as often as it is called; the journal that there
    will be; and whether the storage would save them in the form that they had.
    """

    put: Callable[[], None]
    journal: Tensor
    as_saved: bool


class Saving(ABC):
    """What makes a storage one that can be saved. A subclass says what a state of its ``kind`` has beside the counters,
    and puts one in place; storages of one kind load each other's.
    """

    kind: str
    bounded = True  # whether there is a capacity
    grows_on_disk = True  # whether what was dumped and not written since, by the journal, is left as it is
    max_size: int
    num_cells: int
    cells: torch.Size
    device: torch.device
    lock: Any
    control: Tensor
    journal: Tensor
    known_nonempty: bool
    _staging: Staging

    def __init__(self) -> None:
        self._logs: list[Log] = []
        self._save_hooks: list[Hook] = []
        self._load_hooks: list[Hook] = []

    # --- snapshots

    def state_dict(self) -> dict[str, Any]:
        """A snapshot of all that is stored: records with their generations and their order, cursor, counters.

        Nested dicts and lists of tensors, numbers, bools, strings and None, which share no memory with the storage, and
        are as large as the records that are stored. TypeError for records that have no such form: those that are not
        made of tensors, tensordicts, numbers, strings, None, and dicts, lists and tuples of these.
        """
        with self.lock:
            self._staging.settle()
            return persistence.copied(self._head("state_dict") | {"rows": self._rows("state_dict")})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Become what a snapshot tells; it stays its owner's. Records have their generations again, so handles to them
        are good again; every later write gives generations that were never given out, neither here nor in any process
        that went on from the same snapshot.

        The snapshot may come from another process, from a storage on another device, or one with another layout or
        capacity, as long as its records have room; they keep their slots, and where the capacity is another one,
        what is written next goes behind the last of them. ValueError or KeyError, with nothing changed, for a
        snapshot of another kind of storage, of other fields, of too many records, or that is none.
        """
        with self.lock:
            self.plan_load(state)()

    # --- dumps

    def dumps(self, path: str | os.PathLike[str]) -> None:
        """Save this storage alone to a directory; see `ReplayBuffer.dumps`."""
        with self.lock:
            noted: list[Callable[[Dump], None]] = []

            def parts(before: Dump | None) -> dict[str, list[Any]]:
                trees, note = self.trees(before)
                noted.append(note)
                return {PART: trees}

            dump = persistence.saved(path, PART, parts)
            noted[0](dump)

    def loads(self, path: str | os.PathLike[str]) -> None:
        """Load what a storage, or a buffer, saved with ``dumps``: of a buffer, its records alone. See
        `load_state_dict` for what fits, and `ReplayBuffer.loads`.
        """
        with persistence.opened(path) as dump:
            loaded = self.read_dump(dump)
        with self.lock:  # not within: who dumps has this lock first
            self.plan_load(loaded.state, "loads", loaded)()

    def register_save_hook(self, hook: Hook) -> None:
        """Have ``hook`` change the data on its way to a directory; see `ReplayBuffer.register_save_hook`."""
        self._save_hooks.append(hook)

    def register_load_hook(self, hook: Hook) -> None:
        """Have ``hook`` change the data on its way from a directory; see `ReplayBuffer.register_load_hook`."""
        self._load_hooks.append(hook)

    # --- for the buffer: the steps of a dump and of a load

    def trees(self, before: Dump | None) -> tuple[list[Any], Callable[[Dump], None]]:
        """What there is to save into a directory where ``before`` is, and what to call with the dump that it became.
        The trees share memory with the storage, whose lock the caller holds until they are written.
        """
        self._staging.settle()
        head, length, position = self._head("dumps"), len(self), self.journal_position
        if self._save_hooks:
            return [head | self._hooked(length)], lambda dump: None
        log = next((log for log in self._logs if before is not None and log.dump == before.id), None)
        changed = None
        if log is not None and self.grows_on_disk:
            reader = JournalReader()
            reader.accept(log.position)
            changed, _ = reader.unread(self.control, self.journal)
        kept, slots = planned(log, None if changed is None else changed.cpu(), length)
        trees = [head, *(segment.file for segment in kept)]
        if slots is not None:
            trees.append(self._segment(slots, "dumps"))

        def note(dump: Dump) -> None:
            new = [] if slots is None else [Segment(dump.parts[PART][-1], slots)]
            others = [other for other in self._logs if other is not log]
            self._logs = [Log(dump.id, position, kept + new), *others[: _MOST_LOGS - 1]]

        return trees, note

    def _hooked(self, length: int) -> dict[str, Any]:
        """The data as save hooks want it, and the headers of its records."""
        slots = torch.arange(length, device=self.device)
        data = self.read(slots, torch.Size([length // self.num_cells, *self.cells]))[0] if self.tables else None
        for hook in self._save_hooks:
            if hasattr(hook, "shift"):  # torchrl's hooks ask where the newest record ends; they are given no free rows
                hook.shift, hook.is_full = self.cursor or length, True  # type: ignore[attr-defined]
            data = hook(data)
        headers = self.tables[0][:length, :HEADER_BYTES] if self.tables else None
        return {"data": persistence.plain(data, "dumps: what the save hooks returned"), "headers": headers}

    def read_dump(self, dump: Dump) -> Loaded:
        """Read what was dumped, through the load hooks, if there are some. Nothing is changed yet, and no lock is
        needed. ValueError for a dump that is not of a storage, or is damaged.
        """
        files = dump.parts.get(PART)
        if not files:
            raise ValueError(f"loads: the dump in {dump.folder} has no storage; it has {sorted(dump.parts)}.")
        placed = self._placed()
        head = dump.read(files[0])
        if not isinstance(head, dict):
            raise ValueError(f"loads: {dump.folder / files[0].name} holds no state of a storage.")
        state = head | {"rows": [dump.read(file, placed) for file in files[1:]]}
        if self._load_hooks or "data" in head:
            return Loaded(self._unhooked(state), dump, None, None)
        segments = [Segment(file, self._slots(rows)) for file, rows in zip(files[1:], state["rows"], strict=True)]
        return Loaded(state, dump, segments, placed)

    def _slots(self, rows: Any) -> Tensor:
        """Whose the rows of a segment are, int64; validated later."""
        reader = StateReader(rows, f"loads: {type(self).__name__}: rows")
        return torch.arange(reader.number("num", 0)) if reader.any("slots") is None else reader.tensor(
            "slots", torch.int64, None
        )  # fmt: skip

    def _unhooked(self, state: dict[str, Any]) -> dict[str, Any]:
        """A state without hooks from what was dumped, by way of the load hooks."""
        call = f"loads: {type(self).__name__}"
        reader = self._checked(state, call)
        length = reader.number("length", 0)
        if "data" in reader:
            data = persistence.restored(reader.any("data"), f"{call}: what the save hooks returned")
            headers = reader.any("headers")
        else:
            data, headers = self._data_of(reader, length)
        for hook in self._load_hooks:
            data = hook(data)
        return self._state_of(state, data, headers, call)

    def plan_load(
        self, state: Mapping[str, Any], call: str = "load_state_dict", loaded: Loaded | None = None
    ) -> Callable[[], None]:
        """Validate a state and return what puts it in place, which does not fail. The caller holds the lock until then;
        see `load_state_dict` for the errors. Afterwards whoever reads the journal starts anew, and a clearing more
        has been counted.
        """
        self._staging.settle()
        reader = self._checked(state, f"{call}: {type(self).__name__}")
        counters = self._planned_counters(reader)
        planned_rows = self._plan_rows(reader, counters, None if loaded is None else loaded.placed)
        journal = planned_rows.journal
        numbers = self.control.cpu().clone()
        for place, value in (
            (CONTROL_CURSOR, counters.cursor),
            (CONTROL_LENGTH, counters.length),
            (CONTROL_WRITES, counters.writes),
            (CONTROL_STAMP, counters.stamp),
            (CONTROL_CLEARS, int(numbers[CONTROL_CLEARS]) + 1),
            (CONTROL_JOURNAL, int(numbers[CONTROL_JOURNAL]) + journal.shape[0] + 1),
            (CONTROL_EPOCH, new_epoch()),
        ):
            numbers[place] = value

        def finish() -> None:
            planned_rows.put()
            self.journal = journal
            self.control.copy_(numbers)
            if loaded is not None:
                logs = [log for log in self._logs if log.dump != loaded.dump.id]
                if planned_rows.as_saved and loaded.segments is not None:
                    logs.insert(0, Log(loaded.dump.id, int(numbers[CONTROL_JOURNAL]), loaded.segments))
                self._logs = logs[:_MOST_LOGS]

        def put() -> None:
            with self._staging as staging:
                staging.written(finish)
            self.known_nonempty = self.device.type == "cuda" and counters.length > 0

        return put

    def _checked(self, state: Any, call: str) -> StateReader:
        """A reader of a state that is of this kind of storage, and of a format that is known."""
        reader = StateReader(state, call)
        version = reader.number("format", 1)
        if version > _FORMAT:
            raise ValueError(
                f"{call}: the saved state has format {version}, and this torchrb knows formats up to {_FORMAT}. Use "
                "the torchrb that saved it, or a newer one."
            )
        if reader.text("kind") != self.kind:
            raise ValueError(
                f"{call}: the saved state is of a storage of {reader.text('kind')}, and this one keeps {self.kind}. "
                "Load it into a storage of the class that saved it."
            )
        return reader

    def _planned_counters(self, reader: StateReader) -> Counters:
        """The counters of a state, for the capacity that there is. ValueError where its records have no room."""
        capacity = None if reader.any("capacity") is None else reader.number("capacity", 1, 2**32 - 1)
        length = reader.number("length", 0, 2**32 - 1 if capacity is None else capacity)
        cursor = reader.number("cursor", 0, length if capacity is None else capacity - 1)
        room = self._room_for(reader)
        if length > room:
            raise ValueError(
                f"{reader.call}: the saved state has {length} records, and there is room for {room}. Make a "
                f"storage with max_size={capacity or length}."
            )
        if capacity != (room if self.bounded else None):
            if length == capacity and cursor:
                raise ValueError(
                    f"{reader.call}: the saved ring of {capacity} records has turned round, and its oldest record is "
                    f"in slot {cursor}: in a ring of another size their order in time would be lost. Load it with "
                    f"max_size={capacity}, or extend a larger buffer with the records of that one."
                )
            cursor = length % room
        return Counters(cursor, length, reader.number("writes", 0), reader.number("stamp", 0, 1 << 50))

    def _room_for(self, reader: StateReader) -> int:
        """The capacity that there will be with a state."""
        return self.max_size

    def _head(self, call: str) -> dict[str, Any]:
        """A state without its rows."""
        numbers = self.control.tolist()
        return {
            "format": _FORMAT,
            "kind": self.kind,
            "capacity": self.max_size if self.bounded else None,
            "cursor": numbers[CONTROL_CURSOR],
            "length": numbers[CONTROL_LENGTH],
            "writes": numbers[CONTROL_WRITES],
            "stamp": numbers[CONTROL_STAMP],
        } | self._told(call)

    def _rows(self, call: str) -> list[Any]:
        return [self._segment(torch.arange(len(self)), call)] if len(self) else []

    # --- what a kind of storage says

    def __len__(self) -> int:
        raise NotImplementedError

    tables: Any
    journal_position: Any
    cursor: Any
    read: Any

    @abstractmethod
    def _told(self, call: str) -> dict[str, Any]:
        """What a state has beside counters and rows."""

    @abstractmethod
    def _segment(self, slots: Tensor, call: str) -> dict[str, Any]:
        """The rows of some slots, ascending; with ``num``, how many, and ``slots``, None where they are the first."""

    @abstractmethod
    def _plan_rows(self, reader: StateReader, counters: Counters, placed: Any) -> PlannedRows:
        """Validate the rows of a state; the lock is held. ``placed``: what `_placed` gave, where they were read."""

    @abstractmethod
    def _data_of(self, reader: StateReader, length: int) -> tuple[Any, Tensor]:
        """The records of a state as a user sees them, and their headers."""

    @abstractmethod
    def _state_of(self, state: dict[str, Any], data: Any, headers: Any, call: str) -> dict[str, Any]:
        """A state like another one, but with this data; as new records, where there are not as many as headers."""

    def _placed(self) -> Any:
        """Where large tensors of a dump are read into; called with dtype and shape."""
        return lambda dtype, shape: None


def new_epoch() -> int:
    """A count from which on nobody has ever counted."""
    return EPOCH_COUNTS + secrets.randbelow(_MOST_COUNT - 3 * EPOCH_COUNTS)


def new_headers_of(num: int) -> Tensor:
    """Headers of records that were never stored before, in their order: uint8 ``[num, HEADER_BYTES]``."""
    words = torch.full((num,), (new_epoch() + 1) << SLOT_COUNT_SHIFT | SLOT_LIVE)
    stamps = torch.arange(num) << STAMP_SHIFT
    return torch.stack([words, stamps], 1).view(torch.uint8).view(num, HEADER_BYTES)


def check_headers(headers: Tensor, counters: Counters, call: str) -> None:
    """ValueError for headers that no storage has: int64 ``[n, 2]``, words and stamps."""
    words, stamps = headers[:, 0], headers[:, 1]
    counts = words >> SLOT_COUNT_SHIFT
    whole = ((words & SLOT_BUSY) == 0) & (counts >= 0) & (counts < _MOST_COUNT)
    ordered = (stamps >= 0) & ((stamps >> STAMP_SHIFT) < max(counters.stamp, 1))
    if not bool((whole & ordered).all()):
        row = int(torch.nonzero(~(whole & ordered))[0])
        raise ValueError(
            f"{call}: record {row} of the saved state has a slot word {int(words[row])} and a stamp "
            f"{int(stamps[row])}, which no storage gives."
        )


def segments_of(reader: StateReader, length: int) -> Iterator[tuple[StateReader, Tensor | None]]:
    """The segments of a state of ``length`` records, each with its slots, ascending; None where they are the first
    ``num``. ValueError, at the end, where a record is in none.
    """
    covered = torch.zeros(length, dtype=torch.bool)
    for number, rows in enumerate(reader.items("rows")):
        part = StateReader(rows, f"{reader.call}: segment {number}")
        num = part.number("num", 1)
        if part.any("slots") is None:
            covered[:num] = True
            yield part, None
            continue
        slots = part.tensor("slots", torch.int64, num)
        if int(slots[0]) < 0 or not bool((slots[1:] > slots[:-1]).all()):
            raise part.refuse("slots", "ascending slots")
        covered[slots[slots < length]] = True
        yield part, slots
    if not bool(covered.all()):
        missing = int(torch.nonzero(~covered)[0])
        raise ValueError(
            f"{reader.call}: the saved state has {length} records, and record {missing} is not among its rows."
        )
