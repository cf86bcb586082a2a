"""The emulator itself: what an intrinsic answers, in every mode, is what CUDA's guide says it does."""

from __future__ import annotations

import functools
import operator

import pytest
import torch

WARP = 32
SHUFFLES = ("shuffle", "up", "down", "xor")
OPS = (*SHUFFLES, "ballot", "any", "all", "match_any", "match_all", "add", "min", "max", "and", "or")


def source_of(op: str, lane: int, argument: int, width: int) -> int:
    """The lane that a shuffle reads: its own where the other is outside of its segment."""
    start = lane // width * width
    other = {
        "shuffle": start + argument % width,
        "up": lane - argument,
        "down": lane + argument,
        "xor": lane ^ argument,
    }[op]
    inside = {"shuffle": True, "up": other >= start, "down": other < start + width, "xor": other < start + width}[op]
    return other if inside else lane


def answer_of(op: str, lane: int, lanes: dict[int, int], argument: int, width: int) -> int:
    """What `lane` gets when `lanes` (lane -> value) come together."""
    values = list(lanes.values())
    votes = sum(1 << other for other, value in lanes.items() if value > argument)
    everybody = sum(1 << other for other in lanes)
    if op in SHUFFLES:
        return lanes[source_of(op, lane, argument, width)]
    if op == "match_any":
        return sum(1 << other for other, value in lanes.items() if value == lanes[lane])
    return {
        "ballot": votes,
        "any": int(votes != 0),
        "all": int(votes == everybody),
        "match_all": everybody if votes in (0, everybody) else -1,
        "add": sum(values),
        "min": min(values),
        "max": max(values),
        "and": functools.reduce(operator.and_, (value % 2**32 for value in values)),
        "or": functools.reduce(operator.or_, (value % 2**32 for value in values)),
    }[op]


@pytest.mark.parametrize("op", OPS)
def test_a_warp_collective_answers_each_lane(emulated, op):
    launch = emulated("intrinsics").warp
    for block in (1, 20, 32, 33, 96):
        for width in (32, 8) if op in SHUFFLES else (32,):
            for argument in (0, 1, 3):
                # Every lane a shuffle reads has to be there: the other operations also get half of the lanes.
                masks = (0xFFFFFFFF,) if op in SHUFFLES else (0xFFFFFFFF, 0x55555555, 0x0000FFFF)
                if op in SHUFFLES and block % WARP:
                    continue
                for mask in masks:
                    values = torch.randint(-2, 5, (block,), dtype=torch.int32)
                    answers = torch.full((block,), 77)
                    launch(OPS.index(op), mask, argument, width, block, values, answers)
                    expected = torch.full((block,), 77)
                    for warp in range(0, block, WARP):
                        in_warp = values[warp : warp + WARP].tolist()
                        lanes = {lane: value for lane, value in enumerate(in_warp) if mask >> lane & 1}
                        for lane in lanes:
                            expected[warp + lane] = answer_of(op, lane, lanes, argument, width)
                    assert torch.equal(answers, expected), (block, width, argument, hex(mask))


def test_a_block_scans_and_votes(emulated):
    launch = emulated("intrinsics").block
    for block in (1, 31, 32, 33, 200):
        for least in (-3, 1, -9):
            grid = 3
            values = torch.randint(least, least + 9, (grid, block), dtype=torch.int32)
            scanned, votes = torch.zeros_like(values), torch.zeros(grid, 3, dtype=torch.int32)
            launch(grid, block, values, scanned, votes)
            positive = values > 0
            assert torch.equal(scanned, values.cumsum(1, dtype=torch.int32))
            counted = torch.stack([positive.sum(1), positive.all(1), positive.any(1)], 1)
            assert torch.equal(votes, counted.int())


@pytest.mark.parametrize("bits", [32, 64])
def test_no_atomic_is_lost(emulated, bits):
    grid, block = 3, 70
    words = torch.zeros(8 + block, dtype=torch.int32 if bits == 32 else torch.int64)
    words[2] = 1000
    words[4] = -1
    getattr(emulated("intrinsics"), f"atomics{bits}")(grid, block, words)
    total = grid * block * (block + 1) // 2
    mine = range(1, block + 1)
    expected = [
        total,
        block,
        1,
        2**31 - 1,
        -(2**31),
        functools.reduce(operator.xor, mine),
        total,
        total * 2 // 3,
        *mine,
    ]
    assert words.tolist() == expected


def test_a_thread_knows_its_place(emulated):
    seen, bits = torch.zeros(3 * 33, dtype=torch.int32), torch.zeros(4, dtype=torch.int64)
    emulated("intrinsics").indices(3, 33, seen, bits)
    assert seen.tolist() == list(range(99, 0, -1))
    assert bits.tolist() == [31 + 32 + 63, 8 + 64 + 0 + 4 + 41, 2**31, 3]
