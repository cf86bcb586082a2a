"""What the machine allows: the same bytes moved by nothing but copies of bare memory.

Reads: one memcpy of a contiguous piece from a moving place, and an `index_select` of each bare leaf at moving rows.
Writes: one memcpy to a moving place, a slice copy of each bare leaf to the moving position of its table, and an
`index_copy_` of some bare leaves to random, different rows: a patch that asks nothing of the rows it lands on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from benchmarks.harness import Contender
from benchmarks.workloads import GROUP_SIZE, Ring, Workload


def bare_leaves(workload: Workload, rows: int) -> dict[str, Tensor]:
    """The workload in one plain tensor a leaf."""
    leaves: dict[str, Tensor] = {}
    first = 0
    for chunk in workload.chunks(rows):
        for key, values in chunk.items():
            table = leaves.setdefault(key, torch.empty(rows, *values.shape[1:], dtype=values.dtype))
            table[first : first + values.shape[0]] = values
        first += chunk.shape[0]
    return leaves


def bare_bytes(workload: Workload, rows: int) -> Tensor:
    """As many bytes as the workload has, each page its own (a table of zeros would be one page, in the cache)."""
    return torch.arange(rows * workload.row_bytes // 8 + 1).view(torch.uint8)


def uniform_index(rows: int, count: int, seed: int) -> Callable[[], Tensor]:
    """A stream of random slots."""
    generator = torch.Generator().manual_seed(seed)
    return lambda: torch.randint(rows, (count,), generator=generator)


def group_index(rows: int, groups: int, seed: int) -> Callable[[], Tensor]:
    """A stream of the slots of whole groups, which stand together; within one, in the order that ranking leaves."""
    generator = torch.Generator().manual_seed(seed)

    def draw() -> Tensor:
        firsts = torch.randint(rows // GROUP_SIZE, (groups, 1), generator=generator) * GROUP_SIZE
        ranked = torch.rand(groups, GROUP_SIZE, generator=generator).argsort(dim=1)
        return (firsts + ranked).view(-1)

    return draw


def index_select(workload: Workload, rows: int, index: Callable[[], Tensor]) -> Contender:
    """Gather each bare leaf."""
    leaves = bare_leaves(workload, rows)

    def call(slots: Tensor) -> dict[str, Tensor]:
        return {key: torch.index_select(leaf, 0, slots) for key, leaf in leaves.items()}

    return Contender(call, lambda: (index(),), lambda batch: _check(workload, batch))


def memcpy_read(workload: Workload, rows: int, count: int, seed: int = 1) -> Contender:
    """Copy the bytes of ``count`` rows out of a moving place of the table, in one piece."""
    base = bare_bytes(workload, rows)
    out = torch.empty(count * workload.row_bytes, dtype=torch.uint8)
    place = uniform_index((base.numel() - out.numel()) // 64 + 1, 1, seed)

    def inputs() -> tuple[Tensor]:
        start = int(place()) * 64
        return (base[start : start + out.numel()],)

    return Contender(out.copy_, inputs)


def slice_copies(workload: Workload, rows: int, batch: int) -> Contender:
    """Copy each leaf of the next batch to the moving position of its table."""
    leaves = bare_leaves(workload, rows)
    ring = Ring(workload, rows, batch)
    state = {"cursor": 0}

    def inputs() -> tuple[Mapping[str, Tensor], int]:
        cursor = state["cursor"] if state["cursor"] + batch <= rows else 0
        state["cursor"] = cursor + batch
        return ring.next(), cursor

    def call(values: Mapping[str, Tensor], cursor: int) -> None:
        for key, leaf in leaves.items():
            leaf[cursor : cursor + batch].copy_(values[key])

    return Contender(call, inputs)


def memcpy_write(workload: Workload, rows: int, batch: int) -> Contender:
    """Copy as many bytes as the next batch has to the moving position of the table, in one piece.

    The bytes have just been written, as a batch has that was just made.
    """
    base = bare_bytes(workload, rows)
    fresh = torch.zeros(batch * workload.row_bytes, dtype=torch.uint8)
    state = {"cursor": 0}

    def inputs() -> tuple[Tensor]:
        fresh.add_(1)
        cursor = state["cursor"] if state["cursor"] + fresh.numel() <= base.numel() else 0
        state["cursor"] = cursor + fresh.numel()
        return (base[cursor : cursor + fresh.numel()],)

    return Contender(lambda place: place.copy_(fresh), inputs)


def index_copies(fields: Mapping[str, tuple[tuple[int, ...], torch.dtype]], rows: int, batch: int) -> Contender:
    """Copy a batch of some leaves, given by row shape and dtype, to random, different rows of bare tables."""
    leaves = {key: torch.ones(rows, *shape, dtype=dtype) for key, (shape, dtype) in fields.items()}
    fresh = {key: torch.zeros(batch, *shape, dtype=dtype) for key, (shape, dtype) in fields.items()}
    generator = torch.Generator().manual_seed(6)

    def inputs() -> tuple[Tensor]:
        for values in fresh.values():
            values.add_(1)
        return (torch.randperm(rows, generator=generator)[:batch],)

    def call(slots: Tensor) -> None:
        for key, leaf in leaves.items():
            leaf.index_copy_(0, slots, fresh[key])

    return Contender(call, inputs)


def fill_copies(workload: Workload, rows: int) -> Contender:
    """Copy the whole workload, leaf by leaf, into tables that are allocated for it."""
    data = workload.batch(0, rows)

    def call() -> dict[str, Tensor]:
        return {key: torch.empty_like(leaf).copy_(leaf) for key, leaf in data.items()}

    return Contender(call)


def _check(workload: Workload, batch: Mapping[str, Tensor]) -> None:
    workload.check(batch)
