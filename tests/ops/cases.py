"""Storages in random states, and what every op's test asks of it: the twin's results, opcheck, and torch.compile."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from torchrb.ops import loader, reference
from torchrb.ops.priority_tree import PRIORITY_FAN, PriorityTree
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_EPOCH,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_SIZE,
    CONTROL_STAMP,
    CONTROL_WRITES,
    HEADER_BYTES,
    INDEX_STATE_SIZE,
    INDEX_VISITED,
    PRIORITY_STATE_SIZE,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
    STAMP_SHIFT,
    STRATEGIES,
    group_links_size,
)

INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SHAPES = ((), (), (1,), (3,), (2, 5), (17,), (0,), (2, 0))

needs_kernel = pytest.mark.skipif(loader.native_library is None, reason="there is no compiled kernel to compare")


def chances(block: int, count: int = 40) -> Iterator[random.Random]:
    """Generators of a block of cases, so that one test runs many of them."""
    for case in range(count):
        yield random.Random(block * count + case)


def op(name: str) -> Any:
    return getattr(torch.ops.torchrb, name).default


def random_values(chance: random.Random, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Few distinct values, so that many tie, among them the ones that order badly."""
    count = torch.Size(shape).numel()
    if dtype.is_floating_point:
        pool = [0.0, -0.0, 1.0, 1.5, -2.0, float("nan"), float("inf"), float("-inf"), chance.gauss(0, 1)]
        pool.append(torch.finfo(dtype).max)
    elif dtype == torch.bool:
        pool = [False, True]
    else:
        limits = torch.iinfo(dtype)
        pool = [0, 1, 2, limits.max, limits.max - 1, limits.min, limits.min + 1]
    return torch.tensor([chance.choice(pool) for _ in range(count)], dtype=dtype).view(shape)


@dataclass
class Records:
    """A storage: its tables and numbers, and the dtype and shape of each leaf of a row."""

    tables: list[Tensor]
    control: Tensor
    journal: Tensor
    layout: list[int]
    leaves: list[tuple[torch.dtype, tuple[int, ...]]] = field(default_factory=list)

    @property
    def capacity(self) -> int:
        return self.tables[0].shape[0]

    @property
    def templates(self) -> list[Tensor]:
        return [torch.empty((0, *shape), dtype=dtype) for dtype, shape in self.leaves]

    @property
    def words(self) -> Tensor:
        return self.tables[0][:, :HEADER_BYTES].view(torch.int64)[:, 0]

    @property
    def stamps(self) -> Tensor:
        return self.tables[0][:, :HEADER_BYTES].view(torch.int64)[:, 1]

    @property
    def generations(self) -> Tensor:
        return (self.words >> SLOT_COUNT_SHIFT) - 1

    def part(self, chosen: list[int]) -> list[int]:
        """The layout of some of the leaves."""
        return [number for i in chosen for number in self.layout[3 * i : 3 * i + 3]]

    def cells(self, leaf: int) -> Tensor:
        """A leaf of all rows, as what it is."""
        table, offset, nbytes = self.layout[3 * leaf : 3 * leaf + 3]
        dtype, shape = self.leaves[leaf]
        cells = self.tables[table][:, offset : offset + nbytes].contiguous()
        return cells.view(dtype).view(self.capacity, *shape) if nbytes else torch.empty((self.capacity, *shape))

    def batch(self, chance: random.Random, num_rows: int, chosen: list[int] | None = None) -> list[Tensor]:
        """Random values for ``num_rows`` rows of all leaves, or of the chosen ones."""
        chosen = list(range(len(self.leaves))) if chosen is None else chosen
        return [random_values(chance, self.leaves[i][0], (num_rows, *self.leaves[i][1])) for i in chosen]


def lay_out(leaves: list[tuple[torch.dtype, tuple[int, ...]]], capacity: int, kind: str, gap: int = 0) -> Records:
    """An empty storage. ``kind``: "packed", or "columns". ``gap``: unused bytes after each leaf of a packed row."""
    layout: list[int] = []
    if kind == "packed":
        end = HEADER_BYTES
        for dtype, shape in leaves:
            nbytes = torch.Size(shape).numel() * dtype.itemsize
            end = -(-end // dtype.itemsize) * dtype.itemsize
            layout += [0, end, nbytes]
            end += nbytes + gap
        tables = [torch.zeros(capacity, -(-end // 16) * 16, dtype=torch.uint8)]
    else:
        tables = [torch.zeros(capacity, HEADER_BYTES, dtype=torch.uint8)]
        for dtype, shape in leaves:
            nbytes = torch.Size(shape).numel() * dtype.itemsize
            layout += [len(tables), 0, nbytes]
            tables.append(torch.zeros(capacity, nbytes, dtype=torch.uint8))
    control = torch.zeros(CONTROL_SIZE, dtype=torch.int64)
    return Records(tables, control, torch.zeros(max(capacity, 4), dtype=torch.int64), layout, leaves)


def random_records(chance: random.Random) -> Records:
    """A storage of random leaves in a state that a history of writes, patches and clearings can leave."""
    leaves = [(chance.choice(INTEGERS + FLOATS), chance.choice(SHAPES)) for _ in range(chance.randint(0, 5))]
    capacity = chance.choice((1, 2, 3, 7, 20))
    records = lay_out(leaves, capacity, chance.choice(("packed", "columns")), gap=chance.choice((0, 0, 5, 100)))
    for leaf, (dtype, shape) in enumerate(leaves):
        table, offset, nbytes = records.layout[3 * leaf : 3 * leaf + 3]
        if nbytes:
            values = random_values(chance, dtype, (capacity, *shape))
            records.tables[table][:, offset : offset + nbytes] = values.view(capacity, -1).view(torch.uint8)
    length = chance.randint(0, capacity)
    sequences = chance.sample(range(1000), capacity)
    for slot in range(capacity):
        count = chance.choice((0, 1, 2, 5, 2**40))
        live = SLOT_LIVE if count and slot < length and chance.random() < 0.8 else 0
        records.words[slot] = count << SLOT_COUNT_SHIFT | live
        patches = chance.choice((0, 1, (1 << STAMP_SHIFT) - 1))
        records.stamps[slot] = (sequences[slot] << STAMP_SHIFT | patches) if count else 0
    records.control[CONTROL_CURSOR] = chance.randint(0, length) % capacity
    records.control[CONTROL_LENGTH] = length
    records.control[CONTROL_WRITES] = chance.randint(0, 2**40)
    records.control[CONTROL_JOURNAL] = chance.randint(0, 2**40)
    records.control[CONTROL_STAMP] = chance.randint(1000, 2**40)
    records.control[CONTROL_EPOCH] = chance.choice((0, 0, 3, 2**40, 2**60))  # before, amid and after the counts above
    records.journal = torch.tensor([chance.randrange(100) for _ in range(chance.choice((1, 3, 10, 100)))])
    return records


class Index:
    """A group index over a leaf of a storage, of the dispatcher's op or, with ``twin``, of the plain-torch one."""

    def __init__(self, records: Records, key: int, twin: bool = False) -> None:
        self.records, self.key, self.twin = records, key, twin
        dtype, shape = records.leaves[key]
        self.template = torch.empty((0, *shape), dtype=dtype)
        self.keys = torch.zeros(records.capacity, torch.Size(shape).numel(), dtype=torch.int64)
        self.links = torch.zeros(group_links_size(records.capacity), dtype=torch.int32)
        self.state = torch.zeros(INDEX_STATE_SIZE, dtype=torch.int64)

    def _call(self, name: str) -> Any:
        return getattr(reference, name) if self.twin else op(name)

    def update_args(self, rebuild: bool) -> tuple:
        records = self.records
        return (
            self.keys, self.links, self.state, records.control, records.journal,
            records.tables, records.part([self.key]), self.template, rebuild,
        )  # fmt: skip

    def catch_up(self, always: bool = False) -> list[int]:
        """Groups, groups of one row, a row with NaN for a key, rows looked at."""
        before = self.state.tolist()
        self._call("group_index_update_")(*self.update_args(always))
        position, *counts, visited = self.state[: INDEX_VISITED + 1].tolist()
        assert position == self.records.control[CONTROL_JOURNAL]
        return [*counts, visited - before[INDEX_VISITED]]

    def sample_args(self, seed: int, groups: int, per_group: int, strategy: str, reward: int | None) -> tuple:
        records = self.records
        layout = [] if reward is None else records.part([reward])
        template = torch.empty(0) if reward is None else records.templates[reward]
        return (
            torch.tensor([seed]), self.keys, self.links, records.tables, layout, template,
            groups, per_group, STRATEGIES.index(strategy),
        )  # fmt: skip

    def sample(self, seed: int, groups: int, per_group: int, strategy: str = "random", reward: int | None = None):
        """Slots by group ``[groups, per_group]``, what was drawn ``[groups, 3]`` (rank, rows, valid rows), flags."""
        slots, drawn, flags = self._call("sample_groups")(*self.sample_args(seed, groups, per_group, strategy, reward))
        return slots.view(groups, per_group).tolist(), drawn.tolist(), int(flags)

    def members(self) -> list[list[int]]:
        """The slots of each group, ascending, groups by rank."""
        num_groups = self.catch_up()[0]
        if num_groups == 0:
            return []
        slots, drawn, _ = self.sample(0, num_groups, self.records.capacity)
        by_rank = sorted(zip(drawn, slots, strict=True))
        assert [rank for (rank, _, _), _ in by_rank] == list(range(num_groups))
        return [sorted(rows[:size]) for (_, size, _), rows in by_rank]


class Ranked:
    """Priorities of a storage, of the dispatcher's ops or, with ``twin``, of the plain-torch ones."""

    def __init__(self, records: Records, alpha: float = 1.0, eps: float = 0.0, twin: bool = False) -> None:
        self.records, self.alpha, self.eps, self.twin = records, alpha, eps, twin
        self.place = PriorityTree(records.capacity)
        self.tree = self.place.empty(torch.device("cpu"))
        self.seen = torch.zeros(records.capacity, dtype=torch.int64)
        self.state = torch.zeros(PRIORITY_STATE_SIZE, dtype=torch.int64)

    def _call(self, name: str) -> Any:
        return getattr(reference, name) if self.twin else op(name)

    def update_args(
        self, slots: Any = (), priorities: Any = (), generations: Any = (), rebuild: bool = False
    ) -> tuple[Any, ...]:
        records = self.records
        slots, generations = (torch.as_tensor(x, dtype=torch.int64) for x in (slots, generations))
        priorities = torch.as_tensor(priorities)
        return (
            self.tree, self.seen, self.state, records.control, records.journal, records.tables,
            slots, generations, priorities, self.alpha, self.eps, rebuild,
        )  # fmt: skip

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Follow the storage, and set the priorities given."""
        self._call("update_priorities_")(*self.update_args(*args, **kwargs))

    def draw_args(
        self, seed: int, num: int, beta: float = 0.5, masses: Any = None, wide: bool = True
    ) -> tuple[Any, ...]:
        masses = None if masses is None else torch.as_tensor(masses, dtype=torch.float64)
        return torch.tensor([seed]), masses, self.tree, self.records.capacity, num, beta, wide

    def draw(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self._call("draw_priorities")(*self.draw_args(*args, **kwargs))

    @property
    def priorities(self) -> Tensor:
        """Of each slot; -1 where there is no record."""
        return self.tree[self.place.most[0] : self.place.most[0] + self.records.capacity]

    @property
    def weights(self) -> Tensor:
        return self.tree[: self.records.capacity]

    @property
    def total(self) -> float:
        return float(self.tree[self.place.sums[-1] : self.place.sums[-1] + PRIORITY_FAN].sum())


def in_threads(num_threads: int, turns: int, call: Callable[[], Any]) -> list[Any]:
    """What a call returns when several threads make it, ``turns`` times each."""
    with ThreadPoolExecutor(num_threads) as pool:
        work = [pool.submit(lambda: [call() for _ in range(turns)]) for _ in range(num_threads)]
        return [result for thread in work for result in thread.result()]


def as_bytes(x: Any) -> Any:
    """Tensors as what can be compared bit by bit, NaN included."""
    if isinstance(x, Tensor):
        return x.dtype, tuple(x.shape), x.contiguous().view(-1).view(torch.uint8).tolist() if x.numel() else []
    if isinstance(x, (list, tuple)):
        return [as_bytes(part) for part in x]
    return x


def outcome(call: Any, args: tuple) -> tuple[Any, Any]:
    """What a call returns and what it leaves of its arguments, which are copied first."""
    args = copy.deepcopy(args)
    result = call(*args)
    return as_bytes(result), as_bytes(args)


def assert_like_twin(name: str, args: tuple) -> None:
    """The kernel returns what the twin returns and leaves every argument as the twin leaves it, bit by bit."""
    result, left = outcome(op(name), args)
    expected, expected_left = outcome(getattr(reference, name), args)
    assert result == expected
    assert left == expected_left


def assert_op_is_sound(name: str, args: tuple) -> None:
    """The schema tells the truth, the fake agrees with the op, and torch.compile gives what the op gives."""
    torch.library.opcheck(op(name), copy.deepcopy(args))

    def call(*inputs):
        return op(name)(*inputs)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert outcome(compiled, args) == outcome(call, args)
    torch._dynamo.reset()
