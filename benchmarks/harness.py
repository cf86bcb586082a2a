"""One measurement: contenders checked first, then timed in alternation.

Every call of every contender works on something new: its slots or indices move on with each call, along a stream of
its own, so that no contender reads what it (or the one before it) has just brought into the cache. What a call needs is
made outside the timed part; what it returns is thrown away outside as well.

A slow contender is called less often than a fast one, and its calls are spread over the whole measurement. The order
within a round is shuffled, so that nobody always runs behind the same neighbour. A contender in another process has its
calls in a few bursts: to switch processes before every other call would slow down whoever comes next. The garbage
collector waits.
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

OURS = "native"
REFERENCE = "reference"
_FEWEST_CALLS = 3
_BURSTS = 4


class Timed(Protocol):
    """What the harness asks of a contender, in this process or in another one (then it is ``apart``)."""

    apart: bool

    def result(self) -> Any:
        """Call it once, raise where what it returns is wrong, and return what is to be compared."""

    def timed(self) -> float:
        """Call it once; returns seconds."""


@dataclass
class Contender:
    """``call(*inputs())`` is one call; only ``call`` is timed, with so many ``threads``.

    ``check(result)`` raises where a result is wrong, and returns what other contenders are compared with. A contender
    that is too slow for the whole work does a part of it, and its time counts ``times``; its name says so. With
    ``block`` that many calls are timed at once and share the time: for what is too short to be looked at alone.
    """

    call: Callable[..., Any]
    inputs: Callable[[], tuple] = tuple
    check: Callable[[Any], Any] = lambda result: result
    threads: int = 1
    times: int = 1
    block: int = 1
    apart: bool = False

    def result(self) -> Any:
        torch.set_num_threads(self.threads)
        return self.check(self.call(*self.inputs()))

    def timed(self) -> float:
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        if self.block > 1:
            return self._timed_block()
        inputs = self.inputs()
        start = time.perf_counter_ns()
        result = self.call(*inputs)
        elapsed = time.perf_counter_ns() - start
        del result
        return elapsed * 1e-9 * self.times

    def _timed_block(self) -> float:
        call, inputs = self.call, [self.inputs() for _ in range(self.block)]
        start = time.perf_counter_ns()
        for arguments in inputs:
            call(*arguments)
        return (time.perf_counter_ns() - start) * 1e-9 * self.times / self.block


@dataclass(frozen=True)
class Goal:
    """A bound on a number made of medians (seconds, by contender). ``needs``: the contenders it speaks of."""

    text: str
    needs: tuple[str, ...]
    value: Callable[[Mapping[str, float]], float]
    bound: float
    at_least: bool

    def judge(self, medians: Mapping[str, float]) -> tuple[float, bool] | None:
        """The number and whether it is within the bound; None where a contender was not there."""
        if any(name not in medians for name in self.needs):
            return None
        value = self.value(medians)
        return value, value >= self.bound if self.at_least else value <= self.bound


def faster_than(other: str, times: float, ours: str = OURS) -> Goal:
    """At most 1/``times`` of the time that ``other`` takes."""
    text = f"≥ {times:g}x {other}" if times != 1 else f"ahead of {other}"
    return Goal(text, (ours, other), lambda m: m[other] / m[ours], times, True)


def within(other: str | tuple[str, ...], times: float, ours: str = OURS) -> Goal:
    """At most ``times`` what ``other`` takes, or several others one after the other."""
    others = (other,) if isinstance(other, str) else other
    text = f"≤ {times:g}x {' + '.join(others)}"
    return Goal(text, (ours, *others), lambda m: m[ours] / sum(m[name] for name in others), times, False)


def under(milliseconds: float, ours: str = OURS) -> Goal:
    """At most so many milliseconds."""
    return Goal(f"≤ {milliseconds:g} ms", (ours,), lambda m: m[ours] * 1e3, milliseconds, False)


@dataclass(frozen=True)
class Row:
    """A row of the table. Contenders are made when the row is measured, by the functions given here.

    ``ours`` makes torchrb's contender in whatever process it is called, and so serves for both of its paths, whose
    results must be the very same, bit by bit. ``beside``: torchrb again, under other conditions. ``peers_agree``: the
    peers must return the same, too; otherwise each result is held against what was written. ``goals`` are judged on the
    native path. ``at_most`` calls of each contender; default: the scale's.
    """

    id: str
    title: str
    ours: Callable[[], Contender]
    peers: Mapping[str, Callable[[], Contender]] = field(default_factory=dict)
    limits: Mapping[str, Callable[[], Contender]] = field(default_factory=dict)
    beside: Mapping[str, Callable[[], Contender]] = field(default_factory=dict)
    goals: Sequence[Goal] = ()
    peers_agree: bool = False
    at_most: int | None = None


@dataclass(frozen=True)
class Timing:
    """Seconds: median and quartiles of ``calls`` calls."""

    median: float
    low: float
    high: float
    calls: int

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
        return cls(median, low, high, len(seconds))


def measure(contenders: Mapping[str, Timed], repeats: int, budget_s: float) -> dict[str, Timing]:
    """Time contenders that were checked: ``repeats`` calls each, fewer where they would take more than ``budget_s``."""
    calls: dict[str, int] = {}
    for name, contender in contenders.items():
        expected = contender.timed()
        if expected < budget_s / 8:
            expected = min(expected, contender.timed())
        calls[name] = max(_FEWEST_CALLS, min(repeats, int(budget_s / max(expected, 1e-9))))

    rounds = max(calls.values())
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    order, shuffler = list(contenders), random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for turn in range(rounds):
            shuffler.shuffle(order)
            for name in order:
                # Its share of the calls at the end of this turn, or of this burst.
                parts = min(_BURSTS, rounds) if contenders[name].apart else rounds
                due = calls[name] * ((turn + 1) * parts // rounds) // parts
                while len(seconds[name]) < due:
                    seconds[name].append(contenders[name].timed())
    finally:
        gc.enable()
    return {name: Timing.of(taken) for name, taken in seconds.items()}


def exponent(rows: Sequence[int], seconds: Sequence[float]) -> float:
    """The slope of log(time) over log(rows), least squares: 0 where the cost does not grow, 1 where it is linear."""
    return statistics.linear_regression([math.log(n) for n in rows], [math.log(s) for s in seconds]).slope
