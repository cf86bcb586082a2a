"""Storages of tensors: preallocated rows on one device, written and read by ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from torchrb import ops
from torchrb.ops.schemas import ORDERED_DTYPES, STALE, UPDATED
from torchrb.storages.base import Column, Storage
from torchrb.storages.copies import own_copy
from torchrb.storages.keys import DIGEST_WORDS, value_words
from torchrb.storages.memory import writable, zeros
from torchrb.storages.records import RecordTable, columns, packed
from torchrb.storages.streams import DeviceLock
from torchrb.storages.structure import (
    Rows,
    Structure,
    as_batch,
    as_one,
    as_path,
    check_value,
    device_of,
    numbers_of,
    shown,
    structure_of,
)


class LazyTensorStorage(Storage):
    """Preallocated tensors, allocated when the first batch tells what a record is.

    Args:
        max_size: capacity in records.
        device: where the records live; ``"auto"``: where the first batch lies.
        ndim: only 1.
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

    @property
    def tables(self) -> list[Tensor]:
        return self._records.tables

    # --- writing

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        with self.lock:
            rows = self._take_apart(data, one, "add" if one else "extend")
            if rows is None:
                return self._no_slots(), self._no_slots()
            records = self._records
            slots, generations = ops.append_rows_(
                records.tables, self.control, self.journal, records.layout, rows.values, rows.num
            )
            if self._on_gpu:
                self.known_nonempty |= rows.num > 0
            self._keep_objects(range(len(self._objects)), slots, rows.objects)
            return slots, generations

    def write(self, slots: Tensor, data: Any, *, one: bool = False, call: str = "write") -> Tensor:
        with self.lock:
            rows = self._take_apart(data, one, call, slots.shape[0])
            if rows is None or not rows.num:
                return self._no_slots()
            (slots,) = self._apart([slots])
            records = self._records
            generations = ops.write_rows_(
                records.tables, self.control, self.journal, records.layout, slots, rows.values, True
            )
            self.known_nonempty = self._on_gpu
            self._keep_objects(range(len(self._objects)), slots, rows.objects)
            return generations

    def write_fields(self, slots: Tensor, fields: Mapping[Any, Any], call: str = "write_fields") -> None:
        with self.lock:
            leaves, values, places, objects = self.plan_fields(fields, slots.shape[0], call)
            if self.structure is None:
                return
            (slots,) = self._apart([slots])
            records = self._records
            ops.write_rows_(records.tables, self.control, self.journal, records.part(leaves), slots, values, False)
            self._keep_objects(places, slots, objects)

    def clear(self, reset_writes: bool = True) -> None:
        with self.lock:
            super().clear(reset_writes)
            retired, self._objects = self._objects, [[None] * self.max_size for _ in self._objects]
            del retired  # an object's own code (`__del__`) may write here

    def _take_apart(self, data: Any, one: bool, call: str, expected: int | None = None) -> Rows | None:
        """Validate, for ``expected`` rows if that is known; on the first batch also learn the structure and allocate.
        None when there are no rows.
        """
        batch = as_one(data, call) if one else as_batch(data, call)
        if batch is None:
            if expected:
                raise ValueError(f"{call}: {expected} records are addressed, got data for none.")
            return None
        device = self.device if self._settled else device_of(batch)
        structure = self.structure or structure_of(batch, device, call)
        rows = structure.flatten(batch, device, call)
        if self.structure is not None and self.structure is not structure:  # an object's own code wrote a first batch
            rows = self.structure.flatten(batch, self.device, call)
        if self._adopted:
            rows = rows._replace(values=self._apart(rows.values))
        if expected not in (None, rows.num):
            raise ValueError(f"{call}: {expected} records are addressed, got data for {rows.num}.")
        if self.structure is not None:
            return rows
        records = self._allocate(structure, device)
        if not self._settled:
            self._settle_on(device)
        if self._on_gpu:
            self.lock.owns(*records.tables)
        self._records = records
        self._objects = [[None] * self.max_size for _ in structure.object_keys]
        self.structure, self._numbers = structure, numbers_of(structure)
        return rows

    def _settle_on(self, device: torch.device) -> None:
        """Take the device of the first batch, once."""
        if device != self.device:
            self.lock.settle(device)
            self._settle(device)
        self._settled = True

    def _allocate(self, structure: Structure, device: torch.device) -> RecordTable:
        if self._layout == "packed" or not structure.leaves:
            return packed(structure.leaves, self.max_size, device)
        tensors = [zeros(self.max_size, *leaf.shape, dtype=leaf.dtype, device=device) for leaf in structure.leaves]
        return columns(structure.leaves, tensors)

    def _keep_objects(self, places: Any, slots: Tensor, objects: list[list[Any]]) -> None:
        replaced = []  # let go of when all are in place: an object's own code (`__del__`) may write here
        for place, values in zip(places, objects, strict=True):
            column = self._objects[place]
            for slot, value in zip(slots.tolist(), values, strict=True):
                if slot >= 0:  # a GPU masks what a CPU refuses
                    replaced.append(column[slot])
                    column[slot] = value

    def _apart(self, tensors: list[Tensor]) -> list[Tensor]:
        """Tensors that an op can read while it writes rows: copies of those that lie in memory of the user's own."""
        if not self._adopted:
            return tensors
        return [tensor.clone() if _overlap(tensor, self._adopted) else tensor for tensor in tensors]

    def _no_slots(self) -> Tensor:
        return torch.empty(0, dtype=torch.int64, device=self.device)

    # --- fields

    def find(self, key: Any, call: str) -> int:
        """The number of a tensor field, or ``~number`` of a non-tensor one. KeyError when there is none."""
        number = self._numbers.get(as_path(key))
        if number is None:
            stored = [shown(path) for path in self._numbers]
            raise KeyError(f"{call}: no field {key!r} is stored; stored are {stored}.")
        return number

    def plan_fields(
        self, fields: Mapping[Any, Any], num: int, call: str
    ) -> tuple[list[int], list[Tensor], list[int], list[list[Any]]]:
        """Validate new values of some fields for ``num`` records; writes nothing.

        Returns leaf numbers and their values, non-tensor field numbers and their values. KeyError for a field that is
        not stored, ValueError for a shape or dtype.
        """
        leaves, values, places, objects = [], [], [], []
        for key, value in fields.items():
            number = self.find(key, call)
            if number >= 0:
                leaves.append(number)
                values.append(check_value(self.structure.leaves[number], value, num, self.device, call))  # type: ignore[union-attr]
                continue
            items = value.tolist() if hasattr(value, "tolist") else value
            if not isinstance(items, list) or len(items) != num:
                raise ValueError(f"{call}: field {key!r} needs a list of {num} values, got {items!r}.")
            places.append(~number)
            objects.append(own_copy(items))
        return leaves, self._apart(values), places, objects

    def update_if(
        self,
        slots: Tensor,
        generations: Tensor,
        fields: tuple[list[int], list[Tensor], list[int], list[list[Any]]],
        version_leaf: int | None,
        version: Tensor | None,
        require_newer: bool,
    ) -> Tensor:
        """One conditional update, planned by `plan_fields`; see the op `update_rows_if_`. Returns status, uint8 [n]."""
        leaves, values, places, objects = fields
        with self.lock:
            if self.structure is None:
                return torch.full_like(slots, STALE, dtype=torch.uint8)
            records = self._records
            slots, generations = self._apart([slots, generations])
            version = None if version is None else self._apart([version])[0]
            status = ops.update_rows_if_(
                records.tables,
                self.control,
                self.journal,
                records.part(leaves),
                slots,
                generations,
                values,
                [] if version_leaf is None else records.leaf(version_leaf),
                version,
                require_newer,
            )
            if places:
                done = torch.nonzero(status == UPDATED).view(-1)
                kept = [[column[i] for i in done.tolist()] for column in objects]
                self._keep_objects(places, slots[done], kept)
            return status

    # --- reading

    def read(self, slots: Tensor, shape: torch.Size | None = None) -> tuple[Any, Tensor]:
        with self.lock:
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
        column = self._objects[~self.find(key, "PromptGroupSampler: group_key")]
        words = [value_words(column[slot], key) for slot in slots.tolist()]
        return torch.tensor(words, dtype=torch.int64, device=self.device).view(slots.shape[0], DIGEST_WORDS)

    def reward_column(self, key: Any) -> Column:
        number = self.find(key, "PromptGroupSampler: reward_key")
        if number < 0:
            raise TypeError(f"PromptGroupSampler: reward_key {key!r} names a non-tensor field; a reward is numeric.")
        return Column(self._records.tables, self._records.leaf(number), self._records.templates[number])


def _overlap(tensor: Tensor, others: list[Tensor]) -> bool:
    """Whether a tensor lies, in part, in the memory of others; all of them contiguous."""
    begin, size = tensor.data_ptr(), tensor.nbytes
    return any(begin < other.data_ptr() + other.nbytes and other.data_ptr() < begin + size for other in others if size)


class TensorStorage(LazyTensorStorage):
    """A storage over tensors that exist already: every row counts as a record from the start.

    Args:
        storage: a tensordict, tensorclass, tensor or pytree of tensors, all with the same first dimension. Its tensors
            are adopted when they are contiguous and on ``device``, and copied otherwise; an adopted tensor shows later
            writes, and is the one thing a storage shares with its user.
        max_size: if given, must equal that dimension.
        device, ndim, compilable: as in `LazyTensorStorage`; ``device="auto"``: where the first of the tensors lies.

    >>> import torch
    >>> from torchrb import ReplayBuffer, TensorStorage
    >>> rb = ReplayBuffer(storage=TensorStorage({"x": torch.arange(3)}))
    >>> len(rb), rb.extend({"x": torch.tensor([7])}), rb[:]["x"]
    (3, tensor([0]), tensor([7, 1, 2]))
    """

    def __init__(
        self,
        storage: Any,
        max_size: int | None = None,
        *,
        device: torch.device | str = "cpu",
        ndim: int = 1,
        compilable: bool = False,
    ) -> None:
        where = device_of(storage) if device == "auto" else torch.empty(0, device=device).device
        structure = structure_of(storage, where, "TensorStorage")
        rows = structure.flatten(storage, where, "TensorStorage")
        if max_size not in (None, rows.num):
            raise ValueError(f"TensorStorage: max_size must be the {rows.num} rows of the data, got {max_size}.")
        super().__init__(rows.num, device=where, ndim=ndim, compilable=compilable, layout="columns")
        values = [writable(value) for value in rows.values]
        for i, value in enumerate(values):
            if _overlap(value, values[:i]):
                raise ValueError(
                    f"TensorStorage: field {shown(structure.leaves[i].key)!r} shares memory with another, so that "
                    "a write to one would change the other. Clone it."
                )
        self.structure, self._numbers = structure, numbers_of(structure)
        self._records = columns(structure.leaves, values) if values else self._allocate(structure, where)
        self._adopted = values
        self._objects = rows.objects
        with self.lock:
            if self._on_gpu:
                self.lock.owns(*self.tables)
            slots = torch.arange(rows.num, device=self.device)
            ops.write_rows_(self.tables, self.control, self.journal, [], slots, [], True)
            self.known_nonempty = self._on_gpu
