"""The ring: new records over the oldest ones."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDictBase
from torch import Tensor

from torchrb.writers.base import Writer, _as_index

INDEX_KEYS = ("index", "index_generation")


class RoundRobinWriter(Writer):
    """Writes at a cursor that goes round the storage.

    Args:
        compilable: accepted for compatibility.
        track_generations: tell a slot's generation, so that whoever holds an index can know whether the slot still
            holds that record: `generations_of`, ``"index_generation"`` in samples, `ReplayBuffer.update_if_present`.
            The numbers are kept by the storage either way, for every buffer on it.

    >>> import torch
    >>> from torchrb import LazyTensorStorage, ReplayBuffer, RoundRobinWriter
    >>> rb = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True))
    >>> index = rb.extend(torch.arange(4))
    >>> rb.writer.generations_of(index)
    tensor([0, 0, 0, 0])
    >>> _ = rb.extend(torch.arange(2))  # over slots 0 and 1
    >>> rb.writer.generations_of(index)
    tensor([1, 1, 0, 0])
    """

    def __init__(self, compilable: bool = False, *, track_generations: bool = False) -> None:
        super().__init__()
        self._tracks_generations = bool(track_generations)

    @property
    def tracks_generations(self) -> bool:
        return self._tracks_generations

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        return self.storage.append(self.prepared(data), one=one)

    def generations_of(self, index: int | Tensor | tuple) -> Tensor:
        """The generation of each slot: how often it was written or emptied since its first write, from 0.

        ``index``: an int or an integer tensor of any shape; the result, int64, has its shape and device. Of a tuple (an
        index for each dimension of the storage) the first counts, and with several dimensions the first of the last
        dimension of a tensor ``[..., ndim]``. -1 for a slot never written or out of range, and
        everywhere when generations are not tracked. A slot that was emptied has a generation too, though no record: a
        handle with it is not live.
        """
        slots = _as_index(index, self._num_dims)
        if not self._tracks_generations:
            return torch.full_like(slots, -1)
        with self.storage.lock:
            rows = self.storage.first_rows(slots.to(self.storage.device))
            return self.storage.generations(rows).to(slots.device)

    def write_at(self, index: int | Tensor, data: Any) -> int | Tensor:
        """Overwrite whole records at stored slots; the cursor stays, the records' old handles are stale.

        ``index``: an int with one record, or int64 ``[n]`` with a batch of ``n``; returned as it came. IndexError for a
        slot past what is stored.
        """
        self.storage.set(index, self.prepared(data), "write_at")
        return index


class TensorDictRoundRobinWriter(RoundRobinWriter):
    """The ring for tensordicts: ``"index"`` and ``"index_generation"`` that a sample carries are not stored with it, so
    a sampled batch can be written back as it is.
    """

    def prepared(self, data: Any) -> Any:
        if isinstance(data, TensorDictBase):
            return data.exclude(*INDEX_KEYS) if any(key in data.keys() for key in INDEX_KEYS) else data
        if isinstance(data, list):
            return [self.prepared(item) for item in data]
        return data
