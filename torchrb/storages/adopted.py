"""A storage over tensors that exist already."""

from __future__ import annotations

from typing import Any

import torch

from torchrb import ops
from torchrb.storages.cells import CellStructure
from torchrb.storages.memory import writable
from torchrb.storages.structure import Structure, device_of, numbers_of, shown, structure_of
from torchrb.storages.tensor import LazyTensorStorage, overlap


class TensorStorage(LazyTensorStorage):
    """A storage over tensors that exist already: every row counts as a record from the start.

    Args:
        storage: a tensordict, tensorclass, tensor or pytree of tensors, all with the same first dimensions. Its tensors
            are adopted when they are contiguous and on ``device``, and copied otherwise; an adopted tensor shows later
            writes, and is the one thing a storage shares with its user.
        max_size: if given, must equal that dimension; with several, the number of cells.
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
        structure: Structure = (
            structure_of(storage, where, "TensorStorage")
            if ndim == 1
            else CellStructure.learned(storage, ndim, where, "TensorStorage")
        )
        rows = structure.flatten(storage, where, "TensorStorage")
        if max_size not in (None, rows.num):
            raise ValueError(f"TensorStorage: max_size must be the {rows.num} rows of the data, got {max_size}.")
        super().__init__(rows.num, device=where, ndim=ndim, compilable=compilable, layout="columns")
        values = [writable(value) for value in rows.values]
        for i, value in enumerate(values):
            if overlap(value, values[:i]):
                raise ValueError(
                    f"TensorStorage: field {shown(structure.leaves[i].key)!r} shares memory with another, so that "
                    "a write to one would change the other. Clone it."
                )
        self.structure, self._numbers = structure, numbers_of(structure)
        self._adopted = values
        self._records = self._allocate(structure, where)
        self._objects = rows.objects
        with self.lock:
            if self._on_gpu:
                self.lock.owns(*self.tables)
            slots = torch.arange(rows.num, device=self.device)
            ops.write_rows_(self.tables, self.control, self.journal, [], slots, [], True)
            self.known_nonempty = self._on_gpu
