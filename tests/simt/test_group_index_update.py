"""The GPU's group index after any history is what one finds by looking at all rows, in every mode."""

from __future__ import annotations

import random

import pytest
import torch

from tests.ops.cases import FLOATS, INTEGERS, Index, lay_out
from tests.ops.test_group_index_update import colliding_keys, one_step
from tests.ops.test_write_rows import write
from tests.simt.gpu_index import GpuIndex, members_by_twin
from torchrb.ops.schemas import CONTROL_JOURNAL, group_links_size

CASES = {"address": 25, "thread": 12}  # of each test; elsewhere 60


def assert_like_twin(mine, twin, rebuild=False):
    counts, expected = mine.catch_up(rebuild), twin.catch_up(rebuild)
    assert counts[:2] == expected[:2] and counts[3] == expected[3]
    assert (counts[2] == -1) == (expected[2] == -1)
    assert mine.members() == members_by_twin(twin)


@pytest.mark.parametrize("key", ["any", "words"])
def test_any_history(emulated, mode, key):
    kernels = emulated("group_index_update")
    for case in range(CASES.get(mode, 60)):
        chance = random.Random(case)
        dtype, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (1,), (2,), (2, 2), (0,)))
        if key == "words":
            dtype, shape = torch.int64, (2,)
        capacity = chance.choice((1, 2, 9, 31, 32, 33, 70))
        records = lay_out([(dtype, shape), (torch.float32, ())], capacity, chance.choice(("packed", "columns")))
        records.journal = torch.zeros(chance.choice((1, 8, 200)), dtype=torch.int64)
        mine, twin = GpuIndex(records, 0, kernels), Index(records, 0, twin=True)
        for _ in range(8):
            for _ in range(chance.randrange(3)):
                one_step(chance, records)
            assert_like_twin(mine, twin, rebuild=chance.random() < 0.1)


def append(records, keys):
    write(records, keys[0], [keys[1], torch.zeros(len(keys[1]))], True)


@pytest.mark.parametrize("distinct", [1, 3, 900, 2**60])
def test_histories_of_many_rows_go_through_a_kernel_a_phase(emulated, mode, distinct):
    """More entries than one block takes: several blocks meet in the same lists, chains and counts."""
    capacity = 5000
    records = lay_out([(torch.int64, ()), (torch.float32, ())], capacity, "packed")
    mine, twin = GpuIndex(records, 0, emulated("group_index_update")), Index(records, 0, twin=True)
    torch.manual_seed(distinct)
    for num_rows in (5000, 4500, 0, 100):
        slots = torch.randint(0, capacity, (num_rows,))
        write(records, slots, [torch.randint(0, distinct, (num_rows,)), torch.zeros(num_rows)], True)
        assert_like_twin(mine, twin)
    assert_like_twin(mine, twin, rebuild=True)
    if mode != "thread":
        write(records, torch.arange(capacity), [torch.arange(capacity) // 16, torch.zeros(capacity)], True)
        assert_like_twin(mine, twin)


def test_keys_of_equal_hash_meet_in_one_bucket(emulated):
    records = lay_out([(torch.int64, (2,)), (torch.float32, ())], 300, "packed")
    mine, twin = GpuIndex(records, 0, emulated("group_index_update")), Index(records, 0, twin=True)
    for turn in range(4):
        torch.manual_seed(turn)
        slots = torch.randperm(300)[:200]
        write(records, slots, [colliding_keys(40)[torch.randint(0, 40, (200,))], torch.zeros(200)], True)
        assert_like_twin(mine, twin)


def test_whole_groups_leave_and_come_as_a_ring_goes_round(emulated):
    records = lay_out([(torch.int64, ()), (torch.float32, ())], 96, "packed")
    mine, twin = GpuIndex(records, 0, emulated("group_index_update")), Index(records, 0, twin=True)
    for turn in range(12):
        slots = (torch.arange(32) + 32 * turn) % 96
        write(records, slots, [turn * 2 + torch.arange(32) // 16, torch.zeros(32)], True)
        assert_like_twin(mine, twin)
    assert [len(members) for members in mine.members()] == [16] * 6


def test_entries_overwritten_while_they_were_read_are_made_up_for(emulated):
    """A writer on another stream overtook the update: the next one looks at every row."""
    records = lay_out([(torch.int64, ())], 40, "packed")
    records.journal = torch.zeros(8, dtype=torch.int64)
    mine = GpuIndex(records, 0, emulated("group_index_update"))
    mine.catch_up()
    write(records, torch.arange(40), [torch.arange(40) % 3], True)
    before = int(records.control[CONTROL_JOURNAL])
    mine.catch_up()
    assert mine.state[0] == before
    # Noted, but the ring already holds later entries than the update's end: what the kernel would see is emulated by
    # an index whose position lies a whole ring behind the entries that it reads.
    mine.state[0] = before - 9
    assert mine.catch_up()[3] == 40


def test_the_links_are_as_long_as_the_kernels_take_them(emulated):
    size = torch.zeros(1, dtype=torch.int64)
    for capacity in (1, 2, 31, 32, 33, 64, 65, 1000, 4096, 4097, 10**6, 2**27 + 1):
        emulated("group_index_update").size(size, capacity)
        assert int(size) == group_links_size(capacity, "cuda")
        assert capacity < 1000 or 4 * int(size) + 16 * capacity <= 64 * capacity
