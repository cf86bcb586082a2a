"""Storages for the emulated kernels of the ops on rows: sizes around the edges of warps and blocks, rows of one piece
and of thousands, more leaves than go by value; and the calls, beside the twin's.
"""

from __future__ import annotations

import copy
import random
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.ops.cases import FLOATS, INTEGERS, Records, lay_out, random_records
from tests.simt.emulator import Emulated
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_EPOCH,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_STAMP,
    CONTROL_WRITES,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
    STAMP_SHIFT,
)

EDGES = (0, 1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 255, 256, 257, 300)
SHAPES = ((), (1,), (3,), (5,), (21,), (2, 8), (16,), (33,), (64,), (100,), (0,), (2, 0))
NEAR_LEAVES = 80  # kNearLeaves: as many go by value
LONG_ROW = 2048  # kLongRowPieces: from here on a row gets a block


def cases(op: str, mode: str, plain: int = 150, sanitized: int = 8) -> Iterator[random.Random]:
    """Generators of cases, other ones in every mode; a sanitizer takes its time."""
    for case in range(sanitized if mode in ("address", "thread") else plain):
        yield random.Random(zlib.crc32(f"{op} {mode} {case}".encode()))


def num_rows(chance: random.Random, records: Records, mode: str, also: tuple[int, ...] = ()) -> int:
    """A number of rows. (The thread sanitizer has room for some thousand threads in a launch.)"""
    long = sum(records.layout[2::3]) >= LONG_ROW
    most = (5 if long else 33) if mode == "thread" else 1000
    return chance.choice([num for num in (*EDGES, *also) if num <= most])


def random_leaves(chance: random.Random) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    dtypes = INTEGERS + FLOATS
    kind = chance.random()
    if kind < 0.1:  # more than go by value, in one or two pages
        num = chance.choice((NEAR_LEAVES, NEAR_LEAVES + 1, 2 * NEAR_LEAVES, 2 * NEAR_LEAVES + 5))
        return [(chance.choice(dtypes), chance.choice(((), (3,)))) for _ in range(num)]
    if kind < 0.2:  # a block a row, its bytes not aligned to anything
        return [(torch.uint8, (chance.choice((LONG_ROW - 1, LONG_ROW + 1, 2 * LONG_ROW + 3)),)), (torch.float32, ())]
    return [(chance.choice(dtypes), chance.choice(SHAPES)) for _ in range(chance.randint(0, 9))]


def random_storage(chance: random.Random, mode: str) -> Records:
    """A storage in a state that a history of writes, patches and clearings can leave."""
    if chance.random() < 0.3:
        return random_records(chance)
    capacity = chance.choice(EDGES[1:12] if mode == "thread" else EDGES[1:])
    records = lay_out(
        random_leaves(chance), capacity, chance.choice(("packed", "columns")), gap=chance.choice((0, 0, 5))
    )
    generator = torch.Generator().manual_seed(chance.randrange(2**31))

    def draw(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator)

    for table in records.tables:
        table.copy_(draw(0, 256, *table.shape))
    length = chance.choice((0, capacity, chance.randint(0, capacity)))
    counts = draw(0, 4, capacity) * torch.where(draw(0, 2, capacity) == 0, 1, 2**40)
    live = (counts > 0) & (torch.arange(capacity) < length) & (draw(0, 5, capacity) > 0)
    records.words.copy_(counts << SLOT_COUNT_SHIFT | torch.where(live, SLOT_LIVE, 0))
    patches = torch.tensor([0, 1, (1 << STAMP_SHIFT) - 1])[draw(0, 3, capacity)]
    stamps = torch.randperm(1000 + capacity, generator=generator)[:capacity] << STAMP_SHIFT | patches
    records.stamps.copy_(torch.where(counts > 0, stamps, 0))
    records.control[CONTROL_CURSOR] = chance.randint(0, length) % capacity
    records.control[CONTROL_LENGTH] = length
    records.control[CONTROL_WRITES] = chance.randint(0, 2**40)
    records.control[CONTROL_JOURNAL] = chance.randint(0, 2**40)
    records.control[CONTROL_STAMP] = chance.randint(2000, 2**40)
    records.control[CONTROL_EPOCH] = chance.choice((0, 0, 3, 2**40, 2**60))
    records.journal = draw(0, 100, chance.choice((1, 3, 10, 100, 1000)))
    return records


def random_batch(
    chance: random.Random, records: Records, num_rows: int, chosen: list[int] | None = None
) -> list[Tensor]:
    """Random bytes for the chosen leaves of so many rows, or for all leaves."""
    generator = torch.Generator().manual_seed(chance.randrange(2**31))
    batch = []
    for dtype, shape in records.leaves if chosen is None else [records.leaves[leaf] for leaf in chosen]:
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        drawn = torch.randint(0, 256, (num_rows, num_bytes), generator=generator, dtype=torch.uint8)
        batch.append(
            drawn.view(dtype).view(num_rows, *shape) if num_bytes else torch.empty(num_rows, *shape, dtype=dtype)
        )
    return batch


def random_slots(chance: random.Random, capacity: int, num_rows: int) -> Tensor:
    """Some out of range; few or many of them equal."""
    few = chance.choice((1, 2, capacity, capacity))
    slots = [chance.randrange(min(few, capacity)) for _ in range(num_rows)]
    wild = (-1, -(2**63), capacity, capacity + 1, 2**62)
    return torch.tensor([chance.choice(wild) if chance.random() < 0.1 else slot for slot in slots], dtype=torch.int64)


@dataclass
class Rows:
    """The launchers of the ops on rows, called as the ops are."""

    kernels: Emulated

    @staticmethod
    def _tables(r: Records) -> tuple:
        return r.tables, [table.stride(0) for table in r.tables], r.capacity

    def _storage(self, r: Records) -> tuple:
        return (*self._tables(r), r.control, r.journal, r.journal.shape[0])

    def append(self, r: Records, values: list[Tensor], num_rows: int) -> tuple[Tensor, Tensor]:
        slots, generations = torch.full((num_rows,), -7), torch.full((num_rows,), -7)
        self.kernels.append_rows(*self._storage(r), r.layout, values, slots, generations, num_rows)
        return slots, generations

    def write(self, r: Records, layout: list[int], slots: Tensor, values: list[Tensor], renew: bool) -> Tensor:
        generations = torch.full_like(slots, -7)
        self.kernels.write_rows(*self._storage(r), layout, values, slots, generations, slots.shape[0], renew)
        return generations

    def read(
        self, r: Records, layout: list[int], templates: list[Tensor], slots: Tensor
    ) -> tuple[list[Tensor], Tensor]:
        leaves = [torch.ones((slots.shape[0], *t.shape[1:]), dtype=t.dtype) for t in templates]
        generations = torch.full_like(slots, -7)
        self.kernels.read_rows(*self._tables(r), layout, leaves, slots, generations, slots.shape[0])
        return leaves, generations

    def update(
        self, r: Records, layout: list[int], slots: Tensor, generations: Tensor, values: list[Tensor],
        version_leaf: list[int], version: Tensor | None, require_newer: bool,
    ) -> Tensor:  # fmt: skip
        status = torch.full(slots.shape, 77, dtype=torch.uint8)
        dtype = 0 if version is None else DTYPES.index(version.dtype)
        self.kernels.update_rows_if(
            *self._storage(r), layout, values, slots, generations, version_leaf, version, dtype, require_newer,
            status, slots.shape[0],
        )  # fmt: skip
        return status

    def clear(self, r: Records, reset_writes: bool) -> None:
        self.kernels.clear_rows(*self._storage(r), reset_writes)


# In the order of `Dtype`, csrc/core/score.h.
DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
)  # fmt: skip


def _bytes(x: Any) -> list[Tensor]:
    if x is None:
        return []
    if isinstance(x, Tensor):
        return [x.contiguous().view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)]
    return [part for item in x for part in _bytes(item)]


def assert_same(records: Records, emulated: Callable[[Records], Any], twin: Callable[[Records], Any]) -> None:
    """Both give the same and leave the same, bit by bit."""
    mine, theirs = copy.deepcopy(records), copy.deepcopy(records)
    got, expected = _bytes(emulated(mine)), _bytes(twin(theirs))
    assert [part.shape for part in got] == [part.shape for part in expected]
    differing = [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if not torch.equal(a, b)]
    assert not differing, f"outputs {differing} differ"
    assert mine.control.tolist() == theirs.control.tolist()
    assert mine.journal.tolist() == theirs.journal.tolist()
    assert mine.words.tolist() == theirs.words.tolist()
    assert mine.stamps.tolist() == theirs.stamps.tolist()
    for i, (a, b) in enumerate(zip(mine.tables, theirs.tables, strict=True)):
        assert torch.equal(a, b), f"table {i} differs in rows {torch.nonzero((a != b).any(1)).view(-1).tolist()}"
