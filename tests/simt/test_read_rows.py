"""The kernel of `read_rows` against its twin, bit for bit, in every mode."""

from __future__ import annotations

from tests.simt.records import Rows, assert_same, cases, num_rows, random_slots, random_storage
from torchrb.ops import reference


def test_every_bit_is_the_twins(emulated, mode):
    kernels = emulated("read_rows")
    for chance in cases("read_rows", mode):
        records = random_storage(chance, mode)
        slots = random_slots(chance, records.capacity, num_rows(chance, records, mode))
        chosen = [leaf for leaf in range(len(records.leaves)) if chance.random() < 0.9]
        templates = [records.templates[leaf] for leaf in chosen]

        def emulate(r, chosen=chosen, templates=templates, slots=slots):
            return Rows(kernels).read(r, r.part(chosen), templates, slots)

        def twin(r, chosen=chosen, templates=templates, slots=slots):
            return reference.read_rows(r.tables, r.part(chosen), templates, slots)

        assert_same(records, emulate, twin)
