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

CASES = {"address": 10, "thread": 4}  # of each test; elsewhere 40


def assert_like_twin(mine, twin, rebuild=False):
    counts, expected = mine.catch_up(rebuild), twin.catch_up(rebuild)
    assert counts[:2] == expected[:2] and counts[3] == expected[3]
    assert (counts[2] == -1) == (expected[2] == -1)
    assert mine.members() == members_by_twin(twin)


@pytest.mark.parametrize("spread", ["one block", "many blocks"])
@pytest.mark.parametrize("key", ["any", "words"])
def test_any_history(emulated, mode, key, spread):
    kernels = emulated("group_index_update")
    for case in range(CASES.get(mode, 40)):
        chance = random.Random(case)
        dtype, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (1,), (2,), (2, 2), (0,)))
        if key == "words":
            dtype, shape = torch.int64, (2,)
        capacity = chance.choice((1, 2, 9, 31, 32, 33, 70))
        records = lay_out([(dtype, shape), (torch.float32, ())], capacity, chance.choice(("packed", "columns")))
        records.journal = torch.zeros(chance.choice((1, 8, 200)), dtype=torch.int64)
        block_entries = 4096 if spread == "one block" else 0
        mine = GpuIndex(records, 0, kernels, block_entries, chance.choice((1, 4, 32)))
        twin = Index(records, 0, twin=True)
        for _ in range(8):
            for _ in range(chance.randrange(3)):
                one_step(chance, records)
            assert_like_twin(mine, twin, rebuild=chance.random() < 0.1)


@pytest.mark.parametrize("distinct", [1, 3, 60, 2**60])
def test_blocks_meet_in_the_same_lists_chains_and_counts(emulated, mode, distinct):
    capacity, threads = (300, 16) if mode == "thread" else (5000, 256)
    records = lay_out([(torch.int64, ()), (torch.float32, ())], capacity, "packed")
    mine = GpuIndex(records, 0, emulated("group_index_update"), 64, threads)
    twin = Index(records, 0, twin=True)
    torch.manual_seed(distinct)
    for num_rows in (capacity, capacity * 9 // 10, 0, 100):
        slots = torch.randint(0, capacity, (num_rows,))
        write(records, slots, [torch.randint(0, distinct, (num_rows,)), torch.zeros(num_rows)], True)
        assert_like_twin(mine, twin)
    assert_like_twin(mine, twin, rebuild=True)
    write(records, torch.arange(capacity), [torch.arange(capacity) // 16, torch.zeros(capacity)], True)
    assert_like_twin(mine, twin)


def test_keys_of_equal_hash_meet_in_one_bucket(emulated):
    records = lay_out([(torch.int64, (2,)), (torch.float32, ())], 300, "packed")
    mine, twin = GpuIndex(records, 0, emulated("group_index_update"), 64, 16), Index(records, 0, twin=True)
    for turn in range(4):
        torch.manual_seed(turn)
        slots = torch.randperm(300)[:200]
        write(records, slots, [colliding_keys(40)[torch.randint(0, 40, (200,))], torch.zeros(200)], True)
        assert_like_twin(mine, twin)


def test_whole_groups_leave_and_come_as_a_ring_goes_round(emulated):
    records = lay_out([(torch.int64, ()), (torch.float32, ())], 96, "packed")
    mine, twin = GpuIndex(records, 0, emulated("group_index_update"), 64, 16), Index(records, 0, twin=True)
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
