"""What a writer is to the buffer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchrb.storages.base import Choose, Storage


class Writer(ABC):
    """Decides where records go. The storage counts, stamps and notes what is written, so a writer keeps no counters of
    its own, and two buffers on one storage never write over each other's cursor.

    A subclass implements `append`.

    Args:
        track_generations: tell a slot's generation, so that whoever holds an index can know whether the slot still
            holds that record. The numbers are kept by the storage either way, for every buffer on it.

    ``choose``: what a buffer whose records are used up sets, to have new ones written over those; see `Storage.place`.
    A writer that decides by itself does not ask it.
    """

    def __init__(self, *, track_generations: bool = False) -> None:
        self._storage: Storage | None = None
        self._tracks_generations = bool(track_generations)
        self.choose: Choose | None = None

    def register_storage(self, storage: Storage, *, replace: bool = False, choose: Choose | None = None) -> None:
        """Tell the writer where to write. RuntimeError when it writes elsewhere already, unless that is to be replaced:
        two buffers that share a writer would write into one storage. ``choose``: see the class.
        """
        if self._storage not in (None, storage) and not replace:
            raise RuntimeError(
                f"{type(self).__name__}: this writer belongs to a buffer with another storage. Make a new writer."
            )
        self._storage, self.choose = storage, choose

    @property
    def storage(self) -> Storage:
        """The storage; RuntimeError before there is one."""
        if self._storage is None:
            raise RuntimeError(f"{type(self).__name__}: no storage is registered. Hand the writer to a ReplayBuffer.")
        return self._storage

    @abstractmethod
    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        """Write a batch (or ``one`` record). Returns slots and the generation each row got, int64 ``[n]``."""

    def check_writable(self, call: str) -> None:
        """Asked before a buffer writes in any other way than `append`; a writer that allows no ``call`` raises."""
        return None

    @property
    def write_count(self) -> int:
        """Records written through `add` and `extend` so far, by every buffer on the storage."""
        return self.storage.write_count

    def prepared(self, data: Any) -> Any:
        """What is stored of the data that a user hands in, whole records or some fields: here, all of it."""
        return data

    def add(self, data: Any) -> int | Tensor:
        """Write one record; returns its slot, or with several dimensions, as `extend`, those of its cells."""
        slots = self.append(data, one=True)[0]
        return int(slots) if self._num_dims == 1 else as_rows(self.storage, slots)

    def extend(self, data: Any) -> Tensor:
        """Write a batch; returns the slots, int64 ``[n]``; with several dimensions those of cells, ``[n, ndim]``."""
        return as_rows(self.storage, self.append(data)[0])

    @property
    def tracks_generations(self) -> bool:
        """Whether `generations_of` tells generations and samples carry ``"index_generation"``."""
        return self._tracks_generations

    @property
    def _num_dims(self) -> int:
        return 1 if self._storage is None else self._storage.ndim

    def generations_of(self, index: int | Tensor | tuple) -> Tensor:
        """The generation of each slot: how often it was written or emptied since its first write, from 0.

        ``index``: an int or an integer tensor of any shape; the result, int64, has its shape and device. Of a tuple (an
        index for each dimension of the storage) the first counts, as it does in the last dimension, ``[..., ndim]``, of
        a tensor. -1 for a slot never written or out of range, and everywhere when generations are not tracked. A slot
        that was emptied has a generation too, though no record: a handle with it is not live.
        """
        slots = _as_index(index, self._num_dims)
        if not self._tracks_generations:
            return torch.full_like(slots, -1)
        storage = self.storage
        with storage.lock:
            return storage.generations(storage.first_rows(slots.to(storage.device))).to(slots.device)

    # --- saved states

    def state_dict(self) -> dict[str, Any]:
        """What writes go on from, besides the storage's own counters: a snapshot, as that of a sampler
        (`Sampler.state_dict`). Empty where there is nothing else.
        """
        return {}

    def plan_load(self, state: Mapping[str, Any], size: int) -> Callable[[], None]:
        """Validate a saved state for a storage that will hold ``size`` records, and return what puts it in place, which
        does not fail. ValueError for a state that is not this writer's. As `Sampler.plan_load`.
        """
        if not isinstance(state, Mapping) or state:
            told = sorted(map(str, state)) if isinstance(state, Mapping) else type(state).__name__
            raise ValueError(
                f"load: a {type(self).__name__} keeps no state, got {told}. Load it with the writer that saved it."
            )
        return lambda: None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state; see `plan_load` for the errors, after which nothing has changed."""
        with self.storage.lock:
            self.plan_load(state, len(self.storage))()

    def __repr__(self) -> str:
        if self._storage is None:
            return f"{type(self).__name__}()"
        storage = self._storage
        cursor = storage.cursor // storage.num_cells
        return f"{type(self).__name__}(cursor={cursor}, full_storage={len(storage) == storage.max_size})"


def as_rows(storage: Storage, slots: Tensor) -> Tensor:
    """Slots as one tensor: with several dimensions their coordinates, in a last dimension more."""
    return slots if storage.ndim == 1 else torch.stack(storage.coordinates(slots), -1)  # type: ignore[arg-type]


def _as_index(index: int | Tensor | tuple, ndim: int = 1) -> Tensor:
    """Slots of an index as int64 on its own device: the first part of a tuple, or, for a storage of several dimensions,
    of the last dimension of a tensor. TypeError for a mask or floats.
    """
    try:
        slots = torch.as_tensor(index[0] if isinstance(index, tuple) and index else index)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise TypeError(f"generations_of: expected slot numbers, got {index!r}.") from error
    if slots.dtype == torch.bool or slots.is_floating_point() or slots.is_complex():
        raise TypeError(f"generations_of: expected slot numbers, got {slots.dtype}.")
    if 1 < ndim == (slots.shape[-1] if slots.dim() > 1 and not isinstance(index, tuple) else 1):
        slots = slots[..., 0]
    return slots.to(torch.int64)
