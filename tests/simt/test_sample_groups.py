"""Draws on a GPU are the twin's, slot by slot, in every mode."""

from __future__ import annotations

import random

import pytest
import torch

from tests.ops.cases import FLOATS, INTEGERS, Index, lay_out, random_values
from tests.ops.test_write_rows import write
from tests.simt.gpu_index import GpuIndex
from torchrb.ops.schemas import NAN_KEY, NO_GROUP, STRATEGIES

CASES = {"address": 8, "thread": 4}  # of each test; elsewhere 40


def stored(kernels, groups, rewards, slots, kind="packed"):
    """The GPU's index and the twin's over rows of (group, reward), written in this order."""
    dtype, shape = rewards.dtype, tuple(rewards.shape[1:])
    records = lay_out([(torch.int64, ()), (dtype, shape)], int(slots.max()) + 1, kind)
    write(records, slots, [groups, rewards], True)
    indices = GpuIndex(records, 0, kernels, threads=32), Index(records, 0, twin=True)
    for index in indices:
        index.catch_up()
    return indices


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_any_small_groups(emulated, mode, strategy):
    kernels = emulated("sample_groups")
    for case in range(CASES.get(mode, 40)):
        chance = random.Random(case)
        num_groups, num_rows = chance.choice((1, 2, 5, 20)), chance.choice((1, 3, 20, 80))
        dtype, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (), (1,), (3,), (2, 2)))
        groups = torch.tensor([chance.randrange(num_groups) for _ in range(num_rows)])
        slots = torch.tensor(chance.sample(range(2 * num_rows), num_rows))
        rewards = random_values(chance, dtype, (num_rows, *shape))
        mine, twin = stored(kernels, groups, rewards, slots, chance.choice(("packed", "columns")))
        for _ in range(2):
            num, per_group = chance.choice((0, 1, 3, 8, 50)), chance.choice((0, 1, 2, 5, 9, 40))
            args = chance.randrange(-(2**63), 2**63), num, per_group, strategy, 1
            assert mine.sample(*args) == twin.sample(*args)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rewards", ["tied", "real", "integers", "few valid"])
def test_groups_about_the_sizes_of_warps_and_blocks(emulated, mode, strategy, rewards):
    kernels = emulated("sample_groups")
    sizes = [1, 2, 31, 32, 33, 64, 100] + ([] if mode == "thread" else [255, 257, 1023, 1024, 1025])
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    torch.manual_seed(len(rewards))
    num = len(groups)
    values = {
        "tied": torch.randint(0, 4, (num,)).double(),
        "real": torch.randn(num),
        "integers": torch.randint(-(2**62), 2**62, (num,)),
        "few valid": torch.where(torch.rand(num) < 0.2, torch.randn(num), torch.nan),
    }[rewards]
    order = torch.randperm(num)
    mine, twin = stored(kernels, groups[order], values[order], torch.randperm(num + 10)[:num])
    for per_group in (3, 33) if mode == "thread" else (1, 8, 33, 300, 1100):
        args = per_group, len(sizes), per_group, strategy, 1
        assert mine.sample(*args) == twin.sample(*args)


def large_rewards(kind, num):
    """Rewards of a large group, by what makes it hard to tell which are the highest."""
    if kind == "real":
        return torch.randn(num).double()
    if kind == "equal":
        return torch.ones(num).double()
    if kind == "few values":  # runs longer than what is drawn, at either end and in the middle
        return torch.randint(-1, 2, (num,)).double()
    if kind == "outliers":  # runs that a subset of greatest variance ends in
        return torch.where(torch.rand(num) < 0.001, torch.randn(num), 0.0).double()
    if kind == "integers":
        return torch.randint(-(2**62), 2**62, (num,)) * 2
    if kind == "few integers":
        return torch.randint(0, 4, (num,)) * 2**40
    chances = torch.rand(num)
    values = torch.where(chances < 0.2, torch.randn(num).round(decimals=1), torch.nan)
    return values.masked_fill(chances > 0.9, torch.inf).masked_fill(chances > 0.95, -torch.inf).double()


LARGE = {
    "floats": {"real": 6000, "equal": 1025, "few values": 2000, "outliers": 3000, "few valid": 1200},
    "integers": {"integers": 3000, "few integers": 1100},
}
# Rows of each group. From 1,024 on shared memory does not hold them.
WANTED = [1, 8, 1000, 1023, 1024, 2500]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dtype", LARGE)
def test_groups_of_thousands(emulated, mode, strategy, dtype):
    """Beyond a block's shared memory, found by looking at all rows and by walking their lists; the draws that repeat a
    group reach rows that were used, and those without a number.
    """
    large, wanted, capacity = LARGE[dtype], WANTED, 100_000
    if mode in ("backwards", "resident", "address"):
        wanted = [8, 1000]
    if mode in ("address", "thread"):
        large = dict.fromkeys(("few values", "few valid") if dtype == "floats" else ("integers", "few integers"), 1025)
    if mode == "thread":
        wanted, capacity = [8], 2100
    torch.manual_seed(0)
    rewards = [large_rewards(kind, size) for kind, size in large.items()]
    groups = torch.arange(len(rewards)).repeat_interleave(torch.tensor([len(values) for values in rewards]))
    slots = torch.randperm(capacity)[: len(groups)]
    mine, twin = stored(emulated("sample_groups"), groups, torch.cat(rewards), slots)
    for per_group in wanted:
        args = per_group, len(large) + (4 if mode != "thread" else 1), per_group, strategy, 1
        assert mine.sample(*args) == twin.sample(*args)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_groups_than_are_stored(emulated, mode, strategy):
    kernels = emulated("sample_groups")
    for case in range(CASES.get(mode, 30) // 3):
        chance = random.Random(case)
        num_groups, num_rows = chance.choice((1, 2, 3, 6)), chance.choice((3, 20, 100))
        groups = torch.tensor([chance.randrange(num_groups) for _ in range(num_rows)])
        mine, twin = stored(kernels, groups, random_values(chance, torch.float64, (num_rows,)), torch.arange(num_rows))
        for num, per_group in ((7, 2), (12, 5), (40, 3)):
            args = case, num, per_group, strategy, 1
            assert mine.sample(*args) == twin.sample(*args)


def test_an_index_without_a_group(emulated):
    records = lay_out([(torch.float64, ()), (torch.float32, ())], 5, "packed")
    index = GpuIndex(records, 0, emulated("sample_groups"))
    assert index.sample(1, 2, 3) == ([[-1] * 3] * 2, [[0, 0, 0]] * 2, NO_GROUP | 1)
    write(records, torch.arange(2), [torch.tensor([torch.nan, torch.nan]).double(), torch.zeros(2)], True)
    index.catch_up()
    assert index.sample(1, 2, 3)[2] == NO_GROUP | NAN_KEY | 1
    write(records, torch.tensor([0]), [torch.ones(1).double(), torch.zeros(1)], True)
    index.catch_up()
    assert index.sample(1, 1, 1) == ([[0]], [[0, 1, 1]], NAN_KEY)


def test_many_groups_are_found_by_rank(emulated, mode):
    """Several levels of counts, every rank once."""
    torch.manual_seed(1)
    num = 200 if mode == "thread" else 5000
    mine, twin = stored(emulated("sample_groups"), torch.randint(0, 2**60, (num,)), torch.zeros(num), torch.arange(num))
    assert mine.sample(3, num, 1) == twin.sample(3, num, 1)
