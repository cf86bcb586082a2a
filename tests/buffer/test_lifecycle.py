"""A buffer begins when it is made or first used, ends when it is shut down, and says how it is doing."""

from __future__ import annotations

import functools
import pickle
import threading

import pytest
import torch
import torch.multiprocessing as mp
from tensordict import TensorDict

from tests.cases import buffer
from tests.spec.early import drawn_ahead, threads, until
from torchrb import (
    LazyTensorStorage,
    ListStorage,
    PromptGroupSampler,
    RandomSampler,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
)


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


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


# --- delayed


STORAGE = functools.partial(LazyTensorStorage, 6)
USES = {
    "len": len,
    "write": lambda rb: rb.extend(torch.arange(3)),
    "add": lambda rb: rb.add(torch.tensor(1)),
    "read": lambda rb: pytest.raises(RuntimeError, rb.sample, 1),
    "index": lambda rb: rb[:0] if len(rb) else None,
    "storage": lambda rb: rb.storage,
    "sampler": lambda rb: rb.sampler,
    "writer": lambda rb: rb.writer,
    "write_count": lambda rb: rb.write_count,
    "empty": lambda rb: rb.empty(),
    "set_sampler": lambda rb: rb.set_sampler(RandomSampler()),
    "set_writer": lambda rb: rb.set_writer(RoundRobinWriter()),
    "set_storage": lambda rb: rb.set_storage(LazyTensorStorage(6)),
    "share": lambda rb: rb.share(),
}
LOOKS = {
    "repr": repr,
    "stats": lambda rb: rb.stats(),
    "batch_size": lambda rb: rb.batch_size,
    "shared": lambda rb: rb.shared,
    "generator": lambda rb: rb.generator,
    "is_alive": lambda rb: rb.is_alive,
    "start": lambda rb: rb.start(),
    "client": lambda rb: rb.client(),
    "service_backend": lambda rb: rb.service_backend,
    "pickle": pickle.dumps,
    "shutdown": lambda rb: rb.shutdown(),
    "hasattr": lambda rb: hasattr(rb, "nothing_of_this_name"),
}


@pytest.mark.parametrize("use", USES)
def test_the_first_use_makes_the_parts_once(use):
    made = []
    rb = ReplayBuffer(
        storage=lambda: made.append("storage") or STORAGE(),
        sampler=lambda: made.append("sampler") or RandomSampler(),
        writer=lambda: made.append("writer") or RoundRobinWriter(),
        delayed_init=True,
    )
    assert not rb.initialized and not made
    USES[use](rb)
    assert rb.initialized and made == ["storage", "sampler", "writer"]
    rb.extend(torch.arange(3))
    assert len(rb.sample(2)) == 2 and len(made) == 3


@pytest.mark.parametrize("look", LOOKS)
def test_looking_at_a_buffer_does_not_make_it(look):
    rb = ReplayBuffer(storage=STORAGE, delayed_init=True, batch_size=3)
    LOOKS[look](rb)
    assert not rb.initialized and "_storage" not in rb.__dict__


def test_stats_of_a_buffer_that_is_still_to_be_made():
    nothing = {"size": 0, "write_count": 0, "prefetch_queue_size": 0, "initialized": False}
    assert ReplayBuffer(storage=STORAGE, delayed_init=True).stats() == nothing
    given = ReplayBuffer(storage=LazyTensorStorage(6), delayed_init=True)
    assert given.stats() == nothing | {"capacity": 6, "utilization": 0.0}
    assert ReplayBuffer(storage=ListStorage(), delayed_init=True).stats() == nothing
    assert "LazyTensorStorage(len=0, max_size=6" in repr(given) and not given.initialized


@pytest.mark.parametrize(("arguments", "initialized"), [
    ({}, True),
    ({"delayed_init": True}, False),
    ({"transform_factory": list}, False),
    ({"transform_factory": lambda: torch.neg, "delayed_init": False}, True),
    ({"transform_factory": list, "shared": True}, True),
])  # fmt: skip
def test_what_is_delayed_when_nobody_says(arguments, initialized):
    rb = ReplayBuffer(storage=STORAGE, **arguments)
    assert rb.initialized is initialized
    if arguments.get("delayed_init") is False:
        assert not rb._transform.pending


def test_what_is_no_part_is_said_at_once():
    with pytest.raises(TypeError, match="storage must be a Storage or make one, got int"):
        ReplayBuffer(storage=3, delayed_init=True)


@pytest.mark.parametrize("error", [ValueError("no room"), AttributeError("no room")])
def test_a_part_that_cannot_be_made_is_made_by_the_next_use(error):
    results = [error, LazyTensorStorage(4)]

    def make():
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    rb = ReplayBuffer(storage=make, delayed_init=True)
    with pytest.raises((ValueError, RuntimeError), match="no room"):
        _ = rb.storage
    assert not rb.initialized
    rb.extend(torch.arange(2))
    assert rb.initialized and len(rb) == 2


def test_a_constructor_that_uses_its_buffer_is_told_so():
    rb = ReplayBuffer(storage=lambda: LazyTensorStorage(max(len(rb), 4)), delayed_init=True)
    with pytest.raises(RuntimeError, match="uses the buffer itself"):
        len(rb)
    assert not rb.initialized


def test_threads_that_come_first_together_get_one_storage():
    for _ in range(10):
        made, start = [], threading.Barrier(4)
        rb = ReplayBuffer(storage=lambda made=made: made.append(1) or LazyTensorStorage(8), delayed_init=True)

        def write(rb=rb, start=start):
            start.wait()
            rb.add(torch.tensor(2.0))

        workers = [threading.Thread(target=write) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert len(made) == 1 and rb[:].tolist() == [2.0] * 4


def test_only_the_constructors_are_pickled():
    rb = ReplayBuffer(storage=STORAGE, sampler=RandomSampler, delayed_init=True, batch_size=2,
                      generator=torch.Generator().manual_seed(3), prefetch=2)  # fmt: skip
    again = pickle.loads(pickle.dumps(rb))
    assert not again.initialized and not rb.initialized
    for each in (rb, again):
        each.extend(torch.arange(6))
    assert [rb.sample().tolist() for _ in range(3)] == [again.sample().tolist() for _ in range(3)]
    assert again.storage is not rb.storage


def write_and_tell(rb, told):
    rb.extend(torch.arange(4.0))
    told.put((rb.initialized, rb[:].tolist()))


def test_a_buffer_goes_to_another_process_before_it_is_used():
    context = mp.get_context("spawn")
    rb, told = ReplayBuffer(storage=STORAGE, transform_factory=lambda_free, delayed_init=True), context.Queue()
    process = context.Process(target=write_and_tell, args=(rb, told))
    process.start()
    assert told.get(timeout=120) == (True, [-0.0, -1.0, -2.0, -3.0])
    process.join()
    assert not rb.initialized and len(rb) == 0


def lambda_free():
    return torch.neg


# --- shut down

AFTER = {
    "add": lambda rb: rb.add(rows(1)[0]),
    "extend": lambda rb: rb.extend(rows(1)),
    "sample": lambda rb: rb.sample(),
    "sample of a size": lambda rb: rb.sample(3),
    "iterate": lambda rb: next(iter(rb)),
    "next": lambda rb: rb.next(),
    "read": lambda rb: rb[0],
    "write": lambda rb: rb.__setitem__(0, rows(1)[0]),
    "read_all_in_order": lambda rb: rb.read_all_in_order(),
    "write_all": lambda rb: rb.write_all(rows(1)),
    "empty": lambda rb: rb.empty(),
    "set_": lambda rb: rb.set_("x", torch.zeros(3)),
    "set_at_": lambda rb: rb.set_at_("x", torch.zeros(1), [0]),
    "update_": lambda rb: rb.update_({"x": torch.zeros(3)}),
    "update_if_present": lambda rb: rb.update_if_present(index=torch.zeros(1), generation=None, patch={}),
    "append_transform": lambda rb: rb.append_transform(torch.neg),
    "insert_transform": lambda rb: rb.insert_transform(0, torch.neg),
    "transform": lambda rb: rb.transform,
    "writer": lambda rb: rb.writer,
    "set_writer": lambda rb: rb.set_writer(RoundRobinWriter()),
    "set_storage": lambda rb: rb.set_storage(LazyTensorStorage(3)),
    "start": lambda rb: rb.start(),
    "state_dict": lambda rb: rb.state_dict(),
}


@pytest.mark.parametrize("call", AFTER)
@pytest.mark.parametrize("prefetch", [None, 2])
def test_a_buffer_that_was_shut_down_says_so(call, prefetch):
    rb = buffer(capacity=4, batch_size=2, prefetch=prefetch)
    rb.extend(rows(1, 2, 3))
    rb.sample()
    before, storage = rb.stats(), rb.storage
    rb.shutdown()
    assert not rb.is_alive and not threads()
    with pytest.raises(RuntimeError, match="TensorDictReplayBuffer.* was shut down.*[Mm]ake a new"):
        AFTER[call](rb)
    assert rb.stats() == before | {"prefetch_queue_size": 0} and rb.storage is storage and len(rb) == 3
    assert "shut down" in repr(rb) and rb.client() is rb and rb.initialized
    rb.shutdown()
    rb.shutdown(timeout=0.1)
    assert TensorDictReplayBuffer(storage=storage)[:]["x"].tolist() == [1, 2, 3]


def test_a_buffer_that_was_shut_down_before_its_first_use_is_not_made():
    made = []
    rb = ReplayBuffer(storage=lambda: made.append(1), delayed_init=True)
    rb.shutdown()
    for use in (lambda: rb.add(1), lambda: len(rb), lambda: rb.storage):
        with pytest.raises(RuntimeError, match="was shut down"):
            use()
    assert not made and not rb.stats()["initialized"]


def test_a_shutdown_waits_no_longer_than_it_is_told():
    going, go_on = threading.Event(), threading.Event()

    def transform(x):
        if threading.current_thread() is not threading.main_thread():
            going.set()
            go_on.wait()
        return x

    rb = ReplayBuffer(storage=LazyTensorStorage(4), batch_size=2, prefetch=2, transform=transform)
    rb.extend(torch.arange(4))
    rb.sample()
    assert going.wait(60)
    rb.shutdown(timeout=0.01)
    assert not rb.is_alive and len(threads()) == 1
    go_on.set()
    until(lambda: not threads())


def test_others_on_the_storage_go_on():
    first = ReplayBuffer(storage=LazyTensorStorage(4))
    second = ReplayBuffer(storage=first.storage, batch_size=2, prefetch=2)
    first.extend(torch.arange(4))
    second.sample()
    first.shutdown()
    second.extend(torch.arange(2))
    assert len(second.sample()) == 2 and drawn_ahead(second) == 1
    second.shutdown()


# --- one process or several


def test_a_compilable_buffer_is_not_shared():
    for call in (
        lambda: ReplayBuffer(storage=LazyTensorStorage(4), compilable=True, shared=True),
        lambda: ReplayBuffer(storage=LazyTensorStorage(4), compilable=True).share(),
    ):
        with pytest.raises(ValueError, match="share: .*compilable=True.*compilable=False"):
            call()
    rb = ReplayBuffer(storage=LazyTensorStorage(4), compilable=True, sampler=PromptGroupSampler(num_groups=1))
    assert not rb.shared and rb.share(False) is rb
