"""No writing."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor

from torchrb.writers.base import Writer


class ImmutableDatasetWriter(Writer):
    """Refuses every write through its buffer: for a dataset that is only drawn from.

    `add`, `extend`, `empty`, ``rb[i] = x``, `write_all`, `set_`, `set_at_`, `update_` and `update_if_present` raise
    RuntimeError, and nothing has changed. ``write_count`` is 0, whatever was written through other buffers; the storage
    itself, and other buffers on it, can be written as before, and what they write is drawn here.

    Args:
        compilable: accepted for compatibility.

    >>> import torch
    >>> from torchrb import ImmutableDatasetWriter, ReplayBuffer, TensorStorage
    >>> rb = ReplayBuffer(storage=TensorStorage(torch.arange(4)), writer=ImmutableDatasetWriter())
    >>> rb.sample(2).shape, rb.write_count
    (torch.Size([2]), 0)
    >>> rb.add(torch.tensor(4))
    Traceback (most recent call last):
        ...
    RuntimeError: add: this buffer's ImmutableDatasetWriter allows no writing. Put in a writer that does, \
as in rb.set_writer(RoundRobinWriter()), or write through another buffer on this storage.
    """

    def __init__(self, compilable: bool = False) -> None:
        super().__init__()

    def check_writable(self, call: str) -> NoReturn:
        raise RuntimeError(
            f"{call}: this buffer's {type(self).__name__} allows no writing. Put in a writer that does, as in "
            "rb.set_writer(RoundRobinWriter()), or write through another buffer on this storage."
        )

    def append(self, data: Any, *, one: bool = False) -> tuple[Tensor, Tensor]:
        self.check_writable("add" if one else "extend")

    @property
    def write_count(self) -> int:
        """0: nothing is written through this writer."""
        return 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"
