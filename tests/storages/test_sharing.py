"""Sharing a storage changes where it is, and nothing else; what cannot be shared says so and is left as it was."""

from __future__ import annotations

import collections
import contextlib
import io
import pickle
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from tensordict import TensorDict

from tests.spec import processes
from tests.spec.builders import group_sampler, numbered, numbers_of
from tests.spec.processes import STORAGES, call, records, shared_buffer
from torchrb import (
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    TensorStorage,
)


def arrived(thing):
    """What a pipe's other end gets."""
    stream = io.BytesIO()
    ForkingPickler(stream).dump(thing)
    return pickle.loads(stream.getvalue())


@pytest.mark.parametrize("kind", STORAGES)
def test_sharing_later_keeps_records_handles_and_draws(kind):
    rb = TensorDictReplayBuffer(
        storage=STORAGES[kind](6),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        sampler=group_sampler("reward", num_groups=2),
    )
    slots, generations = processes.extend(rb, range(8))
    reader = rb.sampler
    drawn = processes.draw(rb, reader, 4, 1)
    counts = (len(rb), rb.write_count, rb.storage.cursor, rb.storage.journal_position)
    assert rb.share() is rb and rb.shared and rb.storage.shared
    assert (len(rb), rb.write_count, rb.storage.cursor, rb.storage.journal_position) == counts
    assert processes.contents(rb) == [6, 7, 2, 3, 4, 5]
    assert (
        processes.draw(rb, reader, 4, 1)
        == drawn
        == call(processes.draw, rb, group_sampler("reward", num_groups=2), 4, 1)
    )
    assert processes.patch(rb, slots[2:], generations[2:], list(range(12, 18))) == (6, 0)
    assert call(processes.contents, rb) == [16, 17, 12, 13, 14, 15]
    storage = rb.storage
    rb.share()  # again: nothing happens
    assert rb.storage is storage and processes.contents(rb) == [16, 17, 12, 13, 14, 15]


def test_adopted_tensors_stay_those_of_their_user():
    mine = {"x": torch.arange(4), "y": torch.zeros(4, 3)}
    rb = ReplayBuffer(storage=TensorStorage(mine), shared=True)
    assert call(_extend_xy, rb) == [0]
    assert mine["x"].tolist() == [9, 1, 2, 3] and mine["y"].tolist()[0] == [1.0] * 3
    rb.set_at_("x", torch.tensor([5]), [2])
    assert call(_xs, rb) == [9, 1, 5, 3] and mine["x"].tolist() == [9, 1, 5, 3]


def _extend_xy(rb):
    return rb.extend({"x": torch.tensor([9]), "y": torch.ones(1, 3)}).tolist()


def _xs(rb):
    return rb[:]["x"].tolist()


def test_in_one_process_a_shared_storage_is_one_object():
    rb = shared_buffer("packed", 6, range(4))
    other = arrived(rb)
    assert other is not rb and other.storage is rb.storage is other.writer.storage
    assert other.sampler is not rb.sampler and type(other.sampler) is type(rb.sampler)
    processes.extend(other, [9])
    assert processes.contents(rb) == [0, 1, 2, 3, 9]
    assert call(_same_storage, [rb, rb.writer, arrived(rb)])


def _same_storage(parts):
    return len({id(part.storage) for part in parts}) == 1


def test_two_buffers_on_one_storage_share_together():
    storage = LazyTensorStorage(6)
    first, second = ReplayBuffer(storage=storage), ReplayBuffer(storage=storage)
    first.share()
    assert second.shared
    second.extend(torch.arange(3))
    assert call(_numbers, second) == first[:].tolist() == [0, 1, 2]


def _numbers(rb):
    return rb[:].tolist()


def test_what_a_buffer_is_made_of_goes_along():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(8, layout="columns"),
        sampler=group_sampler("recency", num_groups=2),
        writer=TensorDictRoundRobinWriter(track_generations=True),
        batch_size=4,
        priority_key="p",
        generator=torch.Generator().manual_seed(3),
        shared=True,
    )
    rb.extend(records(range(8)))
    rb.sample()
    there = arrived(rb)
    assert (there.batch_size, there.priority_key, there.writer.tracks_generations) == (4, "p", True)
    assert repr(there.sampler) == repr(rb.sampler) and there.shared
    assert torch.equal(there.sample()["index"], rb.sample()["index"])  # generators and indices are at the same point
    bare = arrived(ReplayBuffer(storage=LazyTensorStorage(8), writer=RoundRobinWriter(), shared=True))
    assert bare.generator is None and not bare.writer.tracks_generations


# --- what cannot be shared ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [ListStorage, LazyStackStorage])
def test_a_storage_of_objects_names_those_that_can_be_shared(make):
    with pytest.raises(TypeError, match=f"share: the records of a {make.__name__} are Python objects.*LazyTensorSt"):
        ReplayBuffer(storage=make(4), shared=True)
    rb = ReplayBuffer(storage=make(4))
    with pytest.raises(TypeError, match="Use a LazyTensorStorage, or a TensorStorage"):
        rb.share()
    assert not rb.shared


def test_strings_are_refused_by_name_before_anything_is_written():
    full = TensorDictReplayBuffer(storage=LazyTensorStorage(4))
    full.extend(numbered(range(3)))
    with pytest.raises(TypeError, match=r"fields \['text'\] hold strings .* integer id"):
        full.share()
    assert not full.shared and numbers_of(full[:]) == [0, 1, 2]
    empty = TensorDictReplayBuffer(storage=LazyTensorStorage(4), shared=True)
    for write in (empty.extend, lambda batch: empty.add(batch[0])):
        with pytest.raises(TypeError, match=r"LazyTensorStorage: fields \['text'\] hold strings"):
            write(numbered(range(3)))
    assert len(empty) == empty.write_count == 0
    assert call(processes.extend, empty, [1, 2])[0] == [0, 1] and processes.contents(empty) == [1, 2]


def test_records_of_a_class_that_cannot_be_named_elsewhere_are_refused():
    class Pair(collections.namedtuple("Pair", "a b")):
        pass

    rb = ReplayBuffer(storage=LazyTensorStorage(4), shared=True)
    Pair.__qualname__ = "nowhere"
    with pytest.raises(TypeError, match="other processes cannot be told what a record is.*importable"):
        rb.extend(Pair(torch.zeros(2), torch.ones(2)))
    assert len(rb) == 0
    rb.extend(torch.arange(2))
    assert rb[:].tolist() == [0, 1]


def test_a_first_write_that_is_cut_off_does_not_take_back_what_others_wrote_since(monkeypatch):
    rb = shared_buffer("packed", 6)
    staging = rb.storage._staging
    settle = type(staging).settle

    def cut_off(self):
        if self.noted is not None:
            monkeypatch.setattr(type(staging), "settle", settle)
            raise KeyboardInterrupt
        settle(self)

    monkeypatch.setattr(type(staging), "settle", cut_off)
    with contextlib.suppress(KeyboardInterrupt):  # where a signal handler may raise
        processes.extend(rb, [1])
    monkeypatch.setattr(type(staging), "settle", settle)
    before = len(rb)
    call(processes.extend, rb, [2, 3, 4])
    assert processes.contents(rb)[before:] == [2, 3, 4] and len(rb) == before + 3


def test_sharing_is_not_taken_back():
    rb = shared_buffer("packed", 4, [1])
    with pytest.raises(ValueError, match="stays shared"):
        rb.share(False)
    assert ReplayBuffer(storage=LazyTensorStorage(4)).share(False).shared is False


def test_another_storage_of_a_shared_buffer_is_shared_or_refused():
    rb = shared_buffer("packed", 4, [1])
    before = rb.storage
    with pytest.raises(TypeError, match="share: the records of a ListStorage"):
        rb.set_storage(ListStorage(4))
    assert rb.storage is before and processes.contents(rb) == [1]
    assert rb.set_storage(LazyTensorStorage(4)) is before and rb.shared
    processes.extend(rb, [2])
    assert call(processes.contents, rb) == [2]


@pytest.mark.parametrize("kind", [kind for kind in STORAGES if kind != "memmap"])
def test_a_buffer_that_is_not_shared_says_how_it_could_be(kind):
    rb = TensorDictReplayBuffer(storage=STORAGES[kind](4))
    for send in (pickle.dumps, ForkingPickler.dumps):
        with pytest.raises(TypeError, match=r"share it first: ReplayBuffer.share\(\), with a LazyTensorStorage"):
            send(rb)
    shared = shared_buffer(kind, 4)  # its kind is known to the pickler now
    with pytest.raises(TypeError, match="share it first"):
        ForkingPickler.dumps(rb)
    with pytest.raises(TypeError, match=r"This one is shared: hand it to a torch.multiprocessing.Process"):
        pickle.dumps(shared)


@pytest.mark.gpu
def test_records_on_a_gpu_are_not_shared():
    with pytest.raises(TypeError, match="share: LazyTensorStorage is on 'cuda:0'.*device='cpu'"):
        ReplayBuffer(storage=LazyTensorStorage(4, device="cuda"), shared=True)


# --- shapes of memory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["packed", "columns"])
def test_fields_of_any_width_and_large_tables(layout):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(3000, layout=layout), shared=True)
    batch = TensorDict(
        {"none": torch.zeros(2, 0), "wide": torch.randn(2, 1000), "half": torch.ones(2, 3, dtype=torch.bfloat16)}, [2]
    )
    rb.extend(batch)
    assert bool((rb[:].exclude("index") == batch).all()) and call(_shapes, rb) == [[2, 0], [2, 1000], [2, 3]]


def _shapes(rb):
    return [list(rb[:][key].shape) for key in ("none", "wide", "half")]


def test_a_record_without_numbers_counts_elsewhere_too():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(4), shared=True)
    rb.extend(TensorDict({}, [3]))
    assert call(len, rb) == 3


def test_a_batch_made_in_inference_mode_can_be_the_first():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(4), shared=True)
    with torch.inference_mode():
        rb.extend(records([1, 2]))
    processes.extend(rb, [3])
    assert call(processes.contents, rb) == [1, 2, 3]
    with torch.inference_mode():
        adopted = TensorDictReplayBuffer(storage=TensorStorage({"x": torch.arange(3)}), shared=True)
        assert call(_xs, adopted) == [0, 1, 2]
    adopted.set_at_("x", torch.tensor([7]), [0])
    assert call(_xs, adopted) == [7, 1, 2]


def test_a_storage_of_any_device_is_of_the_host_once_it_is_shared():
    storage = LazyTensorStorage(4, device="auto")
    storage.share()
    slots, _ = storage.append({"x": torch.arange(3)})
    assert slots.tolist() == [0, 1, 2] and storage[:]["x"].tolist() == [0, 1, 2] and storage._settled
