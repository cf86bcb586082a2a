"""Storages of tensors: preallocated rows on one device, written and read by ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from torchrb import ops
from torchrb.ops.schemas import HEADER_BYTES, ORDERED_DTYPES, STALE, UPDATED
from torchrb.persistence import StateReader
from torchrb.storages import tensor_state
from torchrb.storages.base import Column, Placement
from torchrb.storages.cells import CellStorage, CellStructure, flat_values, leading
from torchrb.storages.copies import own_copy
from torchrb.storages.keys import DIGEST_WORDS, value_words
from torchrb.storages.memory import zeros
from torchrb.storages.records import RecordTable, columns, packed
from torchrb.storages.saving import Counters, PlannedRows
from torchrb.storages.sharing import Sharing, require_shareable, share
from torchrb.storages.staging import Finish, placing
from torchrb.storages.streams import DeviceLock
from torchrb.storages.structure import (
    Rows,
    Structure,
    as_batch,
    as_one,
    as_path,
    as_tensor,
    check_value,
    device_of,
    numbers_of,
    parts_of,
    shown,
    structure_of,
)


class Fields(NamedTuple):
    """New values of some fields, validated: leaf numbers and values, non-tensor field numbers and values."""

    leaves: list[int]
    values: list[Tensor]
    places: list[int]
    objects: list[list[Any]]


class _Field(NamedTuple):
    """New values of one field, the storage's own: a tensor for a field's number, a list for its complement."""

    key: Any
    number: int
    value: Any


class _Taken(NamedTuple):
    """A batch, the structure it has, its rows (those ``kept``, if not all), and the device they are on."""

    batch: Any
    structure: Structure
    rows: Rows
    device: torch.device
    kept: Tensor | None = None


class LazyTensorStorage(CellStorage):
    """Preallocated tensors, allocated when the first batch tells what a record is.

    Args:
        max_size: capacity in records; with several dimensions in cells, rounded up to whole records.
        device: where the records live; ``"auto"``: where the first batch lies.
        ndim: dimensions of a batch in records. With ``ndim=2`` a batch ``[n, a, ...]`` is ``n`` records of ``a`` cells
            each: the ring, handles and `write_count` are about records, ``len`` and draws about cells, and an index is
            the tuple of the slot and the place within the record; see `storages.cells`. All batches must have records
            of the same cells as the first.
        compilable: accepted for compatibility; every op can be compiled.
        layout: ``"packed"`` (default) keeps a record in one piece of memory, ``"columns"`` each field in a tensor of
            its own. Results are the same.

    Data: tensordicts (nested, any leaf shape and dtype, strings and None as non-tensor fields), tensorclasses, tensors,
    and pytrees of tensors. Later batches must have the same fields, dtypes and row shapes (KeyError, ValueError); data
    on another device is moved.

    On a GPU, writing, drawing and conditional updates of what lies there wait for nothing. Data from the host goes
    through pinned memory, and the caller's own is free when the call returns. Calls on several streams take effect in
    the order in which they were made: each waits, on the device, for the kernels of the one before; see
    `storages.streams`. Fields that are not tensors stay on the host, which waits for the slots of their records.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, ReplayBuffer
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(3))
    >>> rb.extend({"x": torch.arange(4)})
    tensor([0, 1, 2, 0])
    >>> rb[:]
    {'x': tensor([3, 1, 2])}
    """

    def __init__(
        self,
        max_size: int,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
        layout: Literal["packed", "columns"] = "packed",
    ) -> None:
        self._settled = device != "auto"
        super().__init__(max_size, device if self._settled else "cpu", ndim)
        if not self._settled:
            self.lock = DeviceLock()
        if layout not in ("packed", "columns"):
            raise ValueError(f"{type(self).__name__}: layout must be 'packed' or 'columns', got {layout!r}.")
        self._layout = layout
        self.structure: Structure | None = None
        self._records = RecordTable([], [], [])
        self._objects: list[list[Any]] = []
        self._adopted: list[Tensor] = []
        self._numbers: dict[tuple, int] = {}
        self._sharing: Sharing | None = None

    @classmethod
    def _received(cls, max_size: int, layout: Any, ndim: int) -> LazyTensorStorage:
        """A storage that another process made, before it knows of anything that is shared."""
        storage = cls.__new__(cls)
        LazyTensorStorage.__init__(storage, max_size, layout=layout, ndim=ndim)
        return storage

    def share(self) -> None:
        with self.lock:
            share(self)
            self._settled = True  # other processes look at memory of the host

    @property
    def shared(self) -> bool:
        return self._sharing is not None

    @property
    def tables(self) -> list[Tensor]:
        return self._records.tables

    def moment(self) -> tuple[int, ...]:
        # Tensors that were adopted their user may write too.
        return *super().moment(), *(0 if leaf.is_inference() else leaf._version for leaf in self._adopted)

    # --- writing

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        call = "add" if one else "extend"
        with self.lock:
            taken = self._take(data, one, call)
            if taken is None:
                return self._no_slots(), self._no_slots()
            if self.structure is None:
                if not taken.rows.num:  # teaches nothing: an empty list could be of anything
                    return self._no_slots(), self._no_slots()
                first = self._begin(
                    taken,
                    lambda records, control, rows: ops.append_rows_(
                        records.tables, control, self.journal, records.layout, rows.values, rows.num
                    ),
                )
                if first is not None:
                    return first
                taken = self._fit(taken.batch, call)
            rows, records = taken.rows, self._records
            if self._on_gpu:
                self.known_nonempty |= rows.num > 0
            args = (records.tables, self.control, self.journal, records.layout, rows.values, rows.num)
            if not self._objects:
                return ops.append_rows_(*args)
            with self._staging as staging:
                staging.note(self._placing(self._next_slots(rows.num), rows.objects))
                slots, generations = ops.append_rows_(*args)
                staging.written(self._placing(slots.tolist(), rows.objects))
            return slots, generations

    def _put(self, slots: Tensor, taken: _Taken | None, call: str, placement: Placement | None = None) -> Tensor:
        given = 0 if taken is None else taken.rows.num
        if given != slots.shape[0]:
            raise ValueError(f"{call}: {slots.shape[0]} records are addressed, got data for {given or 'none'}.")
        if taken is None or not given:
            return self._no_slots()
        if self.structure is None:

            def write(records: RecordTable, control: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
                args = (records.tables, control, self.journal, records.layout, slots, rows.values, True)
                generations = ops.write_rows_(*args)
                if placement is not None:
                    placement.advance(control)
                return slots, generations

            first = self._begin(taken, write)
            if first is not None:
                return first[1]
            if self.structure is not taken.structure:
                kept, taken = taken.kept, self._fit(taken.batch, call)
                taken = taken if kept is None else self._rows_of(taken, kept)
        (slots,) = self._apart([slots])
        self.known_nonempty = self._on_gpu
        rows, records = taken.rows, self._records
        args = (records.tables, self.control, self.journal, records.layout, slots, rows.values, True)
        if not self._objects and placement is None:
            return ops.write_rows_(*args)
        place = self._placing(slots.tolist(), rows.objects) if self._objects else None

        def finish() -> Any:
            if placement is not None:
                placement.advance(self.control)
            return place and place()

        with self._staging as staging:
            staging.note(finish)
            generations = ops.write_rows_(*args)
            staging.written(finish)
        return generations

    def _num_rows(self, taken: _Taken | None) -> int:
        return 0 if taken is None else taken.rows.num

    def _rows_of(self, taken: _Taken, rows: Tensor) -> _Taken:
        places, (_, values, objects) = rows.tolist(), taken.rows
        some = Rows(
            len(places),
            [value[rows.to(value.device)] for value in values],
            [[column[place] for place in places] for column in objects],
        )
        return taken._replace(rows=some, kept=rows)

    def _values_of(self, taken: _Taken, key: Any, call: str) -> Tensor:
        number = self._number(numbers_of(taken.structure), key, call)
        return taken.rows.values[self._of_tensors(number, key, call)]

    def values_at(self, key: Any, slots: Tensor, call: str) -> Tensor:
        number, records = self._of_tensors(self.find(key, call), key, call), self._records
        return ops.read_rows(records.tables, records.leaf(number), [records.templates[number]], slots)[0][0]

    @staticmethod
    def _of_tensors(number: int, key: Any, call: str) -> int:
        """The number of a field, if it is one of tensors."""
        if number < 0:
            raise TypeError(f"{call}: field {key!r} holds no tensors. Name a field of numbers.")
        return number

    def _take_fields(self, fields: Mapping[Any, Any], call: str) -> list[_Field]:
        taken = []
        for key, value in fields.items():
            parts = parts_of(key, value, self._numbers)
            if parts:
                taken += self._take_fields(parts, call)
                continue
            number = self.find(key, call)
            if number >= 0:
                taken.append(_Field(key, number, as_tensor(value, f"{call}: field {key!r}")))
                continue
            items = value.tolist() if hasattr(value, "tolist") else value
            if not isinstance(items, list):
                raise ValueError(f"{call}: field {key!r} needs a list of values, got {items!r}.")
            taken.append(_Field(key, number, own_copy(list(items))))
        return taken

    def _put_fields(self, slots: Tensor, taken: list[_Field], call: str) -> None:
        fields = self._fit_fields(taken, slots.shape[0], call)
        if self.structure is None:
            return
        (slots,) = self._apart([slots])
        records = self._records
        part = records.part(fields.leaves)
        args = (records.tables, self.control, self.journal, part, slots, fields.values, False)
        if not fields.places:
            ops.write_rows_(*args)
            return
        finish = self._placing(slots.tolist(), fields.objects, fields.places)
        with self._staging as staging:
            staging.note(finish)
            ops.write_rows_(*args)
            staging.written(finish)

    def clear(self, reset_writes: bool = True) -> None:
        with self.lock:
            if not self._objects:
                self._staging.settle()  # a first batch that was cut off may have some
            if not self._objects:
                super().clear(reset_writes)
                return

            def forget() -> list[list[Any]]:
                retired, self._objects = self._objects, [[None] * self.max_size for _ in self._objects]
                return retired

            with self._staging as staging:
                staging.note(forget)
                super().clear(reset_writes)
                staging.written(forget)

    # --- what is written

    def _take(self, data: Any, one: bool, call: str) -> _Taken | None:
        batch = as_one(data, call) if one else as_batch(data, call)
        return None if batch is None else self._fit(batch, call)

    def _learned(self, batch: Any, device: torch.device, call: str) -> Structure:
        """What records are, of a first batch."""
        if self.ndim > 1:
            return CellStructure.learned(batch, self.ndim, device, call)
        return structure_of(batch, device, call)

    def _take_cells(self, data: Any, num: int, whole: bool, call: str) -> tuple[torch.Size, Any]:
        batch = as_batch(data, call) if num else as_one(data, call)
        shape, structure = leading(batch, num or 1, call), self.structure
        assert isinstance(structure, CellStructure)
        rows = structure.flatten_as(batch, shape, self.device, call)
        shape = shape if num else torch.Size()
        if whole:
            num, rest = divmod(rows.num, self.num_cells)
            if rest:
                raise ValueError(
                    f"{call}: records of cells {[*structure.cells]} are addressed, got data of {[*shape]}."
                )
            records = structure.build(rows.values, rows.objects, torch.Size((num, *structure.cells)))
            return shape, self._fit(records, call)
        values = zip(structure.leaves, rows.values, strict=True)
        fields = [_Field(shown(leaf.key), number, value) for number, (leaf, value) in enumerate(values)]
        kept = zip(structure.object_keys, rows.objects, strict=True)
        return shape, fields + [_Field(shown(key), ~number, value) for number, (key, value) in enumerate(kept)]

    def _fit(self, batch: Any, call: str) -> _Taken:
        """Hold a batch against the structure, or learn one from the first batch; None of it is visible yet."""
        if self._staging.noted:
            self._staging.settle()
        device = self.device if self._settled else device_of(batch)
        structure = self.structure or self._learned(batch, device, call)
        rows = structure.flatten(batch, device, call)
        if self.structure is not None and self.structure is not structure:  # an object's own code wrote a first batch
            structure = self.structure
            rows = structure.flatten(batch, self.device, call)
        if self._adopted:
            rows = rows._replace(values=self._apart(rows.values))
        return _Taken(batch, structure, rows, device)

    def _begin(
        self, taken: _Taken, write: Callable[[RecordTable, Tensor, Rows], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor] | None:
        """Write the first rows: into memory that nobody sees yet, with counters of its own, all put in place at once.
        None, with nothing written, where an object's own code wrote first, or where other processes look on: they are
        told what a record is, and then it is a write like any other.
        """
        structure, rows = taken.structure, taken.rows
        if self._sharing is not None:
            self._records, self._numbers = self._allocate(structure, taken.device), numbers_of(structure)
            self.structure = structure
            return None
        records, numbers = self._allocate(structure, taken.device), numbers_of(structure)
        self._settle_on(taken.device)
        if self._on_gpu:
            self.lock.owns(*records.tables)
            self.known_nonempty = True
        control = self.control.clone()
        columns = [[None] * self._capacity_for(structure.cells) for _ in structure.object_keys]
        written = write(records, control, rows)
        if columns:
            placing(columns, written[0].tolist(), rows.objects)()

        def finish() -> None:
            self._records, self._objects, self._numbers = records, columns, numbers
            self.control.copy_(control)
            self.structure = structure

        with self._staging as staging:
            if self.structure is not None:
                return None
            staging.written(finish)
        return written

    def _settle_on(self, device: torch.device) -> None:
        """Take the device of the first batch, once."""
        if not self._settled and device != self.device:
            self.lock.settle(device)
            self._settle(device)
        self._settled = True

    def _allocate(self, structure: Structure, device: torch.device) -> RecordTable:
        return self._lay_out(structure, device) if self._sharing is None else self._sharing.define(self, structure)

    def _lay_out(self, structure: Structure, device: torch.device, zeros: Callable[..., Tensor] = zeros) -> RecordTable:
        """Tables for records of a structure, in memory from ``zeros``; the user's own tensors where they are."""
        leaves, capacity = structure.leaves, self._capacity_for(structure.cells)
        if self._layout == "packed" or not leaves:
            return packed(leaves, capacity, device, zeros)
        tensors = self._adopted or [zeros(capacity, *leaf.shape, dtype=leaf.dtype, device=device) for leaf in leaves]
        return columns(leaves, tensors, zeros(capacity, HEADER_BYTES, dtype=torch.uint8, device=device))

    def _placing(self, slots: list[int], objects: list[list[Any]], places: list[int] | None = None) -> Finish:
        """What puts non-tensor fields (all, or those at some places) beside their rows."""
        columns = self._objects if places is None else [self._objects[place] for place in places]
        return placing(columns, slots, objects)

    def _next_slots(self, num: int) -> list[int]:
        """Where an append of so many rows will go."""
        first = self.cursor
        return [(first + i) % self.max_size for i in range(num)]

    def _apart(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors that an op can read while it writes rows: copies of those that lie in memory of the user's own."""
        if not self._adopted:
            return tensors
        return [tensor.clone() if overlap(tensor, self._adopted) else tensor for tensor in tensors]

    # --- fields

    def find(self, key: Any, call: str) -> int:
        """The number of a tensor field, or ``~number`` of a non-tensor one. KeyError when there is none."""
        if self._staging.noted:
            self._staging.settle()
        return self._number(self._numbers, key, call)

    @staticmethod
    def _number(numbers: dict[tuple, int], key: Any, call: str) -> int:
        number = numbers.get(as_path(key))
        if number is None:
            stored = [shown(path) for path in numbers]
            raise KeyError(f"{call}: no field {key!r} is stored; stored are {stored}.")
        return number

    def plan_fields(self, fields: Mapping[Any, Any], num: int, call: str, shape: torch.Size | None = None) -> Fields:
        """Validate new values of some fields for ``num`` rows; writes nothing. ``shape``: that in which values come,
        where it is not ``[num]``. KeyError for a field that is not stored, ValueError for a shape or dtype.
        """
        taken = self._take_fields(fields, call)
        if shape is not None:
            taken = [field._replace(value=flat_values(field.key, field.value, shape, call)) for field in taken]
        return self._fit_fields(taken, num, call)

    def _fit_fields(self, taken: list[_Field], num: int, call: str) -> Fields:
        fields = Fields([], [], [], [])
        for key, number, value in taken:
            if number >= 0:
                fields.leaves.append(number)
                fields.values.append(check_value(self.structure.leaves[number], value, num, self.device, call))  # type: ignore[union-attr]
                continue
            if len(value) != num:
                raise ValueError(f"{call}: field {key!r} needs a list of {num} values, got {value!r}.")
            fields.places.append(~number)
            fields.objects.append(value)
        return fields._replace(values=self._apart(fields.values)) if self._adopted else fields

    def update_if(
        self,
        slots: Tensor,
        generations: Tensor,
        fields: Fields,
        version_leaf: int | None,
        version: Tensor | None,
        require_newer: bool,
    ) -> Tensor:
        """One conditional update, planned by `plan_fields`; see the op `update_rows_if_`. Returns status, uint8 [n]."""
        with self.lock:
            if self._staging.noted:
                self._staging.settle()
            if self.structure is None:
                return torch.full_like(slots, STALE, dtype=torch.uint8)
            records = self._records
            slots, generations = self._apart([slots, generations])
            version = None if version is None else self._apart([version])[0]

            def placing_of(rows: list[int]) -> Finish:
                at = [slots_of[row] for row in rows]
                return self._placing(at, [[column[row] for row in rows] for column in fields.objects], fields.places)

            part = records.part(fields.leaves)
            version_part = [] if version_leaf is None else records.leaf(version_leaf)
            args = (
                records.tables, self.control, self.journal, part, slots, generations, fields.values,
                version_part, version, require_newer,
            )  # fmt: skip
            if not fields.places:
                return ops.update_rows_if_(*args)
            slots_of, start = slots.tolist(), self.journal_position
            with self._staging as staging:
                staging.note(
                    lambda: placing_of(self._updated_since(start, slots, generations, version_leaf, version))()
                )
                status = ops.update_rows_if_(*args)
                staging.written(placing_of(torch.nonzero(status == UPDATED).view(-1).tolist()))
            return status

    def _updated_since(
        self, start: int, slots: Tensor, generations: Tensor, version_leaf: int | None, version: Tensor | None
    ) -> list[int]:
        """Which rows of a conditional update were written, when its answer was lost: of those that address a slot noted
        since, by the generation that it still has and the version that it has now, the last.
        """
        size, head = self.journal.shape[0], self.journal_position
        noted = set(self.journal[torch.arange(start, head, device=self.device) % size].tolist())
        chosen = [] if version_leaf is None else [version_leaf]
        records = self._records
        stored, live = ops.read_rows(
            records.tables, records.part(chosen), [records.templates[leaf] for leaf in chosen], slots
        )
        matches = live == generations
        if version is not None:
            matches &= stored[0].view(-1) == version
        last = {slot: row for row, slot in enumerate(slots.tolist()) if slot in noted and matches[row]}
        return sorted(last.values())

    # --- reading

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        with self.lock:
            if self._staging.noted:
                self._staging.settle()
            if self.structure is None:
                raise RuntimeError(f"{type(self).__name__}: nothing was stored yet.")
            records = self._records
            values, generations = ops.read_rows(records.tables, records.layout, records.templates, slots)
            objects = []
            if self._objects:
                places = slots.tolist()
                kept = [[column[place] if place >= 0 else None for place in places] for column in self._objects]
                objects = [own_copy(column) for column in kept]  # last: an object's own code may write here
        return self.structure.build(values, objects, slots.shape if shape is None else shape), generations

    @property
    def field_paths(self) -> list[tuple]:
        with self.lock:
            if self._staging.noted:
                self._staging.settle()
            return [path for path in self._numbers if path]  # a plain tensor is no field

    def read_fields(self, paths: list[tuple], slots: Tensor) -> list[Any]:
        with self.lock:
            if self._staging.noted:
                self._staging.settle()
            numbers, records = [self._numbers[path] for path in paths], self._records
            leaves = [number for number in numbers if number >= 0]
            templates = [records.templates[leaf] for leaf in leaves]
            values = iter(ops.read_rows(records.tables, records.part(leaves), templates, slots)[0])
            objects = iter(self.stored_values(slots, [~number for number in numbers if number < 0]))
            return [next(values if number >= 0 else objects) for number in numbers]

    def stored_values(self, slots: Tensor, places: list[int]) -> list[list[Any]]:
        """The values of some non-tensor fields in some slots."""
        rows = slots.tolist() if places else []
        return [own_copy([self._objects[place][row] for row in rows]) for place in places]

    def key_column(self, key: Any) -> Column | None:
        number = self.find(key, "PromptGroupSampler: group_key")
        if number < 0:
            return None
        template = self._records.templates[number]
        if template.dtype not in ORDERED_DTYPES and not template.is_complex() and template.dtype != torch.uint64:
            raise TypeError(
                f"PromptGroupSampler: group_key {key!r} must hold integers, bools, floats of 16 bits and more, strings "
                f"or None, got {template.dtype}. Group by an integer id."
            )
        if template.is_complex():
            template = torch.view_as_real(template)
        elif template.dtype == torch.uint64:
            template = template.view(torch.int64)
        return Column(self._records.tables, self._records.leaf(number), template)

    def key_words(self, key: Any, slots: Tensor) -> Tensor:
        number = self.find(key, "PromptGroupSampler: group_key")
        column = self._objects[~number]
        words = [value_words(column[slot], key) for slot in slots.tolist()]
        return torch.tensor(words, dtype=torch.int64, device=self.device).view(slots.shape[0], DIGEST_WORDS)

    def reward_column(self, key: Any) -> Column:
        number = self.find(key, "PromptGroupSampler: reward_key")
        if number < 0:
            raise TypeError(f"PromptGroupSampler: reward_key {key!r} names a non-tensor field; a reward is numeric.")
        return Column(self._records.tables, self._records.leaf(number), self._records.templates[number])

    # --- saved states; see `storages.saving` and `storages.tensor_state`

    kind = "tensors"

    @property
    def grows_on_disk(self) -> bool:  # type: ignore[override]
        """Not where the user may write past the journal, into tensors that were adopted."""
        return not self._adopted

    @property
    def _keeps_tables(self) -> bool:
        """Whether somebody else knows the tables by their addresses: their user, other processes, CUDA graphs."""
        return bool(self._adopted) or self.shared or self._on_gpu

    def _require_fit(self, structure: Structure) -> None:
        """TypeError for records that cannot be where this storage keeps its own."""
        if self.shared:
            require_shareable(structure, type(self).__name__)

    def _told(self, call: str) -> dict[str, Any]:
        return tensor_state.told(self)

    def _segment(self, slots: Tensor, call: str) -> dict[str, Any]:
        return tensor_state.segment(self, slots, call)

    def _plan_rows(self, reader: StateReader, counters: Counters, placed: Any) -> PlannedRows:
        return tensor_state.plan(self, reader, counters, placed)

    def _data_of(self, reader: StateReader, length: int) -> tuple[Any, Tensor]:
        return tensor_state.data_of(reader, length)

    def _state_of(self, state: dict[str, Any], data: Any, headers: Any, call: str) -> dict[str, Any]:
        return tensor_state.state_of(state, data, headers, call)

    def _placed(self) -> Any:
        return tensor_state.Placed(self.max_size)


def overlap(tensor: Tensor, others: list[Tensor]) -> bool:
    """Whether a tensor lies, in part, in the memory of others; all of them contiguous."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    return any(begin < other.data_ptr() + other.nbytes and other.data_ptr() < begin + size for other in others if size)
