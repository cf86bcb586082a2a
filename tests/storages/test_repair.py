"""After a repair every slot below the length holds a whole record, whatever a killed process left behind."""

from __future__ import annotations

import random

import pytest
import torch

from tests.spec.builders import numbers_of
from tests.spec.processes import STORAGES, records
from torchrb import LazyTensorStorage
from torchrb.generations import words_of
from torchrb.journal import JournalReader
from torchrb.ops.schemas import (
    CONTROL_CURSOR,
    CONTROL_LENGTH,
    CONTROL_LOCK,
    SLOT_BUSY,
    SLOT_COUNT_SHIFT,
    SLOT_LIVE,
)
from torchrb.storages.repair import repair

CAPACITY = 12


def handles(storage) -> dict[tuple[int, int], int]:
    """What each live handle names."""
    slots = torch.nonzero((words_of(storage.tables) & SLOT_LIVE) != 0).view(-1)
    batch, generations = storage.read(slots)
    return dict(zip(zip(slots.tolist(), generations.tolist(), strict=True), numbers_of(batch), strict=True))


def leave_half_done(storage, rng: random.Random) -> set[int]:
    """As a kill would: a call claimed slots and stamps, some rows are done, some torn, some not begun, nothing is
    published. Returns the slots of torn rows.
    """
    words, control = words_of(storage.tables), storage.control
    torn = set(rng.sample(range(CAPACITY), rng.randrange(4)))
    length = int(control[CONTROL_LENGTH])
    done = [slot for slot in range(CAPACITY) if slot not in torn and rng.random() < 0.3]
    if done:
        storage.write(torch.tensor(done), records([100 + slot for slot in done]))
    for slot in torn:
        words[slot] |= SLOT_BUSY
        for number, table in enumerate(storage.tables):
            table[slot, (16 if number == 0 else 0) :] = 171
    control[CONTROL_LENGTH] = length
    control[CONTROL_CURSOR] = rng.randrange(CAPACITY)
    control[CONTROL_LOCK] = 1
    return torn


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("kind", STORAGES)
def test_records_that_were_whole_stay_and_the_others_go(kind, seed):
    rng = random.Random(seed)
    storage, reader = STORAGES[kind](CAPACITY), JournalReader()
    storage.append(records(range(rng.randrange(1, 2 * CAPACITY))))
    reader.catch_up(storage.control, storage.journal)
    before = handles(storage)
    torn = leave_half_done(storage, rng)
    words = words_of(storage.tables)
    whole = torch.nonzero(((words & SLOT_LIVE) != 0) & ((words & SLOT_BUSY) == 0)).view(-1)
    expected = sorted(numbers_of(storage.read(whole)[0]))
    assert repair(storage.tables, storage.control, storage.journal) == len(torn)

    num = len(storage)
    live = (words_of(storage.tables) & (SLOT_LIVE | SLOT_BUSY)).tolist()
    assert live == [SLOT_LIVE] * num + [0] * (CAPACITY - num)
    after = handles(storage)
    assert sorted(after.values()) == expected
    for handle in before.keys() & after.keys():
        assert before[handle] == after[handle], "a handle names another record"
    for slot in torn:
        assert all(handle not in after for handle in before if handle[0] == slot)
    assert reader.catch_up(storage.control, storage.journal) is None
    assert not int(storage.control[CONTROL_LOCK])
    if num < CAPACITY:
        assert storage.cursor == num

    slots, _ = storage.append(records([7] * (CAPACITY - num)))  # fills up and overwrites nothing
    assert slots.tolist() == list(range(num, CAPACITY)) and len(storage) == CAPACITY
    kept = handles(storage)
    assert all(kept[handle] == number for handle, number in after.items())


def test_a_repair_can_be_done_again():
    storage = STORAGES["packed"](CAPACITY)
    storage.append(records(range(CAPACITY)))
    leave_half_done(storage, random.Random(3))
    repair(storage.tables, storage.control, storage.journal)
    first = handles(storage)
    assert repair(storage.tables, storage.control, storage.journal) == 0
    assert handles(storage) == first


@pytest.mark.parametrize("seed", range(20))
def test_a_record_of_cells_that_was_not_written_in_all_of_them_goes_as_a_whole(seed):
    rng, num = random.Random(seed), 3
    storage = LazyTensorStorage(CAPACITY, ndim=2)
    storage.append(records(range(CAPACITY)).view(-1, num)[: rng.randrange(1, 5)])
    slots = CAPACITY // num
    words, control, before = words_of(storage.tables), storage.control, storage.read(torch.arange(len(storage)))[0]
    lost = set()
    for slot in range(slots):
        row = slot * num + rng.randrange(num)
        kind = rng.choice(["untouched", "torn", "in part", "in part"])
        if kind == "torn":
            words[row] |= SLOT_BUSY
        elif kind == "in part":  # a call had written these cells, and not the others
            words[row] = (((int(words[row]) >> SLOT_COUNT_SHIFT) + 1) << SLOT_COUNT_SHIFT) | SLOT_LIVE
        if kind != "untouched":
            lost.add(slot)
    control[CONTROL_LOCK] = 1
    kept = [n for n in numbers_of(before) if n // num not in lost]
    generations = storage.generations(torch.arange(CAPACITY)).view(slots, num).amax(1)

    assert repair(storage.tables, control, storage.journal, num) == len(lost)
    assert len(storage) == len(kept) and storage.cursor % num == 0
    assert sorted(numbers_of(storage.read(torch.arange(len(storage)))[0])) == kept
    words = words_of(storage.tables).view(slots, num)
    assert (words == words[:, :1]).all() and not (words & SLOT_BUSY).any()
    after = storage.generations(torch.arange(CAPACITY)).view(slots, num)[:, 0]
    assert all(after[slot] > generations[slot] for slot in lost)
    assert repair(storage.tables, control, storage.journal, num) == 0


def test_a_number_given_to_a_torn_record_is_not_given_again():
    storage = STORAGES["packed"](4)
    storage.append(records(range(4)))
    words = words_of(storage.tables)
    words[3] |= SLOT_BUSY
    repair(storage.tables, storage.control, storage.journal)
    assert int(words[3] >> SLOT_COUNT_SHIFT) - 1 == 1  # retired: a number of its own
    assert storage.append(records([9]))[1].tolist() == [2]


def test_a_storage_that_holds_nothing_needs_no_tables():
    storage = STORAGES["packed"](4)
    storage.control[CONTROL_LOCK] = 1
    assert repair(storage.tables, storage.control, storage.journal) == 0
    assert not int(storage.control[CONTROL_LOCK]) and len(storage) == 0
