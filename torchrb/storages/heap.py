"""Values of any length beside records of fixed length: an append-only file, and two numbers in the record that name a
piece of it.

A value is written first, and the record that names it by an op, as a whole with its other fields: whoever is killed in
between leaves bytes that nobody names. What no record names any more is given back to the file system where it lies,
page by page, so that nothing ever moves under a reader's eyes, and the file is as large as what it keeps.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchrb.storages.shared_memory import SharedMemory
from torchrb.storages.values import from_bytes, to_bytes

REF_WORDS = 2  # where a value begins, how many bytes it has; of none, None
_PAGE = mmap.PAGESIZE
_GROWTH = 1 << 20  # the file is mapped in steps of at least this
_MOST_DEAD = 4 << 20  # bytes that need not be given back yet


class Heap:
    """Values by reference, int64 ``[n, REF_WORDS]``. The caller holds the storage's lock.

    ``words[at]``: the end of what was written; ``words[at + 1 : at + 3]``: the end when dead values were last given
    back, and the bytes of those that were alive.
    """

    def __init__(self, memory: SharedMemory, words: memoryview, at: int) -> None:
        self._memory, self._words, self._at = memory, words, at
        self._map: mmap.mmap | None = None

    def add(self, columns: Sequence[Sequence[Any]], what: Callable[[int], str]) -> list[Tensor]:
        """References to the values of some fields. TypeError, with nothing written, for what cannot be kept; OSError
        when there is no room. ``what(i)`` names a field in errors.
        """
        begin = end = self._words[self._at]
        pieces: list[bytes] = []
        refs = []
        for i, column in enumerate(columns):
            name = what(i)
            encoded = [to_bytes(value, name) for value in column]
            sizes = torch.tensor(list(map(len, encoded)), dtype=torch.int64)
            ends = torch.cumsum(sizes, 0) + end
            refs.append(torch.stack([ends - sizes, sizes], 1))
            pieces += encoded
            end += sum(map(len, encoded))
        if end > begin:
            if self._memory.nbytes < end:
                self._memory.resize(_grown(end))
            written = memoryview(b"".join(pieces))
            while written:  # not through the mapping: a full disk is an error here, and a signal there
                written = written[os.pwrite(self._memory.fd, written, end - len(written)) :]
            self._words[self._at] = end
        return refs

    def values(self, refs: Tensor) -> list[Any]:
        """The values that references name. ValueError for a reference that names none."""
        end = self._words[self._at]
        if end and (self._map is None or len(self._map) < end):
            size = self._memory.nbytes
            if size < end:
                raise ValueError(f"the file of strings and other values has {size} bytes, and {end} were written to it")
            self._map = mmap.mmap(self._memory.fd, size, flags=mmap.MAP_SHARED)
        whole = self._map
        values: list[Any] = []
        for begin, size in refs.tolist():
            if not size:
                values.append(None)
                continue
            if begin < 0 or size < 0 or begin + size > end:
                raise ValueError(f"a record names bytes {begin} to {begin + size} of {end}")
            values.append(from_bytes(whole[begin : begin + size]))  # type: ignore[index]
        return values

    def is_due(self, least: int) -> bool:
        """Whether so much was added since `free_all_but` last ran that running it is worth it."""
        end, last, alive = self._words[self._at : self._at + 3]
        return end - last > max(_MOST_DEAD, least, alive)

    def free_all_but(self, refs: Tensor) -> None:
        """Give back what no reference names, but for parts of pages."""
        begin, size = refs[refs[:, 1] > 0].unbind(1)
        begin, order = torch.sort(begin)
        ends = begin + size[order]
        end = self._words[self._at]
        self.values(refs[:0])  # maps all of it
        gaps = torch.stack([torch.cat([begin.new_zeros(1), ends]), torch.cat([begin, begin.new_tensor([end])])])
        first = -(-gaps[0] // _PAGE) * _PAGE
        num = gaps[1] // _PAGE * _PAGE - first
        for at, nbytes in zip(first[num > 0].tolist(), num[num > 0].tolist(), strict=True):
            try:
                self._map.madvise(mmap.MADV_REMOVE, at, nbytes)  # type: ignore[union-attr]
            except OSError:
                break  # a file system without holes keeps what it has
        self._words[self._at + 1], self._words[self._at + 2] = end, int(size.sum())


def _grown(end: int) -> int:
    return max(_GROWTH, 1 << end.bit_length())
