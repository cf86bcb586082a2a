"""The buffer wires its parts together: what goes in, what comes out, and what it says about itself."""

from __future__ import annotations

import itertools
import warnings
from unittest import mock

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, RECORDS, STORAGES, TENSORDICTS, buffer, plain
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)

each_storage = pytest.mark.parametrize("kind", STORAGES)
each_layout = pytest.mark.parametrize("kind", LAYOUTS)


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


def xs(rb):
    return [int(rb[i]["x"]) for i in range(len(rb))]


# --- in and out


@pytest.mark.parametrize(
    ("kind", "record"),
    [(kind, record) for kind in STORAGES for record in RECORDS if kind != "stack" or record in TENSORDICTS],
)
def test_what_goes_in_comes_out(kind, record):
    rb, batch = buffer(kind, 8, tensordicts=False), RECORDS[record](range(3))
    if kind == "list" and record in ("pytree", "tuple"):  # here a batch is a list of its records
        batch = [torch.utils._pytree.tree_map(lambda leaf, i=i: leaf[i], batch) for i in range(3)]
    assert rb.extend(batch).tolist() == [0, 1, 2]
    single = RECORDS[record]([7])
    single = (
        single[0] if record in (*TENSORDICTS, "tensor") else torch.utils._pytree.tree_map(lambda leaf: leaf[0], single)
    )
    assert rb.add(single) == 3
    assert plain(rb[3]) == plain(single)
    merged = plain(rb[:].to_tensordict() if kind == "stack" else rb[:])
    expected = RECORDS[record]([0, 1, 2, 7])
    assert merged == plain(expected.to_tensordict() if kind == "stack" else expected)
    assert plain(rb.read_all_in_order(2)) == plain(rb[:2])


@each_storage
def test_returned_handles_name_the_very_rows(kind):
    rb = buffer(kind, 4)
    slots, generations = rb.extend(rows(*range(10)), return_generations=True)
    now = rb.writer.generations_of(slots)
    assert [int(n) for n in torch.nonzero(generations == now)] == [6, 7, 8, 9]
    assert [xs(rb)[slot] for slot in slots[6:].tolist()] == [6, 7, 8, 9]
    slots, generations = rb.extend([], return_generations=True)
    assert slots.tolist() == generations.tolist() == []


@pytest.mark.parametrize("kind", [*LAYOUTS, "stack"])
def test_what_is_returned_carries_its_index(kind):
    rb = buffer(kind, 8, batch_size=5)
    rb.extend(rows(*range(6)))
    batch, info = rb.sample(return_info=True)
    assert torch.equal(batch["index"], info["index"]) and torch.equal(batch["x"], info["index"])
    assert torch.equal(batch["index_generation"], info["index_generation"]) and not batch["index_generation"].any()
    for index in (2, [4, 1], slice(1, 5, 2), *([] if kind == "stack" else [torch.tensor([[0, 1], [2, 3]])])):
        got = rb[index]
        assert got.batch_size == got["index"].shape == torch.arange(6)[index].shape and torch.equal(
            got["x"], got["index"]
        )
        assert "index_generation" not in got.keys()
    batch["index"].zero_(), info["index"].zero_()
    assert rb[:]["index"].tolist() == list(range(6))
    assert "index" not in buffer(rb.storage, tensordicts=False)[:].keys()
    assert "index_generation" not in buffer(rb.storage, track=False, batch_size=2).sample().keys()


@each_storage
def test_no_graph_is_kept(kind):
    rb, weight = buffer(kind, 4), torch.ones(2, requires_grad=True)
    for _ in range(3):
        rb.extend(TensorDict({"x": weight * 2}, [2]))
        rb.add(TensorDict({"x": (weight * 2)[0]}, []))
        rb[0] = TensorDict({"x": (weight * 3)[0]}, [])
    assert not rb[:]["x"].requires_grad and not rb.sample(2)["x"].requires_grad


# --- sampling


def test_the_batch_size_is_said_in_either_place():
    rb = ReplayBuffer(batch_size=3)
    rb.extend(range(5))
    assert rb.batch_size == 3 and len(rb.sample()) == len(rb.next()) == 3 and len(rb.sample(7)) == 7
    assert [len(batch) for batch in itertools.islice(rb, 4)] == [3] * 4
    unknown = ReplayBuffer(storage=rb.storage)
    assert unknown.batch_size is None and len(unknown.sample(2)) == 2
    for call in (unknown.sample, unknown.next, lambda: next(iter(unknown))):
        with pytest.raises(RuntimeError, match="batch.size"):
            call()
    for wrong in (0, -1, 2.0, True):
        for call in (lambda wrong=wrong: ReplayBuffer(batch_size=wrong), lambda wrong=wrong: rb.sample(wrong)):
            with pytest.raises(ValueError, match="batch_size must be a positive int"):
                call()


@each_storage
def test_the_same_seed_and_history_draw_the_same(kind):
    drawn = []
    for _ in range(2):
        rb = buffer(kind, 8, batch_size=6)
        rb.extend(rows(*range(8)))
        first = rb.sample()["x"].tolist()
        rb.extend(rows(8, 9))
        drawn.append((first, rb.sample()["x"].tolist(), rb.sample()["x"].tolist()))
    assert drawn[0] == drawn[1] and drawn[0][1] != drawn[0][2]


@pytest.mark.parametrize("storage", [ListStorage(9), LazyTensorStorage(9)])
def test_what_was_read_is_merged_as_one_likes(storage):
    rb = ReplayBuffer(storage=storage, collate_fn=lambda data: ("mine", data), batch_size=2)
    rb.extend(torch.arange(3))
    assert rb.sample()[0] == rb[:][0] == rb[[0]][0] == next(rb.__iter__())[0] == "mine"
    assert rb.sample(return_info=True)[0][0] == "mine"
    rb.set_storage(ListStorage(4))
    rb.extend(["a", None])
    assert rb[:] == ["a", None] and rb[1] is None
    rb.set_storage(ListStorage(4), collate_fn=len)
    rb.extend([1, 2, 3])
    assert rb[:] == 3


# --- state and parts


@pytest.mark.parametrize(("capacity", "sizes"), [(10, [5]), (4, [3, 3]), (4, [])])
def test_counters(capacity, sizes):
    rb = buffer(capacity=capacity)
    for size in sizes:
        rb.extend(rows(*range(size)))
    size, told = min(sum(sizes), capacity), rb.stats()
    assert told == {"size": size, "write_count": sum(sizes), "prefetch_queue_size": 0, "initialized": True,
                    "capacity": capacity, "utilization": size / capacity}  # fmt: skip
    assert len(rb) == size and rb.write_count == sum(sizes)
    assert not {"capacity", "utilization"} & ReplayBuffer(storage=ListStorage()).stats().keys()


@each_storage
def test_emptying(kind):
    rb = buffer(kind, 4, batch_size=2)
    rb.extend(rows(*range(6)))
    rb.empty(empty_write_count=False)
    assert (len(rb), rb.write_count) == (0, 6)
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample()
    rb.empty()
    assert rb.write_count == 0 and rb.extend(rows(7)).tolist() == [0] and xs(rb) == [7]


def test_parts_are_instances_or_make_them():
    rb = ReplayBuffer()
    assert (type(rb.storage), type(rb.sampler), type(rb.writer)) == (ListStorage, RandomSampler, RoundRobinWriter)
    assert rb.storage.max_size == 1000 and type(TensorDictReplayBuffer().writer) is TensorDictRoundRobinWriter
    storage, sampler, writer = LazyTensorStorage(3), RandomSampler(), RoundRobinWriter()
    rb = ReplayBuffer(storage=storage, sampler=sampler, writer=writer)
    assert (rb.storage, rb.sampler, rb.writer) == (storage, sampler, writer) and writer.storage is storage
    writer = RoundRobinWriter()
    rb = ReplayBuffer(storage=lambda: LazyStackStorage(5), sampler=RandomSampler, writer=lambda: writer)
    assert rb.storage.max_size == 5 and rb.writer is writer and writer.storage is rb.storage
    for part, wrong in itertools.product(("storage", "sampler", "writer"), (3, lambda: 3)):
        with pytest.raises(TypeError, match=f"ReplayBuffer: {part} must be a {part.capitalize()} or make one, got int"):
            ReplayBuffer(**{part: wrong})


def test_parts_can_be_exchanged():
    rb = buffer(capacity=4, batch_size=2)
    rb.extend(rows(1, 1, 2, 2))
    old, new = rb.sampler, PromptGroupSampler(num_groups=2, group_key="x")
    assert rb.set_sampler(new) is old and rb.sampler is new and sorted(rb.sample()["x"].tolist()) == [1, 2]
    old, writer = rb.writer, RoundRobinWriter()
    assert rb.set_writer(writer) is old and rb.add(rows(3)[0]) == 0 and xs(rb) == [3, 1, 2, 2]
    old, storage = rb.storage, TensorStorage(rows(9, 9, 8))
    assert rb.set_storage(storage) is old and len(rb) == 3 and sorted(rb.sample()["x"].tolist()) == [8, 9]
    rb.add(rows(7)[0])
    assert xs(rb) == [7, 9, 8] and old.write_count == 5 and storage.write_count == 1


def test_two_buffers_on_one_storage_see_each_other():
    one = buffer(capacity=4, sampler=PromptGroupSampler(num_groups=1, group_key="x"), batch_size=1)
    other = buffer(one.storage)
    one.extend(rows(1, 1))
    assert one.sample()["x"].item() == 1 and len(other) == 2
    other.set_("x", torch.tensor([5, 5]))
    assert one.sample()["x"].item() == 5
    other.empty()
    with pytest.raises(RuntimeError, match="empty"):
        one.sample()


def test_it_shows_its_parts():
    shown = repr(ReplayBuffer(storage=LazyTensorStorage(4), batch_size=3))
    assert all(
        part in shown
        for part in ("LazyTensorStorage(len=0, max_size=4", "RandomSampler()", "RoundRobinWriter", "batch_size=3")
    )


@pytest.mark.parametrize("kind", LAYOUTS)
def test_records_with_a_batch_size_of_their_own_carry_their_index(kind):
    rb = buffer(kind, batch_size=4)
    rb.extend(TensorDict({"x": torch.arange(24).view(8, 3)}, [8, 3]))
    batch = rb.sample()
    assert batch.batch_size == (4, 3) and batch["index"].shape == batch["index_generation"].shape == (4, 3)
    assert (batch["x"] == batch["index"] * 3 + torch.arange(3)).all()
    assert rb[2]["index"].tolist() == [2, 2, 2]
    rb.extend(batch)  # as it is
    assert rb[:4]["x"].tolist() == batch["x"].tolist()


def test_a_writer_belongs_to_one_storage():
    writer = RoundRobinWriter()
    first = ReplayBuffer(storage=LazyTensorStorage(4), writer=writer)
    with pytest.raises(RuntimeError, match="Make a new writer"):
        ReplayBuffer(storage=LazyTensorStorage(4), writer=writer)
    first.extend(torch.arange(2))
    assert len(first) == 2
    first.set_storage(LazyTensorStorage(4))
    first.extend(torch.arange(3))
    assert len(first) == 3


def test_a_warning_comes_when_the_draw_is_done():
    sampler = PromptGroupSampler(num_groups=2, group_key="g")
    rb = ReplayBuffer(storage=LazyTensorStorage(4), sampler=sampler, batch_size=4)
    rb.extend({"g": torch.tensor([7, 7, 7])})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with mock.patch("warnings.showwarning", lambda *told: rb.empty()):
            drawn = rb.sample()
    assert drawn["g"].tolist() == [7] * 4 and len(rb) == 0
