"""What a second thread gives, within one large call."""

from __future__ import annotations

from benchmarks.buffers import ours_filled
from benchmarks.harness import Contender, Goal, Row
from benchmarks.paths.row_movement import extending, sampling
from benchmarks.workloads import W2, Scale

_ONE = "one thread"


def _with_threads(contender: Contender, threads: int) -> Contender:
    contender.threads = threads
    return contender


def rows(scale: Scale) -> list[Row]:
    """The rows of this path."""
    count, size = scale.wide_batch, scale.w2
    goal = Goal(f"≥ 1.4x {_ONE}", ("native", _ONE), lambda m: m[_ONE] / m["native"], 1.4, True)

    def reading(threads: int) -> Contender:
        return _with_threads(sampling(W2, ours_filled(W2, size), count), threads)

    def writing(threads: int) -> Contender:
        return _with_threads(extending(W2, ours_filled(W2, size), count), threads)

    return [
        Row(
            f"threads/{name}",
            f"W2 ({size:,} rows), two threads: {call}({count:,})",
            ours=lambda act=act: act(2),
            beside={_ONE: lambda act=act: act(1)},
            goals=[goal],
        )
        for name, call, act in (("read", "sample", reading), ("write", "extend", writing))
    ]
