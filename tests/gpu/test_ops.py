"""Every op on a device against its twin on the CPU: what it returns and what it leaves, bit by bit."""

from __future__ import annotations

import math
import random

import pytest
import torch

from tests.gpu.on_device import DeviceIndex, assert_like_twin, chances
from tests.ops.cases import FLOATS, INTEGERS, Index, Ranked, lay_out, random_records, random_values
from tests.ops.test_balanced_subset import random_case
from tests.ops.test_draw_priorities import edge_masses, random_priorities, ranked_by
from tests.ops.test_group_advantage import random_returns
from tests.ops.test_group_index_update import few_keys, one_step
from tests.ops.test_update_priorities import one_step as priority_step
from tests.ops.test_update_priorities import random_update
from tests.ops.test_update_priorities import storage as priority_storage
from tests.ops.test_write_rows import write
from tests.simt.records import DTYPES, random_batch, random_slots, random_storage
from torchrb.ops import reference
from torchrb.ops.schemas import NO_GROUP, STRATEGIES, op_names

BLOCKS = range(4)


def rows_of(chance, records):
    capacity = records.capacity
    return chance.choice((0, 1, 31, 32, 33, 257, capacity - 1, capacity, capacity + 1, 3 * capacity + 2))


@pytest.mark.parametrize("block", BLOCKS)
def test_append_rows(device, block):
    for chance in chances(block):
        records = random_storage(chance, "device")
        num = rows_of(chance, records)
        values = random_batch(chance, records, num)
        args = records.tables, records.control, records.journal, records.layout, values, num
        assert_like_twin("append_rows_", args, device)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("renew", [True, False])
def test_write_rows(device, block, renew):
    for chance in chances(block):
        records = random_storage(chance, "device")
        slots = random_slots(chance, records.capacity, rows_of(chance, records))
        chosen = [leaf for leaf in range(len(records.leaves)) if renew or chance.random() < 0.5]
        values = random_batch(chance, records, len(slots), chosen)
        args = records.tables, records.control, records.journal, records.part(chosen), slots, values, renew
        assert_like_twin("write_rows_", args, device)


@pytest.mark.parametrize("block", BLOCKS)
def test_read_rows(device, block):
    for chance in chances(block):
        records = random_storage(chance, "device")
        slots = random_slots(chance, records.capacity, rows_of(chance, records))
        assert_like_twin("read_rows", (records.tables, records.layout, records.templates, slots), device)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("versioned", [True, False])
def test_update_rows_if(device, block, versioned):
    for chance in chances(block):
        records = random_storage(chance, "device")
        slots = random_slots(chance, records.capacity, rows_of(chance, records))
        wrong = torch.tensor([chance.random() < 0.2 for _ in slots], dtype=torch.bool)
        right = records.generations[slots.clamp(0, records.capacity - 1)]
        generations = torch.where(wrong, chance.choice((-1, 0, 2**40)), right)
        chosen = [leaf for leaf in range(len(records.leaves)) if chance.random() < 0.5]
        values = random_batch(chance, records, len(slots), chosen)
        ordered = [i for i, (dtype, shape) in enumerate(records.leaves) if dtype in DTYPES and shape in ((), (1,))]
        place, version = [], None
        if versioned and ordered:
            leaf = chance.choice(ordered)
            place, version = records.part([leaf]), random_values(chance, records.leaves[leaf][0], (len(slots),))
        args = (
            records.tables, records.control, records.journal, records.part(chosen), slots, generations, values, place,
            version, chance.random() < 0.5,
        )  # fmt: skip
        assert_like_twin("update_rows_if_", args, device)


@pytest.mark.parametrize("block", BLOCKS)
def test_clear_rows(device, block):
    for chance in chances(block):
        records = chance.choice((random_records(chance), random_storage(chance, "device")))
        args = records.tables, records.control, records.journal, chance.random() < 0.5
        assert_like_twin("clear_rows_", args, device)


@pytest.mark.parametrize("length", [1, 2, 7, 100, 2**31 + 1])
def test_draw_uniform(device, length):
    for num in (0, 1, 255, 256, 257, 5000):
        control = torch.tensor([0, length, 0, 0, 0, 0, 0, 0])
        assert_like_twin("draw_uniform", (torch.tensor([length * num]), control, num), device)


@pytest.mark.parametrize("size", [1, 2, 7, 100, 2**31 + 1])
def test_draw_permuted(device, size):
    for num in (0, 1, 255, 256, 257, 5000):
        num = min(num, size)
        assert_like_twin("draw_permuted", (torch.tensor([size * num]), size, (size - num) // 2, num), device)


@pytest.mark.parametrize("key", ["any", "words"])
def test_group_index_update_and_sample_groups_after_any_history(device, key):
    """The links of a GPU are its own; what they say is seen by drawing every group whole."""
    for case in range(40):
        chance = random.Random(case)
        dtype, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (1,), (2,), (2, 2), (0,)))
        if key == "words":
            dtype, shape = torch.int64, (2,)
        capacity = chance.choice((1, 2, 9, 31, 32, 33, 70))
        records = lay_out([(dtype, shape), (torch.float32, ())], capacity, chance.choice(("packed", "columns")))
        records.journal = torch.zeros(chance.choice((1, 8, 200)), dtype=torch.int64)
        mine, twin = DeviceIndex(records, 0, device), Index(records, 0, twin=True)
        for _ in range(6):
            for _ in range(chance.randrange(3)):
                one_step(chance, records)
            counts, expected = mine.catch_up(), twin.catch_up()
            assert counts[:2] == expected[:2] and (counts[2] < 0) == (expected[2] < 0)
            assert mine.members() == twin.members()


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sample_groups(device, strategy):
    for case in range(60):
        chance = random.Random(case)
        num_rows = chance.choice((1, 3, 20, 80, 300))
        reward, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (), (1,), (3,)))
        records = lay_out([(torch.int64, ()), (reward, shape)], 2 * num_rows, chance.choice(("packed", "columns")))
        slots = torch.tensor(chance.sample(range(2 * num_rows), num_rows))
        keys = few_keys(chance, torch.int64, (), num_rows)
        write(records, slots, [keys, random_values(chance, reward, (num_rows, *shape))], True)
        mine, twin = DeviceIndex(records, 0, device), Index(records, 0, twin=True)
        mine.catch_up()
        twin.catch_up()
        for _ in range(2):
            groups, per_group = chance.choice((1, 3, 8, 50)), chance.choice((1, 2, 5, 9, 40))
            args = chance.randrange(-(2**63), 2**63), groups, per_group, strategy, 1
            assert mine.sample(*args) == twin.sample(*args)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sample_groups_of_every_size_class(device, strategy):
    """In a warp, in a block's shared memory, beyond it, and large enough to be found by looking at all rows."""
    sizes = [1, 2, 31, 32, 33, 64, 100, 257, 1023, 1024, 1025, 5000]
    keys = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    rewards = torch.randn(len(keys)).round(decimals=1)
    records = lay_out([(torch.int64, ()), (torch.float32, ())], len(keys) + 10, "packed")
    write(records, torch.randperm(len(keys) + 10)[: len(keys)], [keys, rewards], True)
    mine, twin = DeviceIndex(records, 0, device), Index(records, 0, twin=True)
    mine.catch_up()
    twin.catch_up()
    for per_group in (1, 8, 33, 300, 1100):
        args = per_group, len(sizes), per_group, strategy, 1
        assert mine.sample(*args) == twin.sample(*args)


def test_a_gpu_tells_of_an_index_without_a_group(device):
    index = DeviceIndex(lay_out([(torch.int64, ()), (torch.float32, ())], 5, "packed"), 0, device)
    index.catch_up()
    if device.type == "cuda":
        slots, drawn, flags = index.sample(1, 2, 3)
        assert flags & NO_GROUP and slots == [[-1] * 3] * 2 and drawn == [[0, 0, 0]] * 2
    else:
        assert index.catch_up()[0] == 0  # where the host knows, nobody asks for a draw


@pytest.mark.parametrize("block", BLOCKS)
def test_update_priorities(device, block):
    """A short update is one block's; a long one, of thousands of rows, the grid's."""
    for chance in chances(block, 10):
        records = priority_storage(chance.choice((1, 16, 17, 300, 9000)))
        ranked = Ranked(records, chance.choice((0.6, 1.0)), chance.choice((0.0, 1e-8)))
        for _ in range(4):
            priority_step(chance, records)
            args = ranked.update_args(*random_update(chance, records), rebuild=chance.random() < 0.2)
            assert_like_twin("update_priorities_", args, device)
            reference.update_priorities_(*args)


@pytest.mark.parametrize("block", BLOCKS)
def test_draw_priorities(device, block):
    for chance in chances(block, 20):
        ranked = ranked_by(random_priorities(chance, chance.choice((1, 16, 17, 300, 5000))), chance.choice((0.6, 1.0)))
        num = chance.choice((0, 1, 257, 5000))
        masses = None if chance.random() < 0.5 else edge_masses(chance, ranked, num)
        args = ranked.draw_args(chance.randrange(2**63), num, 0.4, masses, wide=chance.random() < 0.5)
        assert_like_twin("draw_priorities", args, device)


@pytest.mark.parametrize("max_combinations", [1, 40, 100_000])
def test_balanced_subset(device, max_combinations):
    chance = random.Random(max_combinations)
    for _ in range(60):
        returns, k, low, high, rounding = random_case(chance, 14)
        args = torch.tensor([returns], dtype=torch.float64), k, low, high, max_combinations, rounding
        assert_like_twin("balanced_subset", args, device)
    for n, k in ((8, 4), (12, 6)):
        returns = torch.rand(40, n, dtype=torch.float64)
        returns[torch.rand(40, n) < 0.05] = math.nan
        assert_like_twin("balanced_subset", (returns, k, 0.2, 0.8, max_combinations, 2.0**-52), device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_group_advantage(device, dtype):
    for groups, n in ((0, 3), (1, 1), (3, 0), (31, 2), (32, 8), (65, 33), (1000, 257)):
        for kind in range(3):
            assert_like_twin("group_advantage", (random_returns(groups, n, dtype), kind, 1e-6), device)


def test_every_op_has_its_test():
    names = " ".join(name for name in globals() if name.startswith("test_"))
    assert [name for name in op_names() if name.rstrip("_") not in names] == []


def test_every_op_can_be_run_by_itself(capsys):
    """`every_op`, as a sanitizer starts it."""
    from tests.gpu import every_op

    assert list(every_op.CASES) == list(op_names())
    every_op.main(["--device", "cpu", "--only", "draw_uniform"])
    assert "draw_uniform: like its twin on cpu" in capsys.readouterr().out
    if not torch.cuda.is_available():
        with pytest.raises(SystemExit, match="2"):
            every_op.main([])
