"""Writers, a patch and a reader on streams of their own, all at once on few slots.

What holds is what the slot words make hold: a row that was read is one record as one writer left it, handles are never
given twice, and the numbers add up.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.ops.cases import Records, lay_out
from tests.simt.emulator import CSRC, Emulated, InProcess, KernelFault, Schedule, build, load
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_JOURNAL,
    CONTROL_LENGTH,
    CONTROL_LOCK,
    CONTROL_STAMP,
    CONTROL_WRITES,
    SLOT_BUSY,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
    STAMP_SHIFT,
    UPDATED,
)

SEEDS = {None: 40, "address": 4, "thread": 3}
PATCHED = 1000  # a patch's values begin here; those of whole records stay below
# What each leaf of a record is: every element the number of who wrote it.
SHORT = [(torch.int32, (37,)), (torch.int32, (9,))]
LONG = [(torch.uint8, (2053,)), (torch.int32, (9,))]  # a block a row


def filled(capacity: int, kind: str, leaves: list) -> Records:
    """Every slot holds a live record, number 0, of the first generation."""
    records = lay_out(leaves, capacity, kind)
    records.words.fill_(1 << SLOT_COUNT_SHIFT | SLOT_LIVE)
    records.stamps.copy_(torch.arange(capacity) << STAMP_SHIFT)
    records.control[CONTROL_LENGTH] = capacity
    records.control[CONTROL_STAMP] = capacity
    records.journal = torch.full((500,), -1)
    return records


def batch_of(records: Records, numbers: Tensor, chosen: tuple[int, ...] = (0, 1)) -> list[Tensor]:
    leaves = [records.leaves[leaf] for leaf in chosen]
    return [numbers[:, None].expand(-1, shape[0]).to(dtype).contiguous() for dtype, shape in leaves]


def race(kernels: Emulated, chance: random.Random, leaves: list, capacities: tuple[int, ...] = (1, 2, 5)) -> None:
    """One race, and all that must hold after it."""
    capacity = chance.choice(capacities)
    records = filled(capacity, chance.choice(("packed", "columns")), leaves)
    sizes = [chance.randint(1, 2 * capacity + 1) for _ in range(3)] + [
        chance.randint(1, capacity + 1) for _ in range(2)
    ]
    numbers = torch.arange(1, 1 + sum(sizes[:3])).split(sizes[:3])
    first, second, third = (batch_of(records, numbers[i]) for i in range(3))
    patch_values = batch_of(records, PATCHED + torch.arange(sizes[3]), (1,))

    def slots(num: int) -> Tensor:
        return torch.tensor([chance.randrange(capacity) for _ in range(num)])

    write_slots, patch_slots, read_slots = (slots(num) for num in sizes[2:])
    patch_generations = torch.tensor([chance.choice((0, 0, 1)) for _ in range(sizes[3])])
    unset = [torch.full((num,), -7) for num in (sizes[0], sizes[0], sizes[1], sizes[1], sizes[2], sizes[4])]
    status = torch.full((sizes[3],), 77, dtype=torch.uint8)
    read = batch_of(records, torch.full((sizes[4],), 77))
    strides = [table.stride(0) for table in records.tables]
    kernels.race(
        records.tables, strides, capacity, records.control, records.journal, 500, records.layout, sizes,
        first, unset[0], unset[1], second, unset[2], unset[3], third, write_slots, unset[4],
        patch_values, patch_slots, patch_generations, status, read, read_slots, unset[5],
    )  # fmt: skip

    written = [*zip(unset[0].tolist(), unset[1].tolist(), numbers[0].tolist(), strict=True)]
    written += zip(unset[2].tolist(), unset[3].tolist(), numbers[1].tolist(), strict=True)
    written += zip(write_slots.tolist(), unset[4].tolist(), numbers[2].tolist(), strict=True)
    records_by_handle = {(slot, 0): 0 for slot in range(capacity)}
    for slot, generation, number in written:
        assert (slot, generation) not in records_by_handle, "a handle was given twice"
        records_by_handle[slot, generation] = number
    patches: dict[tuple[int, int], set[int]] = {}
    updated = [i for i, what in enumerate(status.tolist()) if what == UPDATED]
    for i in updated:
        handle = int(patch_slots[i]), int(patch_generations[i])
        assert handle not in patches, "of rows that name one record, two were written"
        patches[handle] = {PATCHED + i}

    def assert_one_record(slot: int, generation: int, whole: Tensor, part: Tensor, patched: bool) -> None:
        number = records_by_handle[slot, generation]
        assert set(whole.tolist()) == {number % 256 if whole.dtype == torch.uint8 else number}
        patch = patches.get((slot, generation), set())
        assert set(part.tolist()) in ([patch] if patched and patch else [{number}, patch])

    for i, slot in enumerate(read_slots.tolist()):
        assert_one_record(slot, int(unset[5][i]), read[0][i], read[1][i], patched=False)
    assert not (records.words & SLOT_BUSY).any()
    for slot, generation in enumerate(records.generations.tolist()):
        times = sum(1 for handle in records_by_handle if handle[0] == slot)
        assert generation == times - 1
        assert_one_record(slot, generation, records.cells(0)[slot], records.cells(1)[slot], patched=True)

    control, num_written = records.control.tolist(), sum(sizes[:3])
    assert control[CONTROL_CURSOR] == sum(sizes[:2]) % capacity
    assert control[CONTROL_LENGTH] == capacity
    assert control[CONTROL_WRITES] == sum(sizes[:2])
    assert control[CONTROL_STAMP] == capacity + num_written
    assert control[CONTROL_LOCK] == 0
    assert control[CONTROL_JOURNAL] == num_written + len(updated)
    noted = sorted([*(slot for slot, _, _ in written), *patch_slots[updated].tolist()])
    assert sorted(records.journal[: control[CONTROL_JOURNAL]].tolist()) == noted


@pytest.mark.parametrize("leaves", [SHORT, LONG], ids=["lanes", "blocks"])
@pytest.mark.parametrize("sanitizer", [None, "address", "thread"])
def test_what_races_stays_whole(sanitizer, leaves):
    kernels = load("row_races", sanitizer)
    for seed in range(SEEDS[sanitizer]):
        kernels.schedule = Schedule("random", seed=seed, resident=3, preempt=True)
        few = sanitizer == "thread" and leaves is LONG  # there is room for some thousand threads
        race(kernels, random.Random(seed), leaves, (1,) if few else (1, 2, 5))


# name -> file, what stands there once, what is planted instead
BUGS = {
    "a reader that does not look again": (
        "slot_lock.cuh",
        "return load_relaxed(headers.stamp(slot)) == seen.stamp && load_relaxed(headers.word(slot)) == seen.word;",
        "return seen.word == seen.word + 0 * seen.stamp && headers.holds(slot);",
    ),
    "check, then act": (
        "slot_lock.cuh",
        "return compare_exchange(headers.word(slot), word, word | kBusy);",
        "if (load_acquire(headers.word(slot)) != word) return false;\n"
        "  store_release(headers.word(slot), word | kBusy);\n  return true;",
    ),
    "a lock of control that does not lock": (
        "control_lock.cuh",
        "while (exchange_acquire(&control_[kControlLock], int64_t{1}) != 0)",
        "if (exchange_acquire(&control_[kControlLock], int64_t{1}) != 0)",
    ),
    "a patch of a record that is not the one named": (
        "update_rows_if.cuh",
        "if (!word_holds(word, generation)) return kStale;",
        "if (!word_live(word)) return kStale + 0 * generation;",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name, tmp_path):
    file, old, new = BUGS[name]
    csrc = tmp_path / "csrc"
    for room in ("core", "cuda"):
        shutil.copytree(CSRC / room, csrc / room)
    path = csrc / "cuda" / file
    text = path.read_text()
    assert text.count(old) == 1, f"the line has moved on: {old}"
    path.write_text(text.replace(old, new))
    kernels = InProcess(build(Path(__file__).parent / "bind_row_races.cpp", csrc=csrc))

    def caught(seed: int) -> bool:
        kernels.schedule = Schedule("random", seed=seed, resident=3, preempt=True)
        try:
            race(kernels, random.Random(seed), SHORT)
        except (AssertionError, KeyError, KernelFault):
            return True
        return False

    assert any(caught(seed) for seed in range(200)), f"{name} went unseen"
