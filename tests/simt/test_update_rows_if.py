"""The kernels of `update_rows_if_` against their twin, bit for bit, in every mode."""

from __future__ import annotations

import pytest
import torch

from tests.ops.cases import lay_out, random_values
from tests.simt.records import DTYPES, Rows, assert_same, cases, num_rows, random_batch, random_slots, random_storage
from torchrb.ops import reference
from torchrb.ops.schemas import CONTROL_LENGTH, SLOT_COUNT_SHIFT, SLOT_LIVE


def random_generations(chance, records, slots):
    """Mostly those that live there now."""
    right = records.generations[slots.clamp(0, records.capacity - 1)]
    wrong = torch.tensor([chance.random() < 0.2 for _ in slots], dtype=torch.bool)
    return torch.where(wrong, chance.choice((-1, 0, 1, 2**40)), right)


def assert_like_twin(kernels, records, chosen, slots, generations, values, leaf, version, require_newer):
    version_leaf = [] if version is None else records.part([leaf])
    assert_same(
        records,
        lambda r: Rows(kernels).update(
            r, r.part(chosen), slots, generations, values, version_leaf, version, require_newer
        ),
        lambda r: reference.update_rows_if_(
            r.tables, r.control, r.journal, r.part(chosen), slots, generations, values, version_leaf, version,
            require_newer,
        ),
    )  # fmt: skip


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("update_rows_if")
    for chance in cases("update_rows_if", mode):
        records = random_storage(chance, mode)
        slots = random_slots(chance, records.capacity, num_rows(chance, records, mode))
        generations = random_generations(chance, records, slots)
        chosen = [leaf for leaf in range(len(records.leaves)) if chance.random() < 0.5]
        values = random_batch(chance, records, slots.shape[0], chosen)
        ordered = [i for i, (dtype, shape) in enumerate(records.leaves) if dtype in DTYPES and shape in ((), (1,))]
        leaf, version = None, None
        if ordered and chance.random() < 0.7:
            leaf = chance.choice(ordered)
            version = random_values(chance, records.leaves[leaf][0], (slots.shape[0],))
        assert_like_twin(kernels, records, chosen, slots, generations, values, leaf, version, chance.random() < 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
def test_versions_of_every_dtype_tie_and_stand_at_the_ends(emulated, mode, dtype):
    if mode == "thread" and dtype not in (torch.int64, torch.float16):
        return  # how numbers are read is no matter of threads
    kernels = emulated("update_rows_if")
    for chance in cases(f"versions {dtype}", mode, plain=12, sanitized=2):
        capacity = chance.choice((1, 5, 40))
        records = lay_out([(dtype, ()), (torch.uint8, (21,))], capacity, chance.choice(("packed", "columns")))
        table, offset, nbytes = records.part([0])
        stored = random_values(chance, dtype, (capacity, 1))
        records.tables[table][:, offset : offset + nbytes] = stored.view(torch.uint8)
        records.words.fill_(1 << SLOT_COUNT_SHIFT | SLOT_LIVE)
        records.control[CONTROL_LENGTH] = capacity
        slots = random_slots(chance, capacity, 130)
        values = random_batch(chance, records, 130, [1])
        version = random_values(chance, dtype, (130,))
        if dtype.is_floating_point and chance.random() < 0.3:
            version.fill_(float("nan"))
        generations = random_generations(chance, records, slots)
        assert_like_twin(kernels, records, [1], slots, generations, values, 0, version, chance.random() < 0.5)
