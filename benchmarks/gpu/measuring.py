"""Time on a device: contenders checked first, then timed in alternating blocks between two events.

A block is a run of calls that are enqueued without waiting, so a call costs what the slower of host and device needs
for it. Where the device alone is asked about, the calls of a block are one captured graph. On a CPU, where this is only
tried out, a clock stands in for the events, and a loop for the graph.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

OURS = "torchrb"
Call = Callable[[], Any]
_LAUNCHES = ("LaunchKernel", "GraphLaunch")
_COPIES = ("Memcpy", "Memset")
_WAITS = ("Synchronize", "cudaMemcpy ")


@dataclass(frozen=True)
class Goal:
    """``value`` of the results, which is within ``bound`` when it is no more (``at_least``: no less)."""

    text: str
    value: Callable[[Result], float | None]
    bound: float
    at_least: bool = False


@dataclass
class Case:
    """One row, made ready. ``check`` raises where a result is wrong. ``moved``: bytes read and written by a call.
    ``graphed``: only the device's time is asked for, and each contender's calls are captured.
    """

    ours: Call
    check: Callable[[], None]
    others: dict[str, Call] = field(default_factory=dict)
    moved: int | None = None
    graphed: bool = False
    counted: Call | None = None


@dataclass(frozen=True)
class Row:
    id: str
    title: str
    make: Callable[[torch.device], Case]
    goals: tuple[Goal, ...] = ()


@dataclass
class Result:
    """Microseconds a call by contender: median, quartiles. ``bandwidth``: torchrb's, as a share of a plain copy's."""

    row: Row
    us: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    bandwidth: float | None = None
    launches: int | None = None
    copies: int | None = None
    waits: int | None = None
    wrong: str | None = None

    @property
    def ours(self) -> float:
        return self.us[OURS][0]

    def faster_than(self, other: str) -> float | None:
        return self.us[other][0] / self.ours if other in self.us else None


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Call, times: int, device: torch.device) -> float:
    """What one of so many calls in a row takes."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(times):
            call()
        return (time.perf_counter() - start) / times
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(times):
        call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) * 1e-3 / times


def captured(call: Call, times: int, device: torch.device) -> Call:
    """So many calls as one graph."""
    if device.type != "cuda":

        def loop() -> None:
            for _ in range(times):
                call()

        return loop
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    kept = []
    with torch.cuda.graph(graph):
        for _ in range(times):
            kept.append(call())  # so that no call's results lie where those of another do
    graph.kept = kept
    return graph.replay


def measure(contenders: Mapping[str, Call], device: torch.device, blocks: int, block_s: float, graphed: int = 0) -> Any:
    """Microseconds by contender, from so many blocks of about ``block_s`` each, their order shuffled."""
    calls, per = dict(contenders), 1
    if graphed:
        calls, per = {name: captured(call, graphed, device) for name, call in contenders.items()}, graphed
    times = {}
    for name, call in calls.items():
        for _ in range(2):
            call()
        wait(device)
        times[name] = max(1, min(200, int(block_s / max(seconds(call, 1, device), 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in calls}
    order, shuffler = list(calls), random.Random(0)
    for _ in range(blocks):
        shuffler.shuffle(order)
        for name in order:
            wait(device)
            taken[name].append(seconds(calls[name], times[name], device) / per * 1e6)
    out = {}
    for name, values in taken.items():
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        out[name] = (median, low, high)
    return out


def copy_bandwidth(device: torch.device, nbytes: int, blocks: int = 15) -> float:
    """Bytes read plus written a second by a plain copy of so many bytes."""
    source = torch.arange(nbytes // 8, device=device)
    target = torch.empty_like(source)
    us = measure({"copy": lambda: target.copy_(source)}, device, blocks, 0.01)["copy"][0]
    return 2 * nbytes / us * 1e6


def traffic(call: Call, device: torch.device) -> tuple[int, int, int] | None:
    """Launches, copies and waits of the host in one call; None where there is no device to ask."""
    if device.type != "cuda":
        return None
    from torch.profiler import ProfilerActivity, profile, record_function

    call()
    wait(device)
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        with record_function("the call"):
            call()
        wait(device)
    events = profiler.events()
    on_host = torch.autograd.DeviceType.CPU
    span = next(event.time_range for event in events if event.name == "the call" and event.device_type == on_host)
    names = [
        event.name
        for event in events
        if event.name.startswith("cu") and span.start <= event.time_range.start <= span.end
    ]

    def count(parts: tuple[str, ...]) -> int:
        return sum(any(part in f"{name} " for part in parts) for name in names)

    return count(_LAUNCHES), count(_COPIES), count(_WAITS)


def run(row: Row, device: torch.device, bandwidth: float, blocks: int, block_s: float) -> Result:
    """Check a row, count, and time it."""
    result = Result(row)
    try:
        case = row.make(device)
        case.check()
        wait(device)
        with refusing_waits(device):  # what waits now is reported as wrong, not timed
            (case.counted or case.ours)()
        counts = traffic(case.counted or case.ours, device)
        if counts is not None:
            result.launches, result.copies, result.waits = counts
        calls = {OURS: case.ours, **case.others}
        result.us = measure(calls, device, blocks, block_s, graphed=16 if case.graphed else 0)
    except Exception as error:
        result.wrong = f"{type(error).__name__}: {error}"
        return result
    if case.moved is not None:
        result.bandwidth = case.moved / (result.ours * 1e-6) / bandwidth
    return result


def refusing_waits(device: torch.device) -> Any:
    """Torch raises where the host would wait for the device."""
    if device.type != "cuda":
        return nullcontext()

    class Refusing:
        def __enter__(self) -> None:
            torch.cuda.set_sync_debug_mode("error")

        def __exit__(self, *_: object) -> None:
            torch.cuda.set_sync_debug_mode("default")

    return Refusing()
