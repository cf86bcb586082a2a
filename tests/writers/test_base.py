"""A writer chooses slots; the storage counts."""

from __future__ import annotations

import pytest
import torch

from torchrb import LazyTensorStorage, ReplayBuffer, RoundRobinWriter, TensorDictRoundRobinWriter, Writer


class Refusing(Writer):
    """The least a writer can be: it keeps only what is even."""

    def append(self, data, *, one=False):
        return self.storage.append(data if one else data[data % 2 == 0], one=one)


def test_a_subclass_needs_only_append():
    rb = ReplayBuffer(storage=LazyTensorStorage(8), writer=Refusing())
    assert rb.extend(torch.arange(6)).tolist() == [0, 1, 2]
    assert rb.add(torch.tensor(10)) == 3
    assert rb[:].tolist() == [0, 2, 4, 10] and rb.write_count == 4


@pytest.mark.parametrize(
    "index", [0, 7, -1, torch.tensor([[0, 1], [2, 99]]), torch.empty(0, dtype=torch.int32), (1, 2)]
)
def test_without_tracking_every_generation_is_unknown(index):
    for writer in (Refusing(), RoundRobinWriter(), TensorDictRoundRobinWriter()):
        rb = ReplayBuffer(storage=LazyTensorStorage(8), writer=writer)
        rb.extend(torch.arange(6))
        assert not writer.tracks_generations
        told = writer.generations_of(index)
        shape = torch.as_tensor(index[0] if isinstance(index, tuple) else index).shape
        assert told.dtype == torch.int64 and told.shape == shape and (told == -1).all()


@pytest.mark.parametrize(
    "call", [lambda w: w.storage, lambda w: w.add(1), lambda w: w.extend([1]), lambda w: w.append([1])]
)
def test_a_writer_without_a_storage_says_what_to_do(call):
    with pytest.raises(RuntimeError, match="no storage is registered. Hand the writer to a ReplayBuffer"):
        call(RoundRobinWriter())


@pytest.mark.parametrize(
    "index",
    [torch.tensor([True, False]), torch.tensor([0.5]), torch.tensor([1j]), [0.5], True, None, "0", [[0], [1, 2]]],
)
def test_what_is_no_slot_number_is_refused(index):
    for track in (False, True):
        writer = RoundRobinWriter(track_generations=track)
        writer.register_storage(LazyTensorStorage(2))
        with pytest.raises(TypeError, match="generations_of: expected slot numbers"):
            writer.generations_of(index)


def test_it_shows_where_it_stands():
    writer = RoundRobinWriter()
    assert repr(writer) == "RoundRobinWriter()"
    ReplayBuffer(storage=LazyTensorStorage(4), writer=writer).extend(torch.arange(6))
    assert repr(writer) == "RoundRobinWriter(cursor=2, full_storage=True)"
