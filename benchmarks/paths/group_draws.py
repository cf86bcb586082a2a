"""Drawing 64 groups of 8: with nothing written since the last draw, after a write, and after filling a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from benchmarks import limits
from benchmarks.buffers import Filled, available, ours, ours_filled, torchrl, torchrl_filled
from benchmarks.harness import Contender, Row, faster_than, within
from benchmarks.workloads import GROUP_DRAW, GROUP_SIZE, GROUPS, W1, W2, Scale, Workload

STRATEGIES = ("random", "recency", "reward", "variance")


def check_groups(workload: Workload, batch: Mapping[str, Tensor], live: range) -> None:
    """Raise unless the batch is 64 different groups, group after group, each with its 8 different records.

    A stored group has exactly 8 records, so any strategy must give them all; in which order is the strategy's.
    """
    numbers = workload.check(batch, live).view(GROUPS, GROUP_SIZE)
    groups = numbers // GROUP_SIZE
    if not bool((groups == groups[:, :1]).all()):
        raise AssertionError(f"{workload.name}: a group is mixed with another one")
    if groups[:, 0].unique().numel() != GROUPS:
        raise AssertionError(f"{workload.name}: a group was drawn twice")
    if not bool((numbers.sort(dim=1).values.diff(dim=1) == 1).all()):
        raise AssertionError(f"{workload.name}: a record was drawn twice")


def drawing(workload: Workload, full: Filled) -> Contender:
    """Draw; nothing is written in between."""

    def check(batch: Any) -> Any:
        check_groups(workload, batch, full.ring.live)
        return batch

    return Contender(lambda: full.buffer.sample(GROUP_DRAW), check=check)


def writing_and_drawing(workload: Workload, full: Filled) -> Contender:
    """Extend by 512 rows, then draw."""

    def call(batch: Any) -> Any:
        full.buffer.extend(batch)
        return full.buffer.sample(GROUP_DRAW)

    def check(batch: Any) -> Any:
        check_groups(workload, batch, full.ring.live)
        return batch

    return Contender(call, lambda: (full.ring.next(),), check)


def _filling(make: Callable[[], Any], rows: int) -> Contender:
    """Extend an empty buffer by all rows at once, then draw."""
    data = W2.batch(0, rows)

    def call(buffer: Any) -> Any:
        buffer.extend(data)
        return buffer.sample(GROUP_DRAW)

    def check(batch: Any) -> Any:
        check_groups(W2, batch, range(rows))
        return batch

    return Contender(call, lambda: (make(),), check)


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    small = f"{scale.w2_small:,} rows"
    w1, w2 = f"W1 ({scale.w1:,} rows)", f"W2 ({scale.w2:,} rows)"

    def pair(act: Callable, workload: Workload, size: int, strategy: str) -> dict[str, Any]:
        return {
            "ours": lambda: act(workload, ours_filled(workload, size, strategy=strategy)),
            "peers": available({"torchrl": lambda: act(workload, torchrl_filled(workload, size, strategy=strategy))}),
        }

    def grouped(seed: int) -> Callable[[], Tensor]:
        return limits.group_index(scale.w1, GROUPS, seed)

    table = [
        Row(
            f"w2/draw/{strategy}",
            f"{w2}: group draw, {strategy}, nothing written since",
            **pair(drawing, W2, scale.w2, strategy),
            goals=[faster_than("torchrl", 60 if strategy == "variance" else 20)],
        )
        for strategy in STRATEGIES
    ]
    table += [
        Row(
            f"w2/extend+draw/{strategy}",
            f"{w2}: extend(512) + group draw, {strategy}",
            **pair(writing_and_drawing, W2, scale.w2, strategy),
            beside={
                small: lambda strategy=strategy: writing_and_drawing(
                    W2, ours_filled(W2, scale.w2_small, strategy=strategy)
                )
            },
            goals=[faster_than("torchrl", 2000), within(small, 4)],
        )
        for strategy in STRATEGIES
    ]
    return [
        *table,
        Row(
            "w2/fill+draw/recency",
            f"W2: fill {scale.w2:,} rows, then one group draw, recency",
            ours=lambda: _filling(lambda: ours(scale.w2, strategy="recency"), scale.w2),
            peers=available({"torchrl": lambda: _filling(lambda: torchrl(scale.w2, strategy="recency"), scale.w2)}),
            limits={"bare copies": lambda: limits.fill_copies(W2, scale.w2)},
            goals=[within("bare copies", 2)],
            at_most=9,
        ),
        Row(
            "w1/draw/reward",
            f"{w1}: group draw, reward, nothing written since",
            **pair(drawing, W1, scale.w1, "reward"),
            limits={
                "index_select": lambda: limits.index_select(W1, scale.w1, grouped(2)),
                "memcpy": lambda: limits.memcpy_read(W1, scale.w1, GROUP_DRAW),
            },
            goals=[within("index_select", 0.8), within("memcpy", 2)],
        ),
        Row(
            "w1/extend+draw/reward",
            f"{w1}: extend(512) + group draw, reward",
            **pair(writing_and_drawing, W1, scale.w1, "reward"),
            limits={
                "index_select": lambda: limits.index_select(W1, scale.w1, grouped(3)),
                "slice copies": lambda: limits.slice_copies(W1, scale.w1, GROUP_DRAW),
            },
            goals=[faster_than("torchrl", 30)],
        ),
    ]
