"""A buffer that cannot be written: whichever way is tried, an error says what to do, and nothing has changed."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import STORAGES, buffer, plain
from torchrb import ImmutableDatasetWriter, ReplayBuffer, RoundRobinWriter, TensorDictReplayBuffer, TensorStorage


def rows(*numbers):
    return TensorDict({"n": torch.tensor(numbers, dtype=torch.int64)}, [len(numbers)])


WRITES = {
    "add": lambda rb: rb.add(rows(7)[0]),
    "extend": lambda rb: rb.extend(rows(7, 8)),
    "extend ": lambda rb: rb.extend(rows(7, 8), return_generations=True),
    "extend  ": lambda rb: rb.writer.extend(rows(7)),
    "add ": lambda rb: rb.writer.add(rows(7)[0]),
    "empty": lambda rb: rb.empty(),
    "empty ": lambda rb: rb.empty(empty_write_count=False),
    "ReplayBuffer[...] =": lambda rb: rb.__setitem__(0, rows(7)[0]),
    "ReplayBuffer[...] = ": lambda rb: rb.write_all(rows(7, 8)),
    "set_": lambda rb: rb.set_("n", torch.zeros(len(rb), dtype=torch.int64)),
    "set_at_": lambda rb: rb.set_at_("n", torch.zeros(1, dtype=torch.int64), [0]),
    "update_": lambda rb: rb.update_(rows(*range(len(rb)))),
    "update_if_present": lambda rb: rb.update_if_present(
        index=torch.tensor([0]), generation=torch.tensor([0]), patch={"n": torch.tensor([9])}
    ),
}


@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("write", WRITES)
def test_every_write_is_refused_and_changes_nothing(kind, write):
    source = buffer(kind, 8)
    source.extend(rows(*range(5)))
    rb = TensorDictReplayBuffer(storage=source.storage, writer=ImmutableDatasetWriter())
    before = [plain(source[slot]) for slot in range(5)], source.storage.control.clone(), source.storage.journal.clone()
    with pytest.raises(RuntimeError) as raised:
        WRITES[write](rb)
    told = str(raised.value)
    assert told.startswith(f"{write.strip()}: this buffer's ImmutableDatasetWriter allows no writing.")
    assert "set_writer(RoundRobinWriter())" in told
    assert [plain(source[slot]) for slot in range(5)] == before[0]
    assert torch.equal(source.storage.control, before[1]) and torch.equal(source.storage.journal, before[2])


def test_what_others_write_is_drawn_and_not_counted():
    source = buffer(capacity=8)
    source.extend(rows(*range(5)))
    rb = ReplayBuffer(storage=source.storage, writer=ImmutableDatasetWriter())
    source.extend(rows(50, 60))
    assert set(rb.sample(200)["n"].tolist()) == {*range(5), 50, 60}
    assert (len(rb), rb.write_count, rb.stats()["write_count"]) == (7, 0, 0)
    assert (source.write_count, source.stats()["write_count"]) == (7, 7)


def test_the_remedies_that_the_error_names_work():
    rb = ReplayBuffer(storage=TensorStorage(torch.arange(4)), writer=ImmutableDatasetWriter())
    ReplayBuffer(storage=rb.storage).extend(torch.tensor([40]))
    assert isinstance(rb.set_writer(RoundRobinWriter()), ImmutableDatasetWriter)
    rb.add(torch.tensor(50))
    assert {40, 50} <= set(rb[:].tolist())


def test_no_generations_are_told():
    source = buffer(capacity=4)
    index = source.extend(rows(0, 1, 2))
    rb = TensorDictReplayBuffer(storage=source.storage, writer=ImmutableDatasetWriter(compilable=True))
    assert not rb.writer.tracks_generations and rb.writer.generations_of(index).tolist() == [-1] * 3
    assert "index_generation" not in rb.sample(2, return_info=True)[1]
    assert repr(rb.writer) == "ImmutableDatasetWriter()"
