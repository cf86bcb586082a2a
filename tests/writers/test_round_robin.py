"""The ring, what it tells of generations, and writes at given slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tensordict import TensorDict

from tests.cases import RECORDS, STORAGES, TENSORDICTS, buffer, plain
from torchrb import LazyTensorStorage, RoundRobinWriter

each_storage = pytest.mark.parametrize("kind", STORAGES)


def rows(*numbers):
    return TensorDict({"n": torch.tensor(numbers, dtype=torch.int64)}, [len(numbers)])


def numbers_of(rb):
    return [int(rb[i]["n"]) for i in range(len(rb))]


@each_storage
def test_generations_count_the_writes_of_each_slot(kind):
    rb = buffer(kind, 4)
    counts = torch.full((4,), -1)
    every = torch.arange(4)
    for size in (1, 3, 4, 9, 2):
        slots = rb.extend(rows(*range(size)))
        counts += torch.bincount(slots, minlength=4)
        assert torch.equal(rb.writer.generations_of(every), counts)
    rb.add(rows(1)[0])
    rb.writer.write_at(torch.tensor([0, 0, 2]), rows(5, 6, 7))
    counts += torch.tensor([2, 0, 1, 0]) + torch.bincount(torch.tensor([3]), minlength=4)
    assert torch.equal(rb.writer.generations_of(every), counts)
    rb.empty()
    assert torch.equal(rb.writer.generations_of(every), counts + 1)


@each_storage
def test_an_index_of_any_kind_gives_its_own_shape(kind):
    rb = buffer(kind, 4)
    rb.extend(rows(0, 1, 2, 3, 4, 5, 6)[:7])
    told = torch.tensor([1, 1, 1, 0])
    of = rb.writer.generations_of
    assert of(0).shape == () and int(of(0)) == 1 and int(of(np.int64(3))) == 0
    for index in (
        torch.tensor([3, 0, 3]),
        torch.tensor([[0], [3]], dtype=torch.int32),
        torch.tensor(2),
        torch.tensor([0], dtype=torch.uint8),
    ):
        assert torch.equal(of(index), told[index.long()]) and of(index).dtype == torch.int64
    assert of([0, 3]).tolist() == [1, 0] and of(torch.empty(0, 2, dtype=torch.int64)).shape == (0, 2)


def test_of_a_tuple_the_first_dimension_counts():
    rb = buffer(capacity=4)
    rb.extend(rows(*range(7)))
    assert int(rb.writer.generations_of((3,))) == 0 and rb.writer.generations_of((3, 7)).shape == ()
    assert rb.writer.generations_of((torch.tensor([0, 3]), torch.tensor([9, 9]))).tolist() == [1, 0]


@pytest.mark.parametrize("slot", [-1, -5, 3, 4, 2**40, -(2**62)])
def test_a_slot_that_holds_nothing_has_no_generation(slot):
    rb = buffer(capacity=4)
    assert int(rb.writer.generations_of(slot)) == -1
    rb.extend(rows(0, 1, 2))
    assert int(rb.writer.generations_of(slot)) == -1


@each_storage
def test_writing_at_slots_leaves_cursor_and_count(kind):
    rb = buffer(kind, 4)
    rb.extend(rows(0, 1, 2))
    old = rb.writer.generations_of(torch.arange(3))
    index = torch.tensor([2, 0])
    assert rb.writer.write_at(index, rows(20, 30)) is index
    assert rb.writer.write_at(1, rows(40)[0]) == 1
    assert numbers_of(rb) == [30, 40, 20]
    assert (len(rb), rb.write_count, rb.storage.cursor) == (3, 3, 3)
    assert (rb.writer.generations_of(torch.arange(3)) == old + 1).all()
    assert rb.extend(rows(9)).tolist() == [3]


@each_storage
@pytest.mark.parametrize("index", [-1, [0, -3], torch.tensor([True, False, True]), range(2)])
def test_slots_are_named_as_in_brackets(kind, index):
    rb, other = buffer(kind, 4), buffer(kind, 4)
    for each in (rb, other):
        each.extend(rows(0, 1, 2))
    data = rows(8)[0] if isinstance(index, int) else rows(8, 9)
    rb.writer.write_at(index, data)
    other[index] = data
    assert numbers_of(rb) == numbers_of(other)


@each_storage
@pytest.mark.parametrize("index", [3, -4, torch.tensor([0, 3]), torch.tensor([0, 99])])
def test_a_slot_past_what_is_stored_is_an_error(kind, index):
    rb = buffer(kind, 4)
    rb.extend(rows(0, 1, 2))
    with pytest.raises(IndexError, match="write_at: index -?[0-9]+ is out of range, 3 records are stored"):
        rb.writer.write_at(index, rows(8)[0] if isinstance(index, int) else rows(8, 9))
    assert numbers_of(rb) == [0, 1, 2] and rb.writer.generations_of(torch.arange(4)).tolist() == [0, 0, 0, -1]


@pytest.mark.parametrize("kind", ["packed", "columns", "stack"])
@pytest.mark.parametrize("record", TENSORDICTS)
def test_a_sample_can_be_written_back_by_every_way_in(kind, record):
    rb = buffer(kind, 8, batch_size=4)
    rb.extend(RECORDS[record](range(8)))
    before = [plain(rb[i]) for i in range(8)]
    batch, info = rb.sample(return_info=True)
    index = info["index"]
    assert record == "tensorclass" or torch.equal(batch["index"], index)
    rb.writer.write_at(index, batch)
    rb[index] = batch
    rb[3] = rb[3]
    rb.write_all(rb.read_all_in_order())
    assert [plain(rb[i]) for i in range(8)] == before
    rb.extend(batch), rb.add(rb[0]), rb.extend([rb[1], rb[2]])
    assert len(rb) == 8


def test_two_buffers_on_one_storage_share_the_ring():
    storage = LazyTensorStorage(4)
    one, other = buffer(storage), buffer(storage)
    assert one.extend(rows(0, 1, 2)).tolist() == [0, 1, 2]
    assert other.extend(rows(3, 4)).tolist() == [3, 0]
    assert one.add(rows(5)[0]) == 1
    assert one.writer.generations_of(torch.arange(4)).tolist() == [1, 1, 0, 0]
    assert torch.equal(other.writer.generations_of(torch.arange(4)), one.writer.generations_of(torch.arange(4)))
    assert one[:]["n"].tolist() == other[:]["n"].tolist() == [4, 5, 2, 3] and one.write_count == other.write_count == 6


def test_generations_are_kept_for_those_who_ask_later():
    rb = buffer(capacity=4, track=False)
    rb.extend(rows(*range(6)))
    assert rb.writer.generations_of(torch.arange(4)).tolist() == [-1] * 4
    rb.set_writer(RoundRobinWriter(track_generations=True))
    assert rb.writer.generations_of(torch.arange(4)).tolist() == [1, 1, 0, 0]
