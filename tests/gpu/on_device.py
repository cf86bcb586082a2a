"""Calls on a device beside the same calls on the CPU's plain twins, and calls that may not wait."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.ops.cases import Index, Records, as_bytes, op
from torchrb.ops import reference
from torchrb.ops.schemas import group_links_size


def on(x: Any, device: torch.device) -> Any:
    """Copies of all tensors in an argument list, on a device."""
    if isinstance(x, Tensor):  # as bytes: a copy of bools makes them 0 or 1
        return (
            x.to(device)
            if not x.numel()
            else x.contiguous().view(-1).view(torch.uint8).to(device, copy=True).view(x.dtype).view(x.shape)
        )
    if isinstance(x, list | tuple):
        return type(x)(on(part, device) for part in x)
    return copy.deepcopy(x)


def assert_like_twin(name: str, args: tuple, device: torch.device) -> None:
    """The op on the device returns what the twin returns on the CPU, and leaves every argument as the twin does."""
    there, here = on(args, device), on(args, torch.device("cpu"))
    got, expected = op(name)(*there), getattr(reference, name)(*here)
    assert as_bytes(on(got, torch.device("cpu"))) == as_bytes(expected)
    assert as_bytes(on(there, torch.device("cpu"))) == as_bytes(here)


class DeviceIndex(Index):
    """A group index over a copy of a storage on a device. `follow` brings the copy to the storage's present."""

    def __init__(self, records: Records, key: int, device: torch.device) -> None:
        self.original, self.device = records, device
        super().__init__(self._copied(), key)
        self.template, self.keys, self.state = (on(x, device) for x in (self.template, self.keys, self.state))
        self.links = torch.zeros(group_links_size(records.capacity, device.type), dtype=torch.int32, device=device)

    def _copied(self) -> Records:
        records = self.original
        tables, control, journal = (on(x, self.device) for x in (records.tables, records.control, records.journal))
        return Records(tables, control, journal, records.layout, records.leaves)

    def follow(self) -> None:
        self.records = self._copied()

    def catch_up(self, always: bool = False) -> list[int]:
        self.follow()
        return super().catch_up(always)

    def sample_args(self, *args: Any) -> tuple:
        return on(super().sample_args(*args), self.device)


def chances(block: int, count: int = 40) -> Iterator[random.Random]:
    for case in range(count):
        yield random.Random(block * count + case)


@contextmanager
def without_waiting(device: torch.device) -> Iterator[None]:
    """On a GPU, torch raises inside wherever the host would wait for it."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def replayed(step: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """``step`` as something to be replayed, and what it returned: on a GPU a captured graph, whose results lie where
    they lay when it was captured. It has been called twice before. On a CPU each replay calls it, and the results are
    copied to where the first ones are.
    """
    if device.type != "cuda":
        step()
        step()
        kept = step()

        def replay() -> None:
            for mine, new in zip(tensors_of(kept), tensors_of(step()), strict=True):
                mine.copy_(new)

        return replay, kept
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        step()
        step()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = step()
    graph.replay()
    return graph.replay, kept


def tensors_of(results: Any) -> list[Tensor]:
    """The tensors in (nested) dicts, tensordicts and tuples, in order."""
    if isinstance(results, Tensor):
        return [results]
    if hasattr(results, "items"):
        return [tensor for _, value in sorted(results.items()) for tensor in tensors_of(value)]
    if isinstance(results, list | tuple):
        return [tensor for value in results for tensor in tensors_of(value)]
    return []
