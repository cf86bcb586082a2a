"""One file of a dump: a head, which is the tree as JSON, then the bytes of its tensors.

In the head a tensor is a place in a table of dtype, shape and offset. Large tensors are written from, and read into,
their own memory; small ones share one piece. The file has a checksum for its head and one for each block
behind it, so that several threads work on it at once, and so that nothing of it is believed before it was checked.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchrb.persistence.plain import DTYPES

BLOCK = 8 << 20
_MAGIC = b"torchrb1"
_START = len(_MAGIC) + 8  # where the JSON begins, after its length
_ALIGNMENT = 64
_LARGE = 1 << 20
_THREADS = 3  # one waits for the disk while the others copy and sum
_FLUSHED = 64 << 20  # bytes
_COLUMNS = 1024  # of words, in a checksum
_ROW_BYTES = 8 * _COLUMNS
_STRIP = 32  # rows
_MOST_PIECES = 512  # in one system call, which takes 1,024

_TENSOR = "$"  # a dict with this key stands for a tensor; keys of the tree that begin with it get another one


class Entry(NamedTuple):
    """What must be known of a content file to read it: its size, that of its head, and the checksums of both."""

    bytes: int
    head: int
    sums: list[str]


class Piece(NamedTuple):
    """Some bytes of a file and where they are in memory."""

    offset: int
    view: memoryview


# --- writing


def write(fd: int, tree: Any) -> Entry:
    """Write a tree to an empty file. It is complete, but not yet on the disk (`os.fsync`) when this returns."""
    tensors: list[Tensor] = []
    skeleton = _skeleton(tree, tensors)
    table, offsets, end = [], [], 0
    for tensor in tensors:
        offsets.append(end)
        table.append([str(tensor.dtype).removeprefix("torch."), [*tensor.shape], end])
        end = _aligned(end + tensor.nbytes)
    text = json.dumps([skeleton, table], separators=(",", ":")).encode()
    head_bytes = _aligned(_START + len(text))
    head = (_MAGIC + len(text).to_bytes(8, "little") + text).ljust(head_bytes, b" ")
    body = _pieces(head_bytes, offsets, tensors, head_bytes + end)
    sums = [_sum([head])]
    _write_all(fd, [memoryview(head)], 0)

    flushing, flushed = threading.Lock(), 0

    def put(block: list[Piece]) -> str:
        nonlocal flushed
        views = [piece.view for piece in block]
        _write_all(fd, views, block[0].offset)
        if block[0].offset - flushed > _FLUSHED and flushing.acquire(blocking=False):
            try:  # the disk is at work while the rest is written
                flushed = block[0].offset
                os.fdatasync(fd)
            finally:
                flushing.release()
        return _sum(views)

    with ThreadPoolExecutor(_THREADS) as pool:
        sums += pool.map(put, _blocks(body))
    return Entry(head_bytes + end, head_bytes, sums)


def _skeleton(tree: Any, tensors: list[Tensor]) -> Any:
    """The tree with a number for each tensor, which is put into a list."""
    if isinstance(tree, Tensor):
        tensors.append(tree)
        return {_TENSOR: len(tensors) - 1}
    if isinstance(tree, dict):
        return {
            _TENSOR + key if key.startswith(_TENSOR) else key: _skeleton(item, tensors) for key, item in tree.items()
        }
    if isinstance(tree, list):
        return [_skeleton(item, tensors) for item in tree]
    if type(tree) is int and not -(2**63) <= tree < 2**63:  # JSON has them, but Python bounds how long they may be
        return {_TENSOR: hex(tree)}
    return tree


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def bytes_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor, its own where they are in one piece on the CPU."""
    if not tensor.numel():
        return memoryview(b"")
    whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    return memoryview(whole.view(-1).view(torch.uint8).numpy().data).cast("B")


def _pieces(start: int, offsets: list[int], tensors: list[Tensor], end: int) -> list[Piece]:
    """What the file holds from ``start`` on, without a gap; small tensors joined."""
    pieces: list[Piece] = []
    joined, joined_at = bytearray(), start

    def flush(upto: int) -> None:
        nonlocal joined
        joined.extend(bytes(upto - joined_at - len(joined)))
        if joined:
            pieces.append(Piece(joined_at, memoryview(joined)))
        joined = bytearray()

    for offset, tensor in zip(offsets, tensors, strict=True):
        at = start + offset
        if tensor.nbytes < _LARGE:
            joined.extend(bytes(at - joined_at - len(joined)))
            joined.extend(bytes_of(tensor))
            continue
        flush(at)
        pieces.append(Piece(at, bytes_of(tensor)))
        joined_at = at + tensor.nbytes
    flush(end)
    return pieces


def _blocks(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces without a gap between them, cut into blocks of `BLOCK` bytes from their beginning on."""
    block: list[Piece] = []
    room = BLOCK
    for offset, view in pieces:
        at = 0
        while at < len(view):
            num = min(room, len(view) - at)
            block.append(Piece(offset + at, view[at : at + num]))
            at, room = at + num, room - num
            if not room:
                yield block
                block, room = [], BLOCK
    if block:
        yield block


def _write_all(fd: int, views: list[memoryview], offset: int) -> None:
    for first in range(0, len(views), _MOST_PIECES):
        left = views[first : first + _MOST_PIECES]
        while left:
            done = os.pwritev(fd, left, offset)
            offset += done
            left = _rest(left, done)


def _rest(views: list[memoryview], done: int) -> list[memoryview]:
    """What is left of some pieces after so many bytes."""
    for place, view in enumerate(views):
        if done < len(view):
            return [view[done:], *views[place + 1 :]]
        done -= len(view)
    return []


def _sum(views: Sequence[memoryview | bytes | bytearray]) -> str:
    """The checksum of some bytes in a row.

    They are words of 8 bytes in rows of `_COLUMNS`; it is the CRC-32 of the columns' sums, the rows' sums, and the
    bytes that are left over. So every bit that changes is noticed, and words or rows that change places, at several
    times the speed of a CRC over all.
    """
    whole = views[0] if len(views) == 1 else b"".join(views)
    num = len(whole) // _ROW_BYTES
    total = 0
    if num:
        words = np.frombuffer(whole, dtype="<u8", count=num * _COLUMNS).reshape(num, _COLUMNS)
        columns, rows = np.zeros(_COLUMNS, dtype="<u8"), np.empty(num, dtype="<u8")
        for first in range(0, num, _STRIP):  # so much stays in the cache between the two sums
            strip = words[first : first + _STRIP]
            columns += strip.sum(0)
            strip.sum(1, out=rows[first : first + _STRIP])
        total = zlib.crc32(rows.tobytes(), zlib.crc32(columns.tobytes()))
    return f"{zlib.crc32(whole[num * _ROW_BYTES :], total):08x}"


# --- reading

# Where a tensor of this dtype and shape is to be read into: memory of that shape, or None for memory of its own.
Place = Callable[[torch.dtype, list[int]], "Tensor | None"]


def read(fd: int, entry: Entry, place: Place | None = None) -> Any:
    """The tree in a file; ``place`` may say where large tensors go. ValueError for a file that is not what was written,
    before any of it was believed: nothing larger than the file is allocated.
    """
    size = os.fstat(fd).st_size
    if size != entry.bytes:
        raise ValueError(f"has {size} bytes, expected {entry.bytes}: it was cut off, or added to")
    if not _START <= entry.head <= entry.bytes:
        raise ValueError("is said to have a head longer than itself")
    head = bytearray(entry.head)
    _read_all(fd, [memoryview(head)], 0)
    if len(entry.sums) != 1 + -(-(entry.bytes - entry.head) // BLOCK) or _sum([head]) != entry.sums[0]:
        raise ValueError("has changed since it was written: the checksum of its head differs")
    length = int.from_bytes(head[len(_MAGIC) : _START], "little")
    if head[: len(_MAGIC)] != _MAGIC or _aligned(_START + length) != entry.head:
        raise ValueError("has a head of another form")
    skeleton, table = json.loads(head[_START : _START + length])
    tensors, body = _allocated(table, entry.head, entry.bytes, place)

    def get(numbered: tuple[int, list[Piece]]) -> int | None:
        number, block = numbered
        views = [piece.view for piece in block]
        _read_all(fd, views, block[0].offset)
        return None if _sum(views) == entry.sums[number] else block[0].offset

    with ThreadPoolExecutor(_THREADS) as pool:
        wrong = [at for at in pool.map(get, enumerate(_blocks(body), 1)) if at is not None]
    if wrong:
        raise ValueError(f"has changed since it was written: the checksum of the bytes from {wrong[0]} on differs")
    return _tree(skeleton, tensors)


def _allocated(table: Any, start: int, end: int, place: Place | None) -> tuple[list[Tensor], list[Piece]]:
    """Memory for the tensors of a table, and the pieces of the file that go there."""
    tensors: list[Tensor] = []
    pieces: list[Piece] = []
    at = start  # up to where pieces are made

    def fill(upto: int) -> Tensor:
        """Memory for the bytes of the file up to there, however many tensors they are."""
        nonlocal at
        memory = torch.empty(upto - at, dtype=torch.uint8)
        if upto > at:
            pieces.append(Piece(at, bytes_of(memory)))
        at = upto
        return memory

    small: list[tuple[int, torch.dtype, list[int], int, int]] = []  # number, dtype, shape, offset, bytes

    def carve(upto: int) -> None:
        fill(min(_aligned(at), upto))
        first, memory = at, fill(upto)
        for number, dtype, shape, offset, nbytes in small:
            cells = memory[offset - first : offset - first + nbytes]
            tensors[number] = cells.view(dtype).view(shape) if nbytes else torch.empty(shape, dtype=dtype)
        small.clear()

    last = start
    for number, (name, shape, relative) in enumerate(table):
        dtype, nbytes, offset = _checked(name, shape, relative, start)
        if offset < last or offset + nbytes > end or offset % _ALIGNMENT:
            raise ValueError(f"places a tensor of {nbytes} bytes at {offset}, out of the bounds {last} and {end}")
        last = offset + nbytes
        tensors.append(torch.empty(0))
        if nbytes < _LARGE:
            small.append((number, dtype, shape, offset, nbytes))
            continue
        carve(offset)
        memory = None if place is None else place(dtype, shape)
        tensors[number] = torch.empty(shape, dtype=dtype) if memory is None else memory
        pieces.append(Piece(offset, bytes_of(tensors[number])))
        at = last
    carve(end)
    return tensors, pieces


def _checked(name: Any, shape: Any, relative: Any, start: int) -> tuple[torch.dtype, int, int]:
    """Dtype, bytes and place of a tensor in the table."""
    dtype = DTYPES.get(name)
    numbers = [relative, *shape] if isinstance(shape, list) else [None]
    if dtype is None or not all(type(number) is int and 0 <= number < 2**62 for number in numbers):
        raise ValueError(f"tells of a tensor of dtype {name!r} and shape {shape!r} at {relative!r}")
    count = 1
    for dim in shape:
        count *= dim
    return dtype, count * dtype.itemsize, start + relative


def _tree(skeleton: Any, tensors: list[Tensor]) -> Any:
    if isinstance(skeleton, list):
        return [_tree(item, tensors) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    if skeleton.keys() == {_TENSOR}:
        number = skeleton[_TENSOR]
        return int(number, 16) if isinstance(number, str) else tensors[_index(number, len(tensors))]
    return {key[1:] if key.startswith(_TENSOR) else key: _tree(item, tensors) for key, item in skeleton.items()}


def _index(number: Any, size: int) -> int:
    if type(number) is not int or not 0 <= number < size:
        raise ValueError(f"names tensor {number!r} of {size}")
    return number


def _read_all(fd: int, views: list[memoryview], offset: int) -> None:
    for first in range(0, len(views), _MOST_PIECES):
        left = views[first : first + _MOST_PIECES]
        while left:
            done = os.preadv(fd, left, offset)
            if not done:
                raise ValueError(f"ends at {offset}: it was cut off")
            offset += done
            left = _rest(left, done)
