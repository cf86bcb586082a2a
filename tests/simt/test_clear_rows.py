"""The kernels of `clear_rows_` against their twin, bit for bit, in every mode."""

from __future__ import annotations

import torch

from tests.ops.cases import lay_out
from tests.simt.records import Rows, assert_same, cases, random_storage
from torchrb.ops import reference
from torchrb.ops.schemas import CONTROL_LENGTH, SLOT_COUNT_SHIFT, SLOT_LIVE


def assert_like_twin(kernels, records, reset_writes):
    assert_same(
        records,
        lambda r: Rows(kernels).clear(r, reset_writes),
        lambda r: reference.clear_rows_(r.tables, r.control, r.journal, reset_writes),
    )


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("clear_rows")
    for chance in cases("clear_rows", mode):
        assert_like_twin(kernels, random_storage(chance, mode), chance.random() < 0.5)


def test_storages_of_no_rows_and_of_more_than_a_pass_of_the_last_block(emulated, mode):
    kernels = emulated("clear_rows")
    for capacity in (0, 300 if mode == "thread" else 9_000):  # a pass: 16 slots for each of 256 threads
        records = lay_out([], capacity, "columns")
        records.words.copy_(torch.arange(capacity) << SLOT_COUNT_SHIFT | SLOT_LIVE)
        records.words[::3] &= ~SLOT_LIVE
        records.control[CONTROL_LENGTH] = capacity
        for size in (1, 700, 9_000):
            records.journal = torch.arange(size)
            assert_like_twin(kernels, records, True)
