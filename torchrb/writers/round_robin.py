"""The ring: new records over the oldest ones."""

from __future__ import annotations

from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from torchrb.writers.base import Writer

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
        super().__init__(track_generations=track_generations)

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        if self.choose is not None and self.storage.ndim == 1:  # what is used up of others is cells, not records
            return self.storage.place(self.prepared(data), self.choose, one=one)
        return self.storage.append(self.prepared(data), one=one)

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
        return without_handles(data)


def without_handles(data: Any) -> Any:
    """Tensordicts, or a list of them, less the fields that a sample adds to its records."""
    if isinstance(data, TensorDictBase):
        return data.exclude(*INDEX_KEYS) if any(key in data.keys() for key in INDEX_KEYS) else data
    if isinstance(data, list):
        return [without_handles(item) for item in data]
    return data
