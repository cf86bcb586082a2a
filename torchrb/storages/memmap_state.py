"""States of a storage whose records lie in a file: those of `tensor_state`, with the values that records name told in
full, and given new names where they are taken up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchrb import persistence
from torchrb.generations import words_of
from torchrb.ops.reference_tables import cells_of
from torchrb.ops.schemas import HEADER_BYTES, SLOT_BUSY
from torchrb.persistence import StateReader
from torchrb.storages import tensor_state
from torchrb.storages.saving import Counters, PlannedRows, check_headers

if TYPE_CHECKING:
    from torchrb.storages.memmap import LazyMemmapStorage


def told(storage: LazyMemmapStorage) -> dict[str, Any]:
    """What a state says of the structure: nothing of the references."""
    state = tensor_state.told(storage)
    leaves = [] if storage.structure is None else storage.structure.leaves
    return state | {"layout": state["layout"][: 3 * len(leaves)]}


def segment(storage: LazyMemmapStorage, slots: Tensor, call: str) -> dict[str, Any]:
    """The rows of some slots."""
    num, whole = slots.shape[0], slots.shape[0] == len(storage)
    keys = [] if storage.structure is None else storage.structure.object_keys
    columns = storage.stored_values(slots, list(range(len(keys))))
    return {
        "num": num,
        "slots": None if whole else slots,
        "tables": [table[:num] if whole else table[slots] for table in storage.tables],
        "objects": [
            persistence.plain(column, f"{call}: field {key!r}") for key, column in zip(keys, columns, strict=True)
        ],
    }


def plan(storage: LazyMemmapStorage, reader: StateReader, counters: Counters) -> PlannedRows:
    """What `Saving._plan_rows` asks for."""
    length, before = counters.length, len(storage)
    capacity = storage._room_for(reader)
    saved = tensor_state.SavedRows(reader, length, capacity, None)
    structure = storage.structure
    saved.require_fields_of(structure, reader.call)
    saved.require_cells_of(storage, counters)
    if not length:
        return PlannedRows(lambda: _copy_rows(storage.tables, [], 0, before), storage.journal, False)
    check_headers(saved.headers(length), counters, reader.call)
    assert saved.structure is not None
    publish = None
    if structure is None:
        structure = saved.structure
        records, publish = storage.lay_out_file(structure)
    else:
        records = storage._records
    columns = dict(zip(saved.structure.object_keys, saved.objects, strict=True))
    refs = storage.add_values([columns[key] for key in structure.object_keys], structure.object_keys, reader.call)
    storage.reserve(0, length, records)
    tables = saved.laid_out(records, structure.leaves, length, capacity)
    for leaf, ref in enumerate(refs, len(structure.leaves)):
        cells_of(tables, records.layout, leaf)[:length] = ref.view(torch.uint8)

    def put() -> None:
        _copy_rows(records.tables, tables, length, before)
        if publish is not None:
            publish()

    return PlannedRows(put, storage.journal, False)


def _copy_rows(tables: list[Tensor], sources: list[Tensor], length: int, before: int) -> None:
    """Overwrite the rows of tables that have any. Their words say so meanwhile: of who is killed here the next one
    drops what was not finished (`storages.repair`).
    """
    if not tables:
        return
    words = words_of(tables)[: max(length, before)]
    words |= SLOT_BUSY
    for table, source in zip(tables, sources, strict=False):
        table[:length, HEADER_BYTES // 2 :].copy_(source[:length, HEADER_BYTES // 2 :])  # the slot word comes last
    words[length:] = 0
    if length:
        words[:length] = words_of(sources)[:length]
