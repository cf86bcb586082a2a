import random

import pytest
import torch

from torchrb.persistence import FileEntry
from torchrb.persistence.content import Entry
from torchrb.storages.segments import Log, Segment, planned


def segment(slots):
    return Segment(FileEntry("file", Entry(0, 0, [])), torch.as_tensor(slots))


def test_without_a_log_everything_is_written():
    for log, changed in ((None, None), (None, torch.tensor([1])), (Log("", 0, [segment([0, 1, 2])]), None)):
        kept, slots = planned(log, changed, 3)
        assert kept == [] and slots.tolist() == [0, 1, 2]


def test_what_did_not_change_stays():
    log = Log("", 0, [segment(range(100)), segment([3])])
    kept, slots = planned(log, torch.tensor([], dtype=torch.int64), 100)
    assert kept == log.segments and slots is None
    kept, slots = planned(log, torch.tensor([8, 7, 7]), 100)
    assert kept == log.segments[:1] and slots.tolist() == [3, 7, 8]  # with the small one before


@pytest.mark.parametrize("seed", range(10))
def test_segments_tell_every_row_as_it_is_and_stay_few_and_small(seed):
    """Over a history of writes, of clearings, and of dumps between them."""
    rng = random.Random(seed)
    capacity, length, version = 500, 0, 0
    stored = [0] * capacity
    disk: list[tuple[torch.Tensor, list[int]]] = []  # the slots of each segment, and what was written for them
    log, changed, written, wrote = None, set(), 0, 0
    for _ in range(60):
        for _ in range(rng.randrange(4)):
            kind = rng.random()
            if kind < 0.05:
                changed |= set(range(length))
                length = 0
                continue
            num = min(rng.choice([1, 2, 5, 100]), capacity)
            first = rng.randrange(length + 1)
            slots = [(first + i) % capacity for i in range(num)]
            length = max(length, min(first + num, capacity))
            for slot in slots:
                version += 1
                stored[slot] = version
            changed |= set(slots)
            wrote += num
        kept, slots = planned(log, torch.tensor(sorted(changed), dtype=torch.int64), length)
        disk = disk[: len(kept)]
        if slots is not None:
            written += slots.shape[0]
            disk.append((slots, [stored[slot] for slot in slots.tolist()]))
        log, changed = Log("", 0, [segment(slots) for slots, _ in disk]), set()

        read: dict[int, int] = {}
        for slots, values in disk:
            assert (slots[1:] > slots[:-1]).all()
            read |= dict(zip(slots.tolist(), values, strict=True))
        assert all(read[slot] == stored[slot] for slot in range(length))
        assert sum(slots.shape[0] for slots, _ in disk) <= 2 * length + 64 + (length == 0)
        assert len(disk) <= 10
        sizes = [slots.shape[0] for slots, _ in disk]
        assert all(2 * later < earlier for earlier, later in zip(sizes, sizes[1:], strict=False))
    assert written < 8 * (wrote + 1)
