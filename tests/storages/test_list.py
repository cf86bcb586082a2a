"""A list storage keeps anything, and grows when it has no bound."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from tests.cases import RECORDS, plain
from torchrb import ListStorage

ANYTHING = [None, "a", 1, 2.5, torch.ones(2), {"a": [torch.zeros(1)]}, (1, 2), [], RECORDS["nested"]([1]), b"x"]


def test_any_object_comes_back():
    storage = ListStorage(len(ANYTHING))
    storage.append(ANYTHING)
    assert plain(storage[:]) == plain(ANYTHING)
    for i, item in enumerate(ANYTHING):
        assert plain(storage[i]) == plain(item) and type(storage[i]) is type(item)


@pytest.mark.parametrize(
    "items", [[1, 2], (1, 2), range(1, 3), {1: 0, 2: 0}.keys(), iter([1, 2]), torch.tensor([1, 2])]
)
def test_any_iterable_is_its_records(items):
    storage = ListStorage(4)
    slots, _ = storage.append(items)
    assert slots.tolist() == [0, 1] and [int(item) for item in storage[:]] == [1, 2]


@pytest.mark.parametrize("data", ["ab", b"ab", {"a": 1}, 3, None])
def test_what_is_not_an_iterable_of_records_is_refused(data):
    storage = ListStorage(4)
    with pytest.raises(
        TypeError, match=r"extend: ListStorage takes an iterable of records.*Put a single one into a list"
    ):
        storage.append(data)
    storage.append(data, one=True)
    assert storage[0] == data


def test_an_iterable_that_breaks_off_writes_nothing():
    def items():
        yield 1
        raise RuntimeError("no more")

    storage = ListStorage(4)
    with pytest.raises(RuntimeError, match="no more"):
        storage.append(items())
    assert len(storage) == 0 and storage.write_count == 0


@pytest.mark.parametrize("batches", [[1024], [1023, 1, 1], [5000], [1024, 1024, 1024], [1] * 3, [2047, 2]])
def test_without_a_bound_nothing_is_ever_overwritten(batches):
    storage, expected = ListStorage(), []
    for size in batches:
        items = list(range(len(expected), len(expected) + size))
        slots, generations = storage.append(items)
        assert slots.tolist() == items and not generations.any()
        expected += items
    assert len(storage) == storage.write_count == storage.cursor == len(expected)
    assert storage[:] == expected
    assert not storage.generations(torch.arange(len(expected))).any()
    storage.clear()
    storage.append([1])
    assert storage.generations(torch.arange(3)).tolist() == [2] + [1] * min(2, len(expected) - 1)


def test_growing_keeps_generations_and_counters():
    storage = ListStorage()
    storage.append(range(1000))
    storage.write(torch.tensor([3, 3, 7]), [0, 1, 2])
    storage.append(range(3000))
    assert storage.generations(torch.tensor([3, 7, 8, 3999, 4000])).tolist() == [2, 1, 0, 0, -1]
    assert storage[3] == 1 and storage[7] == 2 and len(storage) == 4000


class Watched:
    pass


@pytest.mark.parametrize("how", ["append", "write", "clear"])
def test_objects_are_let_go_with_their_slot(how):
    storage = ListStorage(2)
    storage.append([Watched(), 0])
    gone = weakref.ref(storage._items[0])
    {
        "append": lambda: storage.append([1]),
        "write": lambda: storage.write(torch.tensor([0]), [1]),
        "clear": storage.clear,
    }[how]()
    gc.collect()
    assert gone() is None


def test_tensors_go_to_the_device_of_the_storage():
    storage = ListStorage(4, device="meta")
    storage.append([torch.ones(2), {"a": torch.ones(1)}, "text"])
    assert storage._items[0].is_meta and storage._items[1]["a"].is_meta and storage._items[2] == "text"


def test_there_are_no_fields():
    storage = ListStorage(4)
    storage.append([1])
    with pytest.raises(TypeError, match="has no fields to set"):
        storage.write_fields(torch.tensor([0]), {"a": torch.ones(1)})
    with pytest.raises(TypeError, match="cannot group"):
        storage.key_column("a")
    with pytest.raises(TypeError, match="has no reward column"):
        storage.reward_column("a")


def test_a_write_of_another_number_of_records_is_refused():
    storage = ListStorage(4)
    storage.append([1, 2])
    with pytest.raises(ValueError, match="1 records are addressed, got data for 2"):
        storage.write(torch.tensor([0]), [8, 9])
    assert storage[:] == [1, 2] and storage.generations(torch.arange(2)).tolist() == [0, 0]
