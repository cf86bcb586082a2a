"""States of storages of tensors: rows as they lie in the tables, and a batch of none that says what a record is.

Rows are copied as they are where the layout is the same; otherwise leaf by leaf. They are put together in new memory,
which becomes the storage's, or is copied into it where others know that by its address.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrb import persistence
from torchrb.generations import words_of
from torchrb.ops.reference_tables import cells_of, typed
from torchrb.ops.schemas import HEADER_BYTES, SLOT_BUSY
from torchrb.persistence import StateReader
from torchrb.storages.cells import CellStructure, saved_cells, structure_with
from torchrb.storages.memory import zeros
from torchrb.storages.records import LeafSpec, RecordTable
from torchrb.storages.saving import Counters, PlannedRows, check_headers, new_headers_of, segments_of
from torchrb.storages.structure import Structure, numbers_of, shown, structure_of

if TYPE_CHECKING:
    from torchrb.storages.tensor import LazyTensorStorage

_CPU = torch.device("cpu")


class Placed:
    """Memory for the rows of a dump, as long as a table: it can become one."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tables: dict[int, Tensor] = {}

    def __call__(self, dtype: torch.dtype, shape: list[int]) -> Tensor | None:
        """Where rows are read into; None for what is none."""
        if dtype != torch.uint8 or len(shape) != 2 or not 0 < shape[0] <= self._capacity:
            return None
        table = zeros(self._capacity, shape[1], dtype=torch.uint8, device=_CPU)
        self._tables[table.data_ptr()] = table
        return table[: shape[0]]

    def table_of(self, rows: Tensor) -> Tensor | None:
        """The table that rows were read into."""
        return self._tables.pop(rows.data_ptr(), None)


def told(storage: LazyTensorStorage) -> dict[str, Any]:
    """What a state says of the structure: an example, a batch of no rows; where the leaves of a row are; and the cells
    that a record has, where each of them is a row.
    """
    structure = storage.structure
    if structure is None:
        return {"example": None, "layout": [], "cells": []}
    columns: list[list[Any]] = [[] for _ in structure.object_keys]
    with torch.inference_mode(False):
        example = structure.build(storage._records.templates, columns, torch.Size([0]))
    plain = persistence.plain(example, "the example")
    return {"example": plain, "layout": list(storage._records.layout), "cells": list(structure.cells)}


def segment(storage: LazyTensorStorage, slots: Tensor, call: str) -> dict[str, Any]:
    """The rows of some slots."""
    num, whole = slots.shape[0], slots.shape[0] == len(storage)
    where: Any = slice(num) if whole else slots.to(storage.device)
    keys = [] if storage.structure is None else storage.structure.object_keys
    places = range(num) if whole else slots.tolist()
    return {
        "num": num,
        "slots": None if whole else slots,
        "tables": [table[where] for table in storage.tables],
        "objects": [
            persistence.plain([column[place] for place in places], f"{call}: field {key!r}")
            for key, column in zip(keys, storage._objects, strict=True)
        ],
    }


class SavedRows:
    """The rows of a state: ``leaves`` and their ``layout`` in ``tables``, of which the first ``length`` rows count, and
    columns of objects. ValueError for a state that does not hold together.
    """

    def __init__(self, reader: StateReader, length: int, capacity: int, placed: Any) -> None:
        call = self._call = reader.call
        self.example = None
        if reader.any("example") is not None:
            self.example = persistence.restored(reader.any("example"), f"{call}: 'example'")
        self.cells = saved_cells(reader)
        self.structure = None if self.example is None else _learned(self.cells, self.example, call)
        self.leaves: list[LeafSpec] = [] if self.structure is None else self.structure.leaves
        self.layout = reader.items("layout", 3 * len(self.leaves))
        self.tables: list[Tensor] = []
        num_columns = 0 if self.structure is None else len(self.structure.object_keys)
        self.objects: list[list[Any]] = [[None] * length for _ in range(num_columns)]
        if not length:
            return
        if self.structure is None:
            raise ValueError(f"{call}: the saved state has {length} records and no example of one.")
        for part, slots in segments_of(reader, length):
            num = part.number("num", 1)
            tables = [
                StateReader({"table": table}, part.call).tensor("table", torch.uint8, num, None)
                for table in part.items("tables")
            ]
            self._check_layout(tables, part)
            self._put(tables, slots, length, capacity, placed)
            columns = persistence.restored(part.items("objects", num_columns), part.call)
            places = range(num) if slots is None else slots.tolist()
            for column, values in zip(self.objects, columns, strict=True):
                if not isinstance(values, list) or len(values) != num:
                    raise ValueError(f"{part.call}: fields that are no tensors must have {num} values.")
                for place, value in zip(places, values, strict=True):
                    if place < length:
                        column[place] = value

    def _check_layout(self, tables: list[Tensor], part: StateReader) -> None:
        widths = [table.shape[1] for table in tables]
        if not widths or widths[0] < HEADER_BYTES or (self.tables and widths != [t.shape[1] for t in self.tables]):
            raise ValueError(f"{part.call}: the rows of its tables have {widths} bytes, which no layout gives.")
        if any(type(number) is not int for number in self.layout):
            raise ValueError(f"{part.call}: the layout is {self.layout}.")
        for number, leaf in enumerate(self.leaves):
            table, offset, nbytes = self.layout[3 * number : 3 * number + 3]
            if not 0 <= table < len(widths) or nbytes != leaf.nbytes or not 0 <= offset <= widths[table] - nbytes:
                raise ValueError(f"{part.call}: field {leaf.key} lies out of its rows of {widths} bytes.")

    def _put(self, tables: list[Tensor], slots: Tensor | None, length: int, capacity: int, placed: Any) -> None:
        """Lay the rows of a segment over those that are there."""
        for place, rows in enumerate(tables):
            if place == len(self.tables):
                own = None if placed is None or slots is not None else placed.table_of(rows)
                if own is not None:
                    own[length : rows.shape[0]] = 0
                    self.tables.append(own)
                    continue
                self.tables.append(zeros(capacity, rows.shape[1], dtype=torch.uint8, device=_CPU))
            if slots is None:
                rows = rows[:length]
                self.tables[place][: rows.shape[0]] = rows
            else:
                inside = slots < length
                self.tables[place][slots[inside]] = rows[inside].to(_CPU)

    def require_fields_of(self, structure: Structure | None, call: str) -> None:
        """ValueError or KeyError where a storage that knows its structure has other fields."""
        if structure is None or self.structure is None:
            return
        expected, got = _fields_of(structure), _fields_of(self.structure)
        if expected != got:
            raise ValueError(
                f"{call}: the saved state is of records of other fields: expected {_shown(expected)}, as the storage "
                f"has, got {_shown(got)}. Load it into a new storage."
            )
        rows = structure.cell if isinstance(structure, CellStructure) else structure
        rows.flatten(self.example, _CPU, call)  # and the same containers

    def require_cells_of(self, storage: LazyTensorStorage, counters: Counters) -> None:
        """ValueError where the records have other cells than those of a storage, or are not whole."""
        if self.structure is None:
            return
        cells, num, length = self.cells, self.cells.numel(), counters.length
        if len(cells) + 1 != storage.ndim or storage.cells not in (torch.Size(), cells):
            expected = f"cells {[*storage.cells]}" if storage.cells else f"ndim={storage.ndim}"
            raise ValueError(
                f"{self._call}: the saved state has records of cells {[*cells]}, that is ndim={len(cells) + 1}, and "
                f"this storage has {expected}. Load it into one like that which saved it."
            )
        if not cells or not length:
            return
        words = self.headers(length)[:, 0]
        if counters.cursor % num or length % num or not bool((words.view(-1, num) == words[::num, None]).all()):
            raise ValueError(f"{self._call}: the saved state has records of which some cells are missing or others.")

    def headers(self, length: int) -> Tensor:
        """Words and stamps, int64 ``[length, 2]``."""
        return self.tables[0][:length, :HEADER_BYTES].contiguous().view(torch.int64)

    def laid_out(self, records: RecordTable, leaves: list[LeafSpec], length: int, capacity: int) -> list[Tensor]:
        """The tables as they are in another storage."""
        widths = [table.shape[1] for table in records.tables]
        if records.layout == self.layout and leaves == self.leaves and widths == [t.shape[1] for t in self.tables]:
            return self.tables
        old = {leaf.key: number for number, leaf in enumerate(self.leaves)}
        made = [zeros(capacity, width, dtype=torch.uint8, device=_CPU) for width in widths]
        made[0][:length, :HEADER_BYTES] = self.tables[0][:length, :HEADER_BYTES]
        for number, leaf in enumerate(leaves):
            source = cells_of(self.tables, self.layout, old[leaf.key])
            cells_of(made, records.layout, number)[:length] = source[:length]
        return made


def _fields_of(structure: Structure) -> dict[tuple, tuple | None]:
    return {leaf.key: leaf[1:] for leaf in structure.leaves} | dict.fromkeys(structure.object_keys)


def _shown(fields: dict[tuple, tuple | None]) -> str:
    kinds = ((key, "no tensor" if kind is None else f"{kind[0]} {[*kind[1]]}") for key, kind in fields.items())
    return ", ".join(f"{shown(key)!r} {kind}" for key, kind in kinds)


def _learned(cells: torch.Size, example: Any, call: str) -> Structure:
    try:
        return structure_with(cells, example, _CPU, call)
    except (TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{call}: the example of the saved state is no record: {error}") from error


def plan(storage: LazyTensorStorage, reader: StateReader, counters: Counters, placed: Any) -> PlannedRows:
    """What `Saving._plan_rows` asks for."""
    length, capacity = counters.length, storage._room_for(reader)
    saved = SavedRows(reader, length, capacity, placed)
    structure = storage.structure
    saved.require_fields_of(structure, reader.call)
    saved.require_cells_of(storage, counters)
    if not length:
        return PlannedRows(_forgetting(storage), storage.journal, False)
    check_headers(saved.headers(length), counters, reader.call)
    if structure is None:
        structure = structure_with(saved.cells, saved.example, storage.device, reader.call)
        storage._require_fit(structure)
    kept = storage._records if storage.structure is not None else storage._lay_out(structure, storage.device)
    tables = saved.laid_out(kept, structure.leaves, length, capacity)
    columns = [column + [None] * (capacity - length) for column in _ordered(saved, structure)]
    moves = storage._keeps_tables
    if not moves:
        kept = RecordTable(tables, kept.layout, kept.templates)

    def put() -> None:
        nonlocal kept
        storage._settled = True
        if moves:
            if storage.structure is None and storage.shared:
                storage._records = storage._allocate(structure, storage.device)
            elif storage.structure is None:
                storage._records = kept
            _copy_rows(storage._records.tables, tables, length)
        else:
            storage._records = kept
        if storage._on_gpu:
            storage.lock.owns(*storage._records.tables)
        storage._objects, storage._numbers = columns, numbers_of(structure)
        storage.structure = structure

    return PlannedRows(put, storage.journal, tables is saved.tables)


def _ordered(saved: SavedRows, structure: Structure) -> list[list[Any]]:
    """The columns of objects as a structure has them."""
    assert saved.structure is not None
    columns = dict(zip(saved.structure.object_keys, saved.objects, strict=True))
    return [columns[key] for key in structure.object_keys]


def _forgetting(storage: LazyTensorStorage) -> Callable[[], None]:
    """What leaves no record."""

    def put() -> None:
        if storage.tables:
            words_of(storage.tables).zero_()
        storage._objects = [[None] * storage.max_size for _ in storage._objects]

    return put


def _copy_rows(tables: list[Tensor], sources: list[Tensor], length: int) -> None:
    """Overwrite all rows of tables. Their words say so meanwhile: of who is killed here the next one drops what was
    not finished (`storages.repair`).
    """
    words = words_of(tables)
    words |= SLOT_BUSY
    for number, (table, source) in enumerate(zip(tables, sources, strict=True)):
        body = HEADER_BYTES // 2 if number == 0 else 0  # the slot word comes last
        table[:length, body:].copy_(source[:length, body:])
    words[length:] = 0
    words[:length] = words_of(sources)[:length].to(words.device)


def data_of(reader: StateReader, length: int) -> tuple[Any, Tensor]:
    """The records of a state as a user sees them, on the CPU, and their headers."""
    saved = SavedRows(reader, length, max(length, 1), None)
    if saved.structure is None:
        return None, torch.empty(0, HEADER_BYTES, dtype=torch.uint8)
    values = []
    for number, leaf in enumerate(saved.leaves):
        template = torch.empty((0, *leaf.shape), dtype=leaf.dtype)
        cells = cells_of(saved.tables, saved.layout, number)[:length].contiguous() if length else template
        values.append(typed(cells, template) if length else template)
    shape = torch.Size([length // saved.cells.numel(), *saved.cells])
    data = saved.structure.build(values, saved.objects, shape)
    return data, saved.tables[0][:length, :HEADER_BYTES] if length else torch.empty(0, HEADER_BYTES, dtype=torch.uint8)


def state_of(state: dict[str, Any], data: Any, headers: Any, call: str) -> dict[str, Any]:
    """A state like another one, with this data, in columns."""
    state = {key: value for key, value in state.items() if key not in ("data", "headers")}
    if data is None:
        return state | {"example": None, "layout": [], "cells": [], "rows": [], "length": 0, "cursor": 0}
    ndim = 1 + len(saved_cells(StateReader(state, call)))
    structure = structure_of(data, _CPU, call) if ndim == 1 else CellStructure.learned(data, ndim, _CPU, call)
    num, values, objects = structure.flatten(data, _CPU, call)
    if not isinstance(headers, Tensor) or headers.shape != (num, HEADER_BYTES) or headers.dtype != torch.uint8:
        headers = new_headers_of(num)
        room = num + structure.cells.numel()
        state |= {"length": num, "cursor": num, "stamp": num, "capacity": room}
    tables = [headers.contiguous()]
    layout: list[int] = []
    for leaf, value in zip(structure.leaves, values, strict=True):
        layout += [len(tables), 0, leaf.nbytes]
        cells = value.contiguous().view(num, leaf.shape.numel())
        tables.append(cells.view(torch.uint8) if leaf.nbytes else cells.new_empty((num, 0), dtype=torch.uint8))
    columns: list[list[Any]] = [[] for _ in structure.object_keys]
    empties = [torch.empty((0, *leaf.shape), dtype=leaf.dtype) for leaf in structure.leaves]
    example = structure.build(empties, columns, torch.Size([0]))
    plain = [persistence.plain(column, call) for column in objects]
    rows = [{"num": num, "slots": None, "tables": tables, "objects": plain}] if num else []
    told = {"example": persistence.plain(example, call), "layout": layout, "cells": list(structure.cells)}
    return state | told | {"rows": rows}
