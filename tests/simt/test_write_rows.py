"""The kernels of `write_rows_` against their twin, bit for bit, in every mode."""

from __future__ import annotations

import pytest
import torch

from tests.ops.cases import lay_out
from tests.simt.records import Rows, assert_same, cases, num_rows, random_batch, random_slots, random_storage
from torchrb.ops import reference


def assert_like_twin(kernels, records, chosen, slots, values, renew):
    assert_same(
        records,
        lambda r: Rows(kernels).write(r, r.part(chosen), slots, values, renew),
        lambda r: reference.write_rows_(r.tables, r.control, r.journal, r.part(chosen), slots, values, renew),
    )


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("write_rows")
    for chance in cases("write_rows", mode):
        records = random_storage(chance, mode)
        slots = random_slots(chance, records.capacity, num_rows(chance, records, mode))
        renew = chance.random() < 0.5
        chosen = [leaf for leaf in range(len(records.leaves)) if renew or chance.random() < 0.5]
        values = random_batch(chance, records, slots.shape[0], chosen)
        assert_like_twin(kernels, records, chosen, slots, values, renew)


@pytest.mark.parametrize(("num", "width"), [(20_000, 33), (70_000, 1)], ids=["of rows", "of threads"])
def test_more_than_a_grid_holds_and_than_a_pass_of_the_last_block(emulated, mode, num, width):
    if mode != "forwards":
        return  # some hundred thousand threads: nothing new to see in another order
    kernels = emulated("write_rows")
    records = lay_out([(torch.uint8, (width,))], num, "packed")
    slots = torch.arange(num).flip(0)
    slots[::100] = 7
    assert_like_twin(kernels, records, [0], slots, [torch.randint(0, 256, (num, width), dtype=torch.uint8)], True)
