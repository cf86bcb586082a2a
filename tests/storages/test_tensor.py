"""Storages of tensors give back what was stored, whatever it is made of, and share nothing with anybody."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from tensordict import TensorDict

from tests.cases import DTYPES, LAYOUTS, RECORDS, SHAPES, STORAGES, TENSORDICTS, filled, plain
from torchrb import LazyTensorStorage


def rows_of(kind, numbers, layout="packed", capacity=8):
    storage = STORAGES[layout](capacity)
    storage.append(RECORDS[kind](numbers))
    return storage


def slots(*numbers):
    return torch.tensor(numbers, dtype=torch.int64)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", RECORDS)
def test_rows_come_back_from_any_slots_in_any_order(kind, layout):
    storage = rows_of(kind, range(5), layout)
    for asked in ([3], [4, 0, 0, 2], []):
        got, generations = storage.read(slots(*asked))
        assert plain(got) == plain(RECORDS[kind](asked)) or not asked
        assert generations.tolist() == [0] * len(asked)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_in_one_record(dtype, layout):
    def make(numbers):
        return {f"{shape}": filled(numbers, dtype, shape) for shape in SHAPES} | {"n": torch.as_tensor(numbers)}

    storage = STORAGES[layout](4)
    storage.append(make([1, 2, 3, 4, 5, 6]))
    assert plain(storage[:]) == plain(make([5, 6, 3, 4]))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", RECORDS)
def test_a_record_overwritten_alone_leaves_its_neighbours(kind, layout):
    storage = rows_of(kind, [1, 2, 3, 4], layout)
    storage.write(slots(2, 0), RECORDS[kind]([30, 10]))
    assert plain(storage[:]) == plain(RECORDS[kind]([10, 2, 30, 4]))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_of_rows_for_one_slot_the_last_stays_whole(layout):
    storage = rows_of("texts", [1, 2, 3], layout)
    storage.write(slots(1, 0, 1), RECORDS["texts"]([7, 8, 9]))
    assert plain(storage[:]) == plain(RECORDS["texts"]([8, 9, 3]))
    assert storage.generations(slots(0, 1, 2)).tolist() == [1, 2, 0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", RECORDS)
def test_a_first_batch_that_is_refused_teaches_nothing(kind, layout):
    storage = STORAGES[layout](4)
    with pytest.raises(ValueError, match="0 records are addressed, got data for 2"):
        storage[:] = RECORDS[kind]([1, 2])
    with pytest.raises((TypeError, ValueError)):
        storage.append({"a": torch.ones(2), "b": "text"})
    with pytest.raises(ValueError):
        storage.append({"a": torch.ones(2), "b": torch.ones(3)})
    assert storage.structure is None and storage.tables == [] and not storage.control.any()
    storage.append(RECORDS[kind]([1]))
    assert len(storage) == 1


@pytest.mark.parametrize("kind", RECORDS)
def test_what_is_handed_in_may_change_later(kind):
    batch = RECORDS[kind]([1, 2])
    storage = LazyTensorStorage(4)
    storage.append(batch)
    leaves = batch.values(True, True) if kind in TENSORDICTS else torch.utils._pytree.tree_leaves(batch)
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            leaf.zero_()
    assert plain(storage[:]) == plain(RECORDS[kind]([1, 2]))


@pytest.mark.parametrize("index", [slice(None), 0, [0, 1]])
@pytest.mark.parametrize("kind", TENSORDICTS)
def test_what_is_handed_out_may_change_later(kind, index):
    storage = rows_of(kind, [1, 2])
    for leaf in storage[index].values(True, True):
        if isinstance(leaf, torch.Tensor):
            leaf.zero_()
    if kind == "texts":
        storage[:]["notes"][0].append("more")
    assert plain(storage[:]) == plain(RECORDS[kind]([1, 2]))


class Note(str):
    """A string that can be watched."""


def test_python_values_are_let_go_with_their_row():
    storage = LazyTensorStorage(2)
    storage.append(TensorDict({"n": torch.arange(1)}, [1]).set_non_tensor("s", "old"))
    kept = storage._objects[0]
    watched = Note("watched")
    kept[0] = watched
    gone = weakref.ref(watched)
    del watched
    storage.append(TensorDict({"n": torch.arange(2), "s": ["a", "b"]}, [2]))
    gc.collect()
    assert gone() is None
    storage.clear()
    assert storage._objects == [[None, None]]


def test_nothing_was_stored_yet():
    storage = LazyTensorStorage(2)
    with pytest.raises(RuntimeError, match="nothing was stored yet"):
        storage[:]
    with pytest.raises(KeyError, match="no field 'x' is stored"):
        storage.write_fields(slots(), {"x": torch.ones(0)})
    assert storage.generations(slots(0, 1)).tolist() == [-1, -1]


def test_an_unknown_layout_is_an_error():
    with pytest.raises(ValueError, match="layout must be 'packed' or 'columns', got 'rows'"):
        LazyTensorStorage(2, layout="rows")
