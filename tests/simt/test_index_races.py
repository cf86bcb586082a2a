"""An index is brought up to date while two writers on other streams write: what it missed, it finds the next time."""

from __future__ import annotations

import random

import torch

from tests.ops.cases import Index, lay_out
from tests.ops.test_write_rows import write
from tests.simt.gpu_index import GpuIndex, members_by_twin

RACES = {"address": 3, "thread": 2}  # elsewhere 25


def test_an_index_under_writers(emulated, mode):
    kernels = emulated("index_races")
    for case in range(RACES.get(mode, 25)):
        chance = random.Random(case)
        capacity = chance.choice((2, 7, 20))
        records = lay_out([(torch.int64, ()), (torch.int32, (5,))], capacity, chance.choice(("packed", "columns")))
        records.journal = torch.zeros(chance.choice((8, 100)), dtype=torch.int64)
        mine = GpuIndex(records, 0, kernels, chance.choice((0, 4096)), chance.choice((2, 16)))
        twin = Index(records, 0, twin=True)

        def batch(num, chance=chance):
            return [torch.tensor([chance.randrange(4) for _ in range(num)]), torch.zeros(num, 5, dtype=torch.int32)]

        for _ in range(3):
            slots = torch.tensor([chance.randrange(capacity) for _ in range(6)])
            write(records, slots, batch(6), True)
            sizes = [chance.randint(1, 10), chance.randint(1, 10)]
            write_slots = torch.tensor([chance.randrange(capacity) for _ in range(sizes[1])])
            given = [torch.full((num,), -7) for num in (sizes[0], sizes[0], sizes[1])]
            kernels.race(
                records.tables, [table.stride(0) for table in records.tables], capacity, records.control,
                records.journal, records.journal.shape[0], records.layout, sizes, batch(sizes[0]), given[0], given[1],
                batch(sizes[1]), write_slots, given[2], mine.keys, mine.links, mine.state, mine.block_entries,
                mine.threads,
            )  # fmt: skip
            mine.catch_up()
            twin.catch_up()
            assert mine.members() == members_by_twin(twin)
