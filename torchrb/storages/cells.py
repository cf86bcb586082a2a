"""Storages of several dimensions: a record is a block of cells, and each cell is a row of the tables.

With ``ndim=3`` a batch is ``[n, a, b]``: ``n`` records, each of ``a * b`` cells. The cells of a record lie next to each
other, cell ``(i, j)`` of slot ``s`` in row ``(s * a + i) * b + j``, and each has a header of its own. So the ops, the
journal and whatever follows it (group indices, priorities, passes) work on cells as they do on records of one
dimension: a draw of cells reads these only, and patches of two cells of one record do not stand in each other's way.

What makes a record of its cells: they are written, renewed and retired together, whichever call does it, so that all of
them have one generation, that of the record. A write to some of them is a write to a part of the record.

So a draw of cells costs what one of rows costs, and their coordinates; a cell has a header of 16 bytes. A batch whose
records lie along another dimension than the first is copied once more on its way in.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from tensordict import is_tensor_collection
from torch import Tensor

from torchrb.persistence import StateReader
from torchrb.storages.base import Storage, _one_row
from torchrb.storages.grid import is_everything, num_dims, resolve_each, settled_each
from torchrb.storages.indexing import Slots
from torchrb.storages.structure import (
    PytreeStructure,
    Rows,
    Structure,
    TensorDictStructure,
    as_tensor,
    shown,
    structure_of,
)


class CellStructure:
    """Records whose first dimensions are cells: ``leaves`` are those of a cell, and ``flatten`` gives rows of cells.

    ``cell``: the structure of a cell. ``cells``: the shape of a record.
    """

    def __init__(self, cell: TensorDictStructure | PytreeStructure, cells: torch.Size) -> None:
        self.cell, self.cells = cell, cells
        self.leaves, self.object_keys, self.build = cell.leaves, cell.object_keys, cell.build
        self._record = cell.redimensioned(0, cells)

    @classmethod
    def learned(cls, batch: Any, ndim: int, device: torch.device, call: str) -> CellStructure:
        """Of a first batch ``[n, *cells, ...]``. ValueError when it has too few dimensions, or leaves that differ."""
        record: Any = structure_of(batch, device, call)
        if is_tensor_collection(batch):
            shapes = {(): batch.batch_size[1:]}
        else:
            shapes = {leaf.key: leaf.shape for leaf in record.leaves}
        first = next(iter(shapes.values()))[: ndim - 1]
        for key, shape in shapes.items():
            if len(shape) < ndim - 1 or shape[: ndim - 1] != first:
                where = f"field {shown(key)!r}" if key else "a batch"
                raise ValueError(
                    f"{call}: with ndim={ndim} the first {ndim} dimensions are those of records and cells, the same in "
                    f"all fields, got {['n', *shape]} in {where}. Add them, or use a storage with a smaller ndim."
                )
        if not first.numel():
            raise ValueError(f"{call}: a record must have cells, got a batch of shape {['n', *first]}.")
        return cls(record.redimensioned(ndim - 1, torch.Size()), first)

    def flatten(self, batch: Any, device: torch.device, call: str) -> Rows:
        rows = self._record.flatten(batch, device, call)
        return flat(rows, torch.Size((rows.num, *self.cells)))

    def flatten_as(self, batch: Any, shape: torch.Size, device: torch.device, call: str) -> Rows:
        """Cells in a batch of another shape, of one dimension or more."""
        return flat(self.cell.redimensioned(0, shape[1:]).flatten(batch, device, call), shape)


def swapped(items: Sequence[Any], dim: int) -> list[Any]:
    """The first of them and that at ``dim``, if there is one, in each other's place."""
    items = list(items)
    if dim < len(items):
        items[0], items[dim] = items[dim], items[0]
    return items


def structure_with(cells: torch.Size, cell: Any, device: torch.device, call: str) -> Structure:
    """The structure of records of such cells (``[]`` where there are none), of a batch of some cells."""
    structure: Any = structure_of(cell, device, call)
    return CellStructure(structure, cells) if cells else structure


def flat(rows: Rows, shape: torch.Size) -> Rows:
    """A batch of several dimensions as one of rows."""
    return Rows(
        shape.numel(),
        [value.reshape(shape.numel(), *value.shape[len(shape) :]) for value in rows.values],
        [flat_list(column, len(shape)) for column in rows.objects],
    )


def flat_list(values: Sequence[Any], depth: int) -> list[Any]:
    """Lists within lists, so many deep, as one."""
    return list(values) if depth <= 1 else [item for value in values for item in flat_list(value, depth - 1)]


def records_first(data: Any, dim: int, storage: Storage) -> Any:
    """A batch whose records lie along a dimension, as one where they lie along the first; a view. Lists are lists of
    records, and stay. ValueError when there is no such dimension.
    """
    lists = storage.ndim == 1 and not isinstance(storage, CellStorage)  # which take tuples and dicts as records
    whole = isinstance(data, Tensor) or is_tensor_collection(data)
    if not dim or not (whole or (isinstance(data, tuple | Mapping) and not lists)):
        return data
    if whole:
        return _swapped(data, dim)
    return pytree.tree_map(lambda leaf: _swapped(as_tensor(leaf, "extend: data"), dim), data)


def _swapped(data: Any, dim: int) -> Any:
    num = data.dim() if isinstance(data, Tensor) else data.batch_dims
    if num <= dim:
        shape = data.shape if isinstance(data, Tensor) else data.batch_size
        raise ValueError(
            f"extend: dim_extend={dim} is the dimension of the records, got a batch of {[*shape]}. One record is for "
            "add()."
        )
    return data.transpose(0, dim)


def saved_cells(reader: StateReader) -> torch.Size:
    """The cells of a record in a saved state. ValueError for what are none."""
    sizes = reader.items("cells")
    if not all(type(size) is int and 0 < size < 2**32 for size in sizes):
        raise reader.refuse("cells", "sizes of at least 1")
    return torch.Size(sizes)


def leading(batch: Any, num: int, call: str) -> torch.Size:
    """The first dimensions of a batch. ValueError when it has fewer."""
    first = batch if is_tensor_collection(batch) else pytree.tree_leaves(batch)[0]
    shape = first.batch_size if is_tensor_collection(first) else first.shape
    if len(shape) < num:
        raise ValueError(f"{call}: {num} dimensions are addressed, got data of {[*shape]}.")
    return torch.Size(shape[:num])


class Handles(NamedTuple):
    """Handles as rows of cells: row and generation of each, int64 ``[n]``; the shape of the values that go there; and
    the shape of what is answered, cells of a record (the last dimension) taken together where ``whole``.
    """

    rows: Tensor
    generations: Tensor
    shape: torch.Size
    asked: torch.Size
    whole: bool

    def answers(self, status: Tensor) -> Tensor:
        """A word for each row as one for each handle."""
        return (status.view(self.shape[0], -1)[:, 0] if self.whole else status).view(self.asked)


class CellStorage(Storage):
    """What a storage does otherwise when it has several dimensions. With one, this is a `Storage`."""

    structure: Structure | None = None

    def __init__(self, max_size: int, device: torch.device | str | int | None, ndim: int) -> None:
        if isinstance(ndim, bool) or not isinstance(ndim, int) or ndim < 1:
            raise ValueError(f"{type(self).__name__}: ndim must be an int from 1 on, got {ndim!r}.")
        super().__init__(max_size, device)
        self.ndim = ndim

    @property
    def max_size(self) -> int:  # type: ignore[override]
        """Capacity in cells. When records are known to have several, it is that of whole ones."""
        return self._asked_size if self.ndim == 1 else self._capacity_for(self.cells)

    @max_size.setter
    def max_size(self, size: int) -> None:
        self._asked_size = size

    @property
    def asked_size(self) -> int:
        return self._asked_size

    def _capacity_for(self, cells: torch.Size) -> int:
        """Rows for as many whole records as take the size asked for."""
        num = cells.numel()
        return -(-self._asked_size // num) * num

    def _room_for(self, reader: StateReader) -> int:
        if self.ndim == 1 or self.structure is not None:
            return self.max_size
        return self._capacity_for(saved_cells(reader))

    @property
    def cells(self) -> torch.Size:  # type: ignore[override]
        """The shape of a record in cells; ``[]`` with one dimension, and before anything was stored."""
        if self.structure is None and self.ndim > 1:
            with self.lock:  # where other processes use the storage, this tells what they have stored
                pass
        return torch.Size() if self.structure is None else self.structure.cells

    @property
    def num_cells(self) -> int:  # type: ignore[override]
        """Cells of a record."""
        return 1 if self.ndim == 1 else self.cells.numel()

    @property
    def write_count(self) -> int:
        """Records written through add and extend so far."""
        return super().write_count // self.num_cells

    # --- rows and coordinates

    def coordinates(self, rows: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Where rows are: with several dimensions a tuple of the slot and the place in each dimension of a record."""
        if self.ndim == 1:
            return rows
        inner = []
        for size in reversed(self.cells or [1] * (self.ndim - 1)):  # before there are any, there are no rows either
            inner.append(rows % size)
            rows = rows // size
        return (rows, *reversed(inner))

    def first_rows(self, slots: Tensor) -> Tensor:
        """The row of each record's first cell; -1 for a slot that there is not."""
        if self.ndim == 1:
            return slots
        num, capacity = self.num_cells, self.max_size
        return torch.where((slots >= 0) & (slots < capacity // num), slots * num, -1)

    def handles(self, index: Tensor, generation: Tensor, call: str) -> Handles:
        """What handles name: records, where an index is a slot, or cells, where it has a last dimension of ``ndim``
        coordinates. ValueError when it fits neither; IndexError, on a CPU, for coordinates outside of a record.
        """
        cells, num = self.cells, self.num_cells
        asked = generation.shape
        if index.shape == asked:
            first = self.first_rows(index.reshape(-1, 1))
            rows = torch.where(first < 0, -1, first + torch.arange(num, device=first.device))
            generations = generation.reshape(-1, 1).expand(-1, num).reshape(-1)
            return Handles(rows.view(-1), generations, torch.Size((rows.shape[0], *cells)), asked, True)
        if index.shape != (*asked, self.ndim):
            raise ValueError(
                f"{call}: with ndim={self.ndim} index and generation must have the same shape, where slots are meant, "
                f"or index a last dimension of {self.ndim} coordinates more, got {[*index.shape]} and {[*asked]}."
            )
        rows = self._rows_at(index.reshape(-1, self.ndim), call)
        return Handles(rows, generation.reshape(-1), rows.shape, asked, False)

    def rows_of(self, index: Any, call: str) -> Any:
        """The row of each cell, int64 ``[n]``: the inverse of `coordinates`. ``index``: a tuple of ``ndim`` tensors, or
        one tensor ``[..., ndim]``. ValueError for another one; IndexError, on a CPU, outside of a record.
        """
        if self.ndim == 1:
            return index
        if isinstance(index, tuple):
            index = torch.stack(torch.broadcast_tensors(*map(torch.as_tensor, index)), -1)
        places = torch.as_tensor(index, device=self.device)
        if (
            not places.dim()
            or places.shape[-1] != self.ndim
            or places.is_floating_point()
            or places.dtype == torch.bool
        ):
            raise ValueError(
                f"{call}: with ndim={self.ndim} an index names cells, by a tuple of {self.ndim} integer tensors or by "
                f"one whose last dimension has them, got {[*places.shape]} of {places.dtype}."
            )
        return self._rows_at(places.reshape(-1, self.ndim).to(torch.int64), call)

    def _rows_at(self, places: Tensor, call: str) -> Tensor:
        """The rows of cells ``[n, ndim]``; -1 for a slot that there is not, and, on a GPU, outside of a record."""
        cells = self.cells
        slots, *inner = places.unbind(-1)
        place, inside = torch.zeros_like(slots), torch.ones_like(slots, dtype=torch.bool)
        for at, size in zip(inner, cells, strict=True):
            inside &= (at >= 0) & (at < size)
            place = place * size + at
        if inside.device.type == "cpu" and not bool(inside.all()):
            wrong = places[~inside][0].tolist()
            raise IndexError(f"{call}: index {wrong} is outside of its record, which has cells {[*cells]}.")
        first = self.first_rows(slots)
        return torch.where(inside & (first >= 0), first + place, -1)

    def place(self, data: Any, choose: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        if self.ndim > 1:
            raise ValueError(
                f"{'add' if one else 'extend'}: records of several dimensions, here ndim={self.ndim}, go into a ring. "
                "Use a TensorDictRoundRobinWriter, or a storage with ndim=1."
            )
        return super().place(data, choose, one=one)

    # --- indices as users write them

    def locate(self, index: Any, call: str, dim: int = 0) -> Slots:
        if self.ndim == 1:
            return super().locate(index, call)
        return self._resolved(settled_each(index, self.ndim, self.device, call), call, dim)

    def _resolved(self, parts: list[Any], call: str, dim: int) -> Slots:
        """Rows for an index of settled parts, over records whose slots are seen as dimension ``dim``."""
        cells = self._known_cells(call)
        steps = [math.prod(cells[i:]) for i in range(self.ndim)]
        dims = swapped([*zip([self.extent // self.num_cells, *cells], steps, strict=True)], dim)
        return resolve_each(parts, dims, self.device, call)

    def _are_whole(self, parts: list[Any], dim: int) -> bool:
        """Whether an index names all the cells of each record that it names."""
        inner = swapped(parts, dim)[1:]
        return len(parts) == self.ndim and all(map(is_everything, inner, self.cells))

    def _known_cells(self, call: str) -> torch.Size:
        if self.structure is None:
            raise RuntimeError(f"{call}: nothing was stored yet. Write with extend or add first.")
        return self.cells

    def set(self, index: Any, data: Any, call: str | None = None, dim: int = 0) -> None:
        if self.ndim == 1:
            super().set(index, data, call)
            return
        call = call or f"{type(self).__name__}[...] ="
        with self.lock:
            self._known_cells(call)
            parts = settled_each(index, self.ndim, self.device, call)
            whole = self._are_whole(parts, dim)
            shape, taken = self._take_cells(data, num_dims(parts), whole, call)
            where = self._resolved(parts, call, dim)
            if where.shape != shape:
                raise ValueError(f"{call}: a batch of {[*where.shape]} is addressed, got one of {[*shape]}.")
            if whole:
                self._put(where.flat, taken, call)
            else:
                self._put_fields(where.flat, taken, call)

    __setitem__ = set

    def _take_cells(self, data: Any, num: int, whole: bool, call: str) -> tuple[torch.Size, Any]:
        """The storage's own copy of a batch of cells with so many dimensions, and its shape: as `_take` gives it where
        they make ``whole`` records, else as `_take_fields` does. Storages that have several dimensions implement it.
        """
        raise NotImplementedError

    def set_fields(self, index: Any, fields: Mapping[Any, Any], call: str) -> None:
        if self.ndim == 1:
            super().set_fields(index, fields, call)
            return
        with self.lock:
            parts = settled_each(index, self.ndim, self.device, call)
            if not num_dims(parts):
                fields = {key: _one_row(value) for key, value in fields.items()}
            taken = self._take_fields(fields, call)
            where = self._resolved(parts, call, 0)
            shape = where.shape or torch.Size([1])
            taken = [field._replace(value=flat_values(field.key, field.value, shape, call)) for field in taken]
            self._put_fields(where.flat, taken, call)


def flat_values(key: Any, value: Any, shape: torch.Size, call: str) -> Any:
    """New values of a field, a tensor or nested lists of that shape, as those of rows."""
    if isinstance(value, Tensor):
        if value.shape[: len(shape)] != shape:
            raise ValueError(
                f"{call}: field {key!r} needs values of shape {[*map(int, shape), '...']}, got {[*value.shape]}."
            )
        return value.reshape(shape.numel(), *value.shape[len(shape) :])
    if not _is_nested(value, shape):
        raise ValueError(f"{call}: field {key!r} needs nested lists of shape {[*shape]}, got {value!r}.")
    return flat_list(value, len(shape))


def _is_nested(values: Any, shape: Sequence[int]) -> bool:
    if not shape:
        return True
    return isinstance(values, list) and len(values) == shape[0] and all(_is_nested(item, shape[1:]) for item in values)
