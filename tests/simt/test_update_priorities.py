"""The kernels of `update_priorities_` against their twin, bit for bit, in every mode."""

from __future__ import annotations

import copy

import pytest
import torch

from tests.ops.cases import Ranked, as_bytes
from tests.ops.test_update_priorities import append, one_step, random_update, storage
from tests.simt.gpu_index import DTYPES
from tests.simt.records import cases
from torchrb.ops import reference
from torchrb.ops.priority_tree import PriorityTree


def assert_like_twin(kernels, args, block_rows, threads=32):
    """Emulate an update; its effects are the twin's."""
    expected = copy.deepcopy(args)
    reference.update_priorities_(*expected)
    tree, seen, state, control, journal, tables, slots, generations, priorities, alpha, eps, rebuild = args
    kernels.update(
        tree, seen, state, control, journal, journal.shape[0], tables[0], tables[0].stride(0), seen.shape[0], slots,
        generations if generations.shape[0] else None, priorities, DTYPES.index(priorities.dtype), slots.shape[0],
        alpha, eps, rebuild, block_rows, threads,
    )  # fmt: skip
    assert as_bytes(list(args)) == as_bytes(list(expected))


@pytest.mark.parametrize("block_rows", [0, 4096], ids=["grid", "block"])
def test_every_bit_is_the_twins(emulated, mode, block_rows):
    kernels = emulated("update_priorities")
    for chance in list(cases(f"update_priorities {block_rows}", mode))[:6]:
        records = storage(chance.choice((1, 2, 15, 17, 40) if mode == "thread" else (1, 2, 15, 17, 40, 300)))
        records.journal = torch.zeros(chance.choice((1, 8, 100)), dtype=torch.int64)
        ranked = Ranked(records, chance.choice((0.5, 1.0)), chance.choice((0.0, 1e-8)))
        for turn in range(3):
            for _ in range(chance.randrange(3)):
                one_step(chance, records)
            rebuild = turn > 0 and chance.random() < 0.3
            if rebuild:
                ranked.alpha = chance.choice((0.3, 1.0))
            args = ranked.update_args(*random_update(chance, records), rebuild=rebuild)
            assert_like_twin(kernels, args, block_rows)


@pytest.mark.parametrize("block_rows", [0, 4096], ids=["grid", "block"])
def test_many_rows_of_one_slot_and_of_one_node(emulated, mode, block_rows):
    kernels = emulated("update_priorities")
    records = storage(300)
    append(records, 290)
    ranked = Ranked(records, 0.6, 1e-8)
    num = 40 if mode == "thread" else 150
    for slots in (torch.full((num,), 7), torch.arange(num) % 20, torch.arange(num) * 293 % 300):
        assert_like_twin(kernels, ranked.update_args(slots, torch.rand(num)), block_rows)
        append(records, 5)


def test_the_tree_is_as_long_as_the_kernels_take_it(emulated):
    size = torch.zeros(1, dtype=torch.int64)
    for capacity in (0, 1, 16, 17, 256, 257, 4096, 4097, 10**6, 2**32 - 1):
        emulated("update_priorities").size(size, capacity)
        assert int(size) == PriorityTree(capacity).size
