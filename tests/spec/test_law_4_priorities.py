"""Law 4 for priorities: they are those of the records there now, whichever way these were written."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)

ONE = TensorDict({"x": torch.tensor([7]), "y": torch.tensor([0.5])}, [1])


def filled():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(4), sampler=PrioritizedSampler(4, 1.0, 1.0, 0.0), batch_size=40,
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )  # fmt: skip
    rb.extend(ONE.expand(4).clone())
    rb.update_priority(torch.arange(4), torch.tensor([9.0, 0.0, 0.0, 0.0]))
    return rb


WHOLE = {
    "extend": lambda rb: rb.extend(ONE),
    "add": lambda rb: rb.add(ONE[0]),
    "in place": lambda rb: rb.__setitem__(0, ONE[0]),
    "write_all": lambda rb: rb.write_all(ONE),
    "write_at": lambda rb: rb.writer.write_at(torch.tensor([0]), ONE),
    "another buffer": lambda rb: TensorDictReplayBuffer(storage=rb.storage).extend(ONE),
    "the storage": lambda rb: rb.storage.set([0], ONE),
}
PARTS = {
    "set_": lambda rb: rb.set_("y", torch.ones(4)),
    "set_at_": lambda rb: rb.set_at_("y", torch.ones(1), torch.tensor([0])),
    "update_": lambda rb: rb.update_({"y": torch.ones(4)}),
    "update_if_present": lambda rb: rb.update_if_present(
        index=torch.tensor([0]), generation=torch.tensor([0]), patch={"y": torch.ones(1)}
    ),
}


@pytest.mark.parametrize("way", WHOLE)
def test_a_record_that_is_written_whole_is_another_one(way):
    rb = filled()
    WHOLE[way](rb)
    rb.update_priority([2], [1.0])
    assert rb.sampler.priorities(rb.storage).tolist() == [0.0, 0.0, 1.0, 0.0]
    assert set(rb.sample()["index"].tolist()) == {2}


@pytest.mark.parametrize("way", PARTS)
def test_a_record_that_is_changed_in_part_keeps_its_priority(way):
    rb = filled()
    PARTS[way](rb)
    assert rb.sampler.priorities(rb.storage).tolist() == [9.0, 0.0, 0.0, 0.0]
    assert set(rb.sample()["index"].tolist()) == {0}


def test_what_was_emptied_is_never_drawn():
    rb = filled()
    ReplayBuffer(storage=rb.storage).empty()
    assert rb.sampler.priorities(rb.storage).tolist() == [-1.0] * 4
    rb.extend(ONE.expand(2).clone())
    assert set(rb.sample()["index"].tolist()) == {0, 1}


def test_more_writes_than_the_journal_holds():
    rb = filled()
    other = TensorDictReplayBuffer(storage=rb.storage)
    for _ in range(100):
        other.extend(ONE.expand(3).clone())
    assert rb.sampler.priorities(rb.storage).tolist() == [1.0] * 4
