"""What every storage owes to those who use it: counters, generations, indices, and nothing changed by what failed."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from tests.cases import RECORDS, STORAGES, plain
from torchrb import LazyMemmapStorage, LazyStackStorage, LazyTensorStorage, ListStorage, TensorStorage
from torchrb.journal import JournalReader
from torchrb.storages.base import Placement

each_storage = pytest.mark.parametrize("kind", STORAGES)
CAPACITY = 4


def batch(numbers):
    return RECORDS["nested"](numbers)


def numbers_of(storage, index=slice(None)):
    rows = storage[index]
    return [int(row["n"]) for row in (rows if isinstance(rows, list) else rows.unbind(0))]


def stored(kind, numbers=()):
    storage = STORAGES[kind](CAPACITY)
    if numbers:
        storage.append(batch(numbers))
    return storage


@each_storage
@pytest.mark.parametrize("sizes", [[1], [4], [3, 3], [4, 4], [10], [0, 2, 0], [1] * 9, [17, 1]])
def test_a_ring_holds_the_last_records(kind, sizes):
    storage, written, counts = stored(kind), [], torch.zeros(CAPACITY, dtype=torch.int64)
    for size in sizes:
        numbers = range(len(written), len(written) + size)
        slots, generations = storage.append(batch(numbers))
        assert slots.tolist() == [n % CAPACITY for n in numbers]
        assert generations.tolist() == [n // CAPACITY for n in numbers]
        written += numbers
        counts += torch.bincount(slots, minlength=CAPACITY)
    total = len(written)
    assert len(storage) == min(total, CAPACITY)
    assert storage.write_count == total and storage.cursor == total % CAPACITY
    assert numbers_of(storage) == [
        max(n for n in written if n % CAPACITY == slot) for slot in range(min(total, CAPACITY))
    ]
    assert torch.equal(storage.generations(torch.arange(CAPACITY)), counts - 1)


@each_storage
def test_one_record_is_a_batch_of_one(kind):
    one, other = stored(kind), stored(kind)
    for n in range(6):
        slots, generations = one.append(batch([n])[0], one=True)
        assert slots.shape == generations.shape == (1,)
        other.append(batch([n]))
    assert torch.equal(one.control, other.control) and torch.equal(one.journal, other.journal)
    assert [plain(one[i]) for i in range(CAPACITY)] == [plain(other[i]) for i in range(CAPACITY)]


@each_storage
def test_writing_in_place_moves_generations_only(kind):
    storage = stored(kind, range(3))
    before = storage.control.clone()
    assert storage.write(torch.tensor([2, 0]), batch([20, 30])).tolist() == [1, 1]
    assert (len(storage), storage.cursor, storage.write_count) == (3, 3, 3)
    assert numbers_of(storage) == [30, 1, 20]
    assert storage.generations(torch.arange(4)).tolist() == [1, 0, 1, -1]
    assert storage.journal_position == before[3] + 2


@each_storage
@pytest.mark.parametrize("reset", [True, False])
def test_a_cleared_storage_is_empty_and_starts_over(kind, reset):
    storage = stored(kind, range(6))
    storage.clear(reset)
    assert (len(storage), storage.cursor, storage.write_count) == (0, 0, 0 if reset else 6)
    assert storage.generations(torch.arange(4)).tolist() == [2, 2, 1, 1]
    storage.clear(reset)
    assert storage.generations(torch.arange(4)).tolist() == [2, 2, 1, 1]
    _, generations = storage.append(batch([7]))
    assert generations.tolist() == [3] and numbers_of(storage) == [7]
    assert storage.write_count == (1 if reset else 7)
    for index in (1, -2):
        with pytest.raises(IndexError):
            storage[index]


@each_storage
def test_clearing_what_was_never_written_changes_nothing(kind):
    storage = stored(kind)
    storage.clear()
    assert len(storage) == 0 and storage.generations(torch.arange(2)).tolist() == [-1, -1]


@each_storage
@pytest.mark.parametrize("index", [0, -1, slice(1, 3), slice(None, None, -2), [2, 0], range(2), torch.tensor([1, 1])])
def test_reading_and_writing_mean_the_same_rows(kind, index):
    storage, told = stored(kind, range(CAPACITY)), list(range(CAPACITY))
    rows = torch.arange(CAPACITY)[
        torch.tensor(list(range(CAPACITY))[index]) if isinstance(index, slice) else torch.as_tensor(index)
    ]
    if rows.dim():
        assert numbers_of(storage, index) == rows.tolist()
        storage[index] = batch([n + 50 for n in range(len(rows))])
        for place, row in enumerate(rows.tolist()):
            told[row] = place + 50
    else:
        assert int(storage[index]["n"]) == int(rows)
        storage[index] = batch([50])[0]
        told[int(rows)] = 50
    assert numbers_of(storage) == told


@each_storage
@pytest.mark.parametrize("wrong", ["too many", "too few", "out of range", "no index", "no record"])
def test_a_write_that_fails_has_changed_nothing(kind, wrong):
    storage = stored(kind, range(3))
    control, journal, headers = storage.control.clone(), storage.journal.clone(), storage.tables[0].clone()
    rows = [plain(storage[i]) for i in range(3)]
    with pytest.raises((ValueError, IndexError, TypeError)):
        match wrong:
            case "too many":
                storage[[0, 1]] = batch([7, 8, 9])
            case "too few":
                storage[:] = batch([7])
            case "out of range":
                storage[[0, 3]] = batch([7, 8])
            case "no index":
                storage["n"] = batch([7])
            case "no record":
                storage[[0, 1]] = 5
    assert torch.equal(storage.control, control) and torch.equal(storage.journal, journal)
    assert torch.equal(storage.tables[0], headers)
    assert [plain(storage[i]) for i in range(3)] == rows


@each_storage
def test_the_journal_names_every_row_written(kind):
    storage, reader = stored(kind, [1, 2]), JournalReader()
    reader.catch_up(storage.control, storage.journal)
    for write, expected in [
        (lambda: storage.append(batch([3, 4, 5])), [0, 2, 3]),
        (lambda: storage.write(torch.tensor([3, 1, 3]), batch([1, 2, 3])), [1, 3]),
        (lambda: storage.clear(), [0, 1, 2, 3]),
        (lambda: storage.append(batch([])), []),
    ]:
        write()
        assert reader.catch_up(storage.control, storage.journal).tolist() == expected


@pytest.mark.parametrize("make", [LazyTensorStorage, ListStorage, LazyStackStorage])
@pytest.mark.parametrize("size", [0, -1, 2.0, "3", True, 2**32])
def test_a_capacity_that_is_none_is_refused(make, size):
    with pytest.raises(ValueError, match=f"{make.__name__}: max_size must be an int from 1"):
        make(size)


@pytest.mark.parametrize("kind", ["list", "stack"])
def test_a_list_has_no_index_of_several_dimensions(kind):
    with pytest.raises(TypeError, match=r"an index must have one dimension, got shape \[1, 2\]"):
        stored(kind, range(2))[torch.tensor([[0, 1]])]


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, pickle.dumps])
def test_a_storage_is_neither_copied_nor_pickled_and_says_so(kind, duplicate):
    with pytest.raises(TypeError, match=r"neither copied nor pickled.*storage\[:\]"):
        duplicate(STORAGES[kind](4))


def test_a_device_without_data_is_refused():
    with pytest.raises(ValueError, match="LazyTensorStorage: device must be one that keeps data, got 'meta'"):
        LazyTensorStorage(4, device="meta")


@each_storage
def test_a_moment_lasts_until_something_is_written(kind):
    storage = stored(kind, [1, 2, 3])
    moments = [storage.moment()]
    assert storage[:] is not None and len(storage) == 3 and moments == [storage.moment()]
    for write in (
        lambda: storage.append(batch([4])),
        lambda: storage.set(0, batch([5])[0]),
        lambda: storage.set(slice(None), batch([6, 7, 8, 9])),
        storage.clear,
        lambda: storage.append(batch([1, 2, 3])),
    ):
        write()
        moments.append(storage.moment())
    assert len(set(moments)) == len(moments)


def test_the_moment_of_adopted_tensors_ends_when_their_user_writes_too():
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            values = torch.zeros(4)
        storage = TensorStorage(values)
        before = storage.moment()
        assert storage.moment() == before
        if not values.is_inference():  # no version is kept of these
            values += 1
            assert storage.moment() != before


def placed(slots, storage, cursor=2, writes=9):
    return lambda num, values_of: Placement(torch.tensor(slots[:num]), cursor, writes)


@each_storage
@pytest.mark.parametrize("first", [True, False])
def test_rows_are_placed_where_they_are_told_and_counted_as_they_are_told(kind, first):
    storage = stored(kind, [] if first else [10, 11, 12])
    slots, generations = storage.place(batch([1, 2, 3, 4]), placed([1, -1, 0, 2], storage))
    assert slots.tolist() == [1, -1, 0, 2] and numbers_of(storage) == [3, 1, 4]
    assert generations.tolist() == ([0, -1, 0, 0] if first else [1, -1, 1, 1])
    assert (storage.cursor, storage.write_count, len(storage)) == (2, 9, 3)
    slots, generations = storage.place(batch([5])[0], placed([-1], storage, 0, 0), one=True)
    assert slots.tolist() == generations.tolist() == [-1]
    assert (storage.cursor, storage.write_count, numbers_of(storage)) == (2, 9, [3, 1, 4])  # as nothing was written
    slots, generations = storage.place(batch([6, 7]), placed([2, 2], storage, 3, 11))
    assert numbers_of(storage) == [3, 1, 7] and generations[1] == generations[0] + 1
    empty, _ = storage.place(batch([6])[:0], placed([], storage, 0, 0))
    assert empty.shape == (0,) and storage.write_count == 11


@each_storage
def test_whoever_places_rows_may_ask_for_their_fields_and_for_those_stored(kind):
    storage, asked = stored(kind, [10, 11]), []

    def choose(num, values_of):
        asked.append(numbers(values_of("n")) + numbers(storage.values_at("n", torch.tensor([1, 0]), "place")))
        return Placement(torch.arange(num), 0, num)

    def numbers(values):
        return [int(value) for value in values]

    storage.place(batch([1, 2]), choose)
    assert asked == [[1, 2, 11, 10]]
    for key in ("m", ("next", "m")):
        with pytest.raises(KeyError, match="place: no field .* is stored; stored are"):
            storage.values_at(key, torch.tensor([0]), "place")
        with pytest.raises(KeyError, match="extend: no field .* is stored; stored are"):
            storage.place(batch([7]), lambda num, values_of, key=key: values_of(key))
    assert numbers_of(storage) == [1, 2]


@pytest.mark.parametrize("kind", [*STORAGES, "memmap"])
def test_fields_are_read_without_the_rest_of_the_record(kind):
    storage = LazyMemmapStorage(CAPACITY) if kind == "memmap" else STORAGES[kind](CAPACITY)
    assert storage.field_paths == []
    storage.append(RECORDS["texts"]([0, 1, 2]))
    assert sorted(storage.field_paths) == [("n",), ("notes",), ("prompt",)]
    prompts, n = storage.read_fields([("prompt",), ("n",)], torch.tensor([2, 0]))
    assert prompts == ["prompt é 2", None] and n.tolist() == [2, 0]
    (notes,) = storage.read_fields([("notes",)], torch.tensor([1]))
    notes[0].append("mine")
    n.fill_(9)
    assert storage.read_fields([("notes",)], torch.tensor([1])) == [[[1, ["x", None]]]]
    nested = STORAGES[kind if kind != "memmap" else next(iter(STORAGES))](CAPACITY)
    nested.append(batch([4, 5]))
    rewards, deep = nested.read_fields([("next", "r"), ("next", "deep", "b")], torch.tensor([1]))
    assert rewards.dtype == torch.float64 and rewards.shape == (1, 1) and deep.dtype == torch.bool


def test_records_without_fields_have_none():
    for storage in (LazyTensorStorage(4), ListStorage(4)):
        storage.append(torch.arange(3))
        assert storage.field_paths == []
