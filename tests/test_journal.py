"""A reader of the journal learns of every row written since it last looked, or that it must look at everything."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.cases import STORAGES
from torchrb.journal import JournalReader, new_journal

CAPACITY = 70  # above the shortest ring


def rows(numbers):
    return TensorDict({"n": torch.as_tensor(list(numbers), dtype=torch.int64)}, [len(numbers)])


def filled(kind, capacity=CAPACITY, num=3):
    storage = STORAGES[kind](capacity)
    storage.append(rows(range(num)))
    return storage


steps = st.lists(
    st.tuples(st.sampled_from(["append", "write", "fields", "clear", "look"]), st.integers(1, 40)), max_size=12
)


@pytest.mark.parametrize("kind", ["packed", "columns", "stack"])
@settings(deadline=None, max_examples=15)
@given(steps)
def test_no_written_row_is_missed_whenever_one_looks(kind, steps):
    storage, reader = filled(kind), JournalReader()
    written, total = set(range(3)), 3
    for what, num in [*steps, ("look", 0)]:
        slots = []
        if what == "append":
            slots = storage.append(rows(range(num)))[0].tolist()
        elif what == "clear":
            slots = list(range(len(storage)))
            storage.clear()
        elif what == "look":
            assert reader.moved(storage.control) == bool(total)
            seen = reader.catch_up(storage.control, storage.journal)
            assert seen is None if total > len(storage.journal) else seen.tolist() == sorted(written)
            assert not reader.moved(storage.control)
            written, total = set(), 0
        elif len(storage):
            slots = (torch.arange(num) * 7 % len(storage)).tolist()
            if what == "write":
                storage.write(torch.tensor(slots), rows(range(num)))
            else:
                storage.write_fields(torch.tensor(slots), {"n": torch.arange(num)})
        written |= set(slots)
        total += len(slots)


def test_what_was_not_accepted_is_told_again():
    storage, reader = filled("packed"), JournalReader()
    first, position = reader.unread(storage.control, storage.journal)
    storage.append(rows([5]))
    assert first.tolist() == [0, 1, 2] and reader.unread(storage.control, storage.journal)[0].tolist() == [0, 1, 2, 3]
    reader.accept(position)
    assert reader.catch_up(storage.control, storage.journal).tolist() == [3]


@pytest.mark.parametrize("kind", STORAGES)
def test_readers_do_not_disturb_each_other(kind):
    storage, one, other = filled(kind), JournalReader(), JournalReader()
    assert one.catch_up(storage.control, storage.journal).tolist() == [0, 1, 2]
    storage.append(rows([5]))
    assert one.catch_up(storage.control, storage.journal).tolist() == [3]
    assert other.catch_up(storage.control, storage.journal).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", STORAGES)
def test_who_fell_behind_by_more_than_the_ring_takes_everything_anew(kind):
    storage, reader = filled(kind, num=1), JournalReader()
    reader.catch_up(storage.control, storage.journal)
    size = len(storage.journal)
    storage.append(rows(range(size)))
    assert sorted(reader.catch_up(storage.control, storage.journal).tolist()) == sorted(
        {(1 + i) % CAPACITY for i in range(size)}
    )
    storage.append(rows(range(size + 1)))
    assert reader.catch_up(storage.control, storage.journal) is None
    storage.append(rows([0]))
    assert len(reader.catch_up(storage.control, storage.journal)) == 1


@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 1000])
def test_a_ring_is_at_least_as_long_as_the_storage(capacity):
    journal = new_journal(capacity, torch.device("cpu"))
    assert journal.dtype == torch.int64 and len(journal) >= max(capacity, 64)


def test_reading_writes_nothing():
    storage, reader = filled("packed"), JournalReader()
    control, journal = storage.control.clone(), storage.journal.clone()
    storage[:], reader.catch_up(storage.control, storage.journal)
    assert torch.equal(storage.control, control) and torch.equal(storage.journal, journal)
