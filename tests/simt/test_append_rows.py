"""The kernels of `append_rows_` against their twin, bit for bit, in every mode."""

from __future__ import annotations

from tests.simt.records import Rows, assert_same, cases, num_rows, random_batch, random_storage
from torchrb.ops import reference


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("append_rows")
    for chance in cases("append_rows", mode):
        records = random_storage(chance, mode)
        around = (records.capacity - 1, records.capacity, records.capacity + 1, 3 * records.capacity + 2)
        n = num_rows(chance, records, mode, around)
        values = random_batch(chance, records, n)

        def emulate(r, values=values, n=n):
            return Rows(kernels).append(r, values, n)

        def twin(r, values=values, n=n):
            return reference.append_rows_(r.tables, r.control, r.journal, r.layout, values, n)

        assert_same(records, emulate, twin)
