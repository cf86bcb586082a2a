"""Rows in and out: uniform samples, writes, and samples that carry generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

import torchrb
from benchmarks import limits
from benchmarks.buffers import (
    Filled,
    arrays,
    available,
    cpprb,
    ours_filled,
    tensors,
    torchrl_filled,
)
from benchmarks.harness import Contender, Row, faster_than, within
from benchmarks.workloads import GROUP_DRAW, W1, W2, W3, Ring, Scale, Workload


def sampling(workload: Workload, full: Filled, count: int, *, generations: bool = False) -> Contender:
    """Draw uniformly. Every row must be a record that was written, where its index says."""

    def check(batch: Any) -> Any:
        numbers = workload.check(batch, full.ring.live)
        if numbers.shape != (count,):
            raise AssertionError(f"expected {count} rows, got {numbers.shape}")
        if generations and not bool(
            (batch["index"].view(-1) == numbers).all() and (batch["index_generation"] == 0).all()
        ):
            raise AssertionError("index or generation do not belong to the row")
        return batch

    return Contender(lambda: full.buffer.sample(count), check=check)


def extending(workload: Workload, full: Filled, count: int = GROUP_DRAW) -> Contender:
    """Write the next batch over the oldest rows. The rows must then be where the index says."""
    full.ring.batch = count
    last: list[Any] = []

    def inputs() -> tuple:
        last[:] = [full.ring.next()]
        return (last[0],)

    def check(index: Tensor) -> Tensor:
        for key, values in full.buffer[index].items():
            if key in last[0].keys() and not bool((values == last[0][key]).all()):
                raise AssertionError(f"field {key!r} is not what was written")
        return index

    return Contender(full.buffer.extend, inputs, check)


def _cpprb_sampling(rows: int) -> Contender:
    buffer = cpprb(W1, rows)

    def check(batch: Mapping[str, Any]) -> None:
        W1.check(tensors(batch), range(rows))

    return Contender(lambda: buffer.sample(GROUP_DRAW), check=check)


def _cpprb_extending(rows: int) -> Contender:
    buffer, ring = cpprb(W1, rows), Ring(W1, rows)

    def check(_: Any) -> None:
        W1.check(tensors(buffer.get_all_transitions()), ring.live)

    return Contender(lambda batch: buffer.add(**batch), lambda: (arrays(ring.next()),), check)


def _in_a_file(row_id: str, workload: Workload, rows: int) -> Row:
    """Records in a file, which the system keeps in memory as long as there is room, beside those in memory."""

    def drawing(storage: type) -> Contender:
        return sampling(workload, ours_filled(workload, rows, storage=storage), GROUP_DRAW)

    return Row(
        row_id,
        f"{workload.name} ({rows:,} rows): uniform sample(512) from a LazyMemmapStorage, cached",
        ours=lambda: drawing(torchrb.LazyMemmapStorage),
        beside={"in memory": lambda: drawing(torchrb.LazyTensorStorage)},
        goals=[within("in memory", 1.25)],
    )


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    count = scale.sample_rows
    w1 = f"W1 ({scale.w1:,} rows)"
    peers = [name for name in available({"torchrl": None, "cpprb": None})]
    return [
        Row(
            "w1/sample",
            f"{w1}: uniform sample(512)",
            ours=lambda: sampling(W1, ours_filled(W1, scale.w1), GROUP_DRAW),
            peers=available(
                {
                    "torchrl": lambda: sampling(W1, torchrl_filled(W1, scale.w1), GROUP_DRAW),
                    "cpprb": lambda: _cpprb_sampling(scale.w1),
                }
            ),
            limits={
                "index_select": lambda: limits.index_select(
                    W1, scale.w1, limits.uniform_index(scale.w1, GROUP_DRAW, 4)
                ),
                "memcpy": lambda: limits.memcpy_read(W1, scale.w1, GROUP_DRAW),
            },
            goals=[within("index_select", 0.8), *(faster_than(name, 1) for name in peers)],
        ),
        Row(
            "w1/extend",
            f"{w1}: extend(512)",
            ours=lambda: extending(W1, ours_filled(W1, scale.w1)),
            peers=available(
                {
                    "torchrl": lambda: extending(W1, torchrl_filled(W1, scale.w1)),
                    "cpprb": lambda: _cpprb_extending(scale.w1),
                }
            ),
            limits={
                "slice copies": lambda: limits.slice_copies(W1, scale.w1, GROUP_DRAW),
                "memcpy": lambda: limits.memcpy_write(W1, scale.w1, GROUP_DRAW),
            },
            goals=[within("slice copies", 1.2), *(faster_than(name, 1) for name in peers)],
        ),
        Row(
            "w3/sample",
            f"W3 ({scale.w3:,} rows): TensorDictReplayBuffer.sample({count:,}) with generations",
            ours=lambda: sampling(W3, ours_filled(W3, scale.w3, generations=True), count, generations=True),
            peers=available(
                {
                    "torchrl": lambda: sampling(
                        W3, torchrl_filled(W3, scale.w3, generations=True), count, generations=True
                    )
                }
            ),
            limits={"memcpy": lambda: limits.memcpy_read(W3, scale.w3, count)},
            goals=[within("memcpy", 2.5), faster_than("torchrl", 12)],
        ),
        _in_a_file("w1/sample_memmap", W1, scale.w1),
        _in_a_file("w2/sample_memmap", W2, scale.w2),
    ]
