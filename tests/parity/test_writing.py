"""The same histories of writes leave the same records, counters and generations as in torchrl."""

from __future__ import annotations

import random

import pytest
import torch

from tests.parity.peer import both, buffer, content, outcome, rows, state

STORAGES = ("LazyTensorStorage", "LazyStackStorage")
each_storage = pytest.mark.parametrize("storage", STORAGES)


def assert_same(history):
    theirs, ours = both(history)
    assert ours == theirs


@each_storage
@pytest.mark.parametrize("capacity", [1, 4, 7])
@pytest.mark.parametrize("seed", range(4))
def test_adding_and_extending(storage, capacity, seed):
    def history(lib):
        rng, rb, seen, number = random.Random(seed), buffer(lib, capacity, storage), [], 0
        for _ in range(25):
            size = rng.choice([0, 1, 1, 2, capacity, 2 * capacity + 1])
            numbers = range(number, number + size)
            number += size
            what = rng.randrange(8)
            if size == 0:
                if what == 0:
                    rb.empty(rng.random() < 0.5)
                    rb.extend(rows(number))  # so that no second `empty` meets empty slots, see below
            elif what < 4 or size > 1:
                seen.append(rb.extend(rows(*numbers)).tolist())
            else:
                seen.append(int(rb.add(rows(number)[0])))
            seen.append(state(rb))
        return seen

    assert_same(history)


@pytest.mark.parametrize("writer", ["RoundRobinWriter", "TensorDictRoundRobinWriter"])
def test_without_tracking_generations_are_unknown(writer):
    def history(lib):
        rb = lib.ReplayBuffer(storage=lib.LazyTensorStorage(4), writer=getattr(lib, writer)())
        index = rb.extend(rows(*range(6)))
        return rb.writer.generations_of(index).tolist(), rb.writer.tracks_generations, state(rb)

    assert_same(history)


@pytest.mark.parametrize("items", [["a", 1, None], list(range(10)), [{"a": 1}, [2]], ["only"]])
def test_lists_of_any_objects(items):
    def history(lib):
        rb = lib.ReplayBuffer(storage=lib.ListStorage(4), collate_fn=lambda records: records)
        return (
            rb.extend(items).tolist(),
            int(rb.add("added")),
            rb.extend(items).tolist(),
            rb[:],
            rb[0],
            len(rb),
            rb.write_count,
        )

    assert_same(history)


@pytest.mark.parametrize(
    "data", [{"a": torch.arange(6)}, (torch.arange(6), torch.ones(6, 2)), {"a": (torch.arange(6.0),)}]
)
def test_pytrees(data):
    def history(lib):
        rb = lib.ReplayBuffer(storage=lib.LazyTensorStorage(4))
        index = rb.extend(data)
        return index.tolist(), str(rb[:]), len(rb), rb.write_count

    assert_same(history)


@pytest.mark.parametrize(
    "index",
    [0, -1, slice(None), slice(1, None, 2), [2, 0], range(2), torch.tensor([[0, 1], [3, 3]]), torch.arange(4) % 2 == 0],
)
def test_every_kind_of_index_reads_the_same(index):
    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(*range(6)))
        got = rb[index]
        return {key: got[key].tolist() for key in ("x", "wide", "index")}, tuple(got.batch_size)

    assert_same(history)


@pytest.mark.parametrize("index", [3, 5, -4, [0, 3]])
def test_a_slot_past_what_is_stored_is_an_index_error(index):
    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1, 2))
        return outcome(lambda: rb[index])

    assert both(history) == (IndexError, IndexError)


def test_reading_and_writing_all_in_order():
    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(*range(6)))
        told = [rb.read_all_in_order()["x"].tolist(), rb.read_all_in_order(2)["x"].tolist()]
        rb.write_all(rb.read_all_in_order())
        rb.write_all(rows(10, 11, 12, 13)), rb.write_all(rows(20, 21), end=2), rb.write_all(rows(30), end=1)
        return told, content(rb), len(rb), rb.write_count

    assert_same(history)


def test_setting_fields():
    def history(lib):
        rb, told = buffer(lib), []
        rb.extend(rows(*range(6)))
        for change in (
            lambda: rb.set_("x", torch.arange(4)),
            lambda: rb.set_at_("x", torch.tensor([8, 9]), torch.tensor([0, 2])),
            lambda: rb.set_at_("x", torch.tensor(1), 3),
            lambda: rb.set_at_(("in", "b"), torch.tensor([True, True]), slice(0, 2)),
            lambda: rb.update_({"x": torch.arange(4) + 10, "v": torch.ones(4, dtype=torch.int64)}),
            lambda: rb.update_({"x": torch.arange(4), "v": torch.zeros(4, dtype=torch.int64)}, keys_to_update=["v"]),
            lambda: rb.update_(rows(5, 6, 7, 8)),
            lambda: rb.update_(rb[:]),
        ):
            assert change() is rb
            told.append(state(rb))
        return told

    assert_same(history)


@each_storage
def test_setting_fields_at_slots(storage):
    def history(lib):
        rb = buffer(lib, storage=storage)
        rb.extend(rows(*range(6)))
        rb.set_at_("x", torch.tensor([8, 9]), torch.tensor([0, 2]))
        return state(rb)

    assert_same(history)


def test_writing_at_slots_steps_their_generations():
    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(0, 1, 2))
        rb.writer.write_at(torch.tensor([2, 0]), rows(20, 30))
        rb.writer.write_at(1, rows(40)[0])
        told = state(rb)
        del told["write_count"]
        return told, rb.extend(rows(5)).tolist()

    assert_same(history)


@pytest.mark.parametrize(
    "index", [0, 3, 9, -1, (2,), torch.tensor([[0, 1], [3, 9]]), torch.tensor(1), torch.tensor([0], dtype=torch.int32)]
)
def test_generations_of_every_kind_of_index(index):
    def history(lib):
        rb = buffer(lib)
        rb.extend(rows(*range(7))[:3]), rb.extend(rows(*range(3)))
        told = rb.writer.generations_of(index)
        return told.tolist(), str(told.dtype), tuple(told.shape)

    assert_same(history)


def test_two_buffers_on_one_storage_stamp_one_set_of_generations():
    def history(lib):
        one = buffer(lib)
        other = lib.TensorDictReplayBuffer(
            storage=one.storage, writer=lib.TensorDictRoundRobinWriter(track_generations=True)
        )
        one.extend(rows(*range(4)))
        other.writer.write_at(torch.tensor([1]), rows(9))
        return one.writer.generations_of(torch.arange(4)).tolist(), content(one)

    assert_same(history)


def test_existing_tensors_are_adopted():
    def history(lib):
        mine = rows(0, 1, 2)
        rb = lib.ReplayBuffer(storage=lib.TensorStorage(mine))
        told = len(rb), rb.write_count
        index = rb.extend(rows(7)).tolist()
        return told, index, mine["x"].tolist(), content(rb), len(rb)

    assert_same(history)


def test_counters():
    def history(lib):
        rb = buffer(lib, 10)
        told = [rb.stats()]
        rb.extend(rows(*range(5)))
        told.append(rb.stats())
        rb.empty(empty_write_count=False)
        return [*told, rb.stats()]

    assert_same(history)


def test_a_dataset_that_allows_no_writing():
    def history(lib):
        rb = lib.ReplayBuffer(storage=lib.TensorStorage(torch.arange(4)), writer=lib.ImmutableDatasetWriter())
        calls = (lambda: rb.add(torch.tensor(1)), lambda: rb.extend(torch.arange(2)), rb.empty)
        refused = [outcome(call) for call in (*calls, lambda: rb.writer.extend(torch.arange(2)))]
        told = rb.stats()["write_count"], len(rb), rb.writer.tracks_generations, rb.writer.generations_of(0).tolist()
        return refused, told, sorted(set(rb.sample(100).tolist()))

    assert_same(history)


def test_a_dataset_that_allows_no_writing_cannot_be_written_in_place():
    """torchrl refuses new records only."""

    def history(lib):
        rb = lib.ReplayBuffer(storage=lib.TensorStorage(torch.arange(4)), writer=lib.ImmutableDatasetWriter())
        return outcome(lambda: rb.__setitem__(0, torch.tensor(9))), rb[:].tolist()

    assert both(history) == ((None, [9, 1, 2, 3]), (RuntimeError, [0, 1, 2, 3]))
