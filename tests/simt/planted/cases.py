"""The planted kernels: what each is given, what it must come to when sound, and where its bug shows.

A bug shows as a fault (a report with the given words in it) or as a wrong result, in the modes named, within so many
seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

ALL = ("plain", "address", "thread")
GRID = 4
RACE = "ThreadSanitizer: data race"


@dataclass(frozen=True)
class Planted:
    arguments: Callable[[], list[Any]]
    is_right: Callable[[list[Any]], bool]
    shows: dict[str, str]  # mode -> words of the report, or "" for a wrong result


def _ints(n: int) -> Tensor:
    return torch.arange(1, n + 1, dtype=torch.int32)


def _zeros(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int32)


def _turns(block: int, width: int) -> tuple[Callable[[], list[Any]], Callable[[list[Any]], bool]]:
    def is_right(arguments: list[Any]) -> bool:
        values, turned = arguments[2:]
        return torch.equal(values.view(-1, width).flip(1), turned.view(-1, width))

    return lambda: [GRID, block, _ints(GRID * block), _zeros(GRID * block)], is_right


def _sums() -> list[Any]:
    return [GRID, 32, _ints(GRID * 32), _zeros(GRID), _zeros(1), _zeros(1)]


def _is_sum(arguments: list[Any]) -> bool:
    return arguments[-1].item() == arguments[2].sum().item()


def _rows_whole(arguments: list[Any]) -> bool:
    read = arguments[-1]
    return bool((read == read[:, :1]).all())


RACES = {
    "missing_syncthreads": Planted(*_turns(256, 256), {"plain": "", "thread": RACE}),
    "missing_syncwarp": Planted(*_turns(64, 32), {"plain": "", "thread": RACE}),
    "shuffle_as_barrier": Planted(*_turns(64, 32), {"thread": RACE}),
    "missing_fence": Planted(_sums, _is_sum, {"thread": RACE}),
    "missing_fence_of_the_reader": Planted(_sums, _is_sum, {"thread": RACE}),
    "plain_counter": Planted(lambda: [GRID, 2, _zeros(1)], lambda a: a[2].item() == GRID, {"thread": RACE}),
    "check_then_act": Planted(
        lambda: [GRID, 8, _zeros(8), _zeros(8)], lambda a: bool((a[3] == 1).all()), {"plain": "", "thread": ""}
    ),
    "lock_given_back_too_early": Planted(
        lambda: [GRID, 2, _zeros(1), _zeros(1)], lambda a: a[3].item() == GRID, {"thread": RACE}
    ),
    "torn_read": Planted(
        lambda: [3, _zeros(1), torch.zeros(8, dtype=torch.int64), torch.zeros(3, 8, dtype=torch.int64)],
        _rows_whole,
        {"plain": "", "thread": ""},
    ),
    "wrong_stream": Planted(
        lambda: [64, _zeros(64), _zeros(64)],
        lambda a: a[2].tolist() == [*range(126, -1, -2)],
        {"plain": "", "thread": RACE},
    ),
}
FAULTS = {
    "shared_out_of_bounds": Planted(
        lambda: [40, _ints(40), _zeros(40)],
        lambda a: torch.equal(a[1], a[2]),
        {"plain": "past the end of the piece", "address": "use-after-poison"},
    ),
    "misaligned_copy": Planted(
        lambda: [4, torch.arange(84, dtype=torch.uint8), torch.zeros(84, dtype=torch.uint8), 21],
        lambda a: torch.equal(a[1], a[2]),
        {"address": "misaligned address"},
    ),
    "global_out_of_bounds": Planted(
        lambda: [64, _ints(40), _zeros(40), 40],
        lambda a: torch.equal(a[1], a[2]),
        {"address": "heap-buffer-overflow"},
    ),
    "carved_too_much": Planted(
        lambda: [32, _zeros(32)], lambda a: bool((a[1] == 1).all()), dict.fromkeys(ALL, "the pieces taken come to")
    ),
    "divergent_barrier": Planted(
        lambda: [40, _zeros(40)], lambda a: bool((a[1] == 1).all()), dict.fromkeys(ALL, "a divergent barrier")
    ),
    "not_in_the_mask": Planted(
        lambda: [32, _zeros(32)],
        lambda a: a[1].tolist() == [0x55555555, 0] * 16,
        dict.fromkeys(ALL, "is not one of them"),
    ),
    "lanes_that_never_come": Planted(
        lambda: [32, _zeros(32)], lambda a: bool((a[1] == 1).all()), dict.fromkeys(ALL, "deadlock in block 0")
    ),
    "reads_a_lane_that_left": Planted(
        lambda: [32, _zeros(1), 20], lambda a: a[1].item() == 190, dict.fromkeys(ALL, "or has left the kernel")
    ),
    "naps_for_ever": Planted(lambda: [2, _zeros(1)], lambda a: a[1].item() == 1, dict.fromkeys(ALL, "does not come")),
}
