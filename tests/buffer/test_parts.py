"""A buffer takes parts, makes them, exchanges them and shows them."""

from __future__ import annotations

import itertools
import threading
from unittest import mock

import pytest
import torch
from tensordict import TensorDict

from tests.cases import buffer
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


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


def xs(rb):
    return [int(rb[i]["x"]) for i in range(len(rb))]


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


def test_it_shows_its_parts():
    shown = repr(ReplayBuffer(storage=LazyTensorStorage(4), batch_size=3))
    assert all(
        part in shown
        for part in ("LazyTensorStorage(len=0, max_size=4", "RandomSampler()", "RoundRobinWriter", "batch_size=3")
    )


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


def test_a_storage_is_exchanged_in_one_step():
    """Whoever uses the buffer meanwhile writes and draws in one storage, and sees what it wrote itself."""
    rb = ReplayBuffer(storage=LazyTensorStorage(1), writer=RoundRobinWriter(), batch_size=1)
    rb.add(torch.tensor(-1))
    stop, wrong = threading.Event(), []

    def exchange():
        while not stop.is_set():
            new = LazyTensorStorage(1)
            new.append(torch.tensor([-1]))
            rb.set_storage(new)

    exchanging = threading.Thread(target=exchange)
    exchanging.start()
    for number in range(300):
        before = rb.storage
        rb.add(torch.tensor(number))
        read = int(rb.sample())
        if rb.storage is before and read != number:
            wrong.append(number)
    stop.set()
    exchanging.join()
    assert not wrong


def test_an_exchange_that_fails_has_changed_nothing():
    rb = ReplayBuffer(storage=LazyTensorStorage(3), batch_size=2)
    rb.extend(torch.arange(3))
    storage, writer, sampler = rb.storage, rb.writer, rb.sampler
    taken = RoundRobinWriter()
    ReplayBuffer(storage=LazyTensorStorage(3), writer=taken)
    with pytest.raises(RuntimeError, match="Make a new writer"):
        rb.set_writer(taken)
    with mock.patch.object(RoundRobinWriter, "register_storage", side_effect=[OSError, None]):
        with pytest.raises(OSError):
            rb.set_storage(LazyTensorStorage(9))
    for wrong in (lambda: rb.set_storage(3), lambda: rb.set_sampler(3), lambda: rb.set_writer(3)):
        with pytest.raises(TypeError):
            wrong()
    assert (rb.storage, rb.writer, rb.sampler, writer.storage) == (storage, writer, sampler, storage)
    rb.extend(torch.arange(3, 6))
    assert rb[:].tolist() == [3, 4, 5] and len(rb.sample()) == 2


@pytest.mark.parametrize("kind", [ReplayBuffer, TensorDictReplayBuffer])
def test_a_misspelt_argument_is_named_with_the_class_that_users_know(kind):
    with pytest.raises(TypeError, match=r"ReplayBuffer\.__init__\(\).*'storge'"):
        kind(storge=LazyTensorStorage(3))
