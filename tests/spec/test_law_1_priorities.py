"""Law 1 for priorities: a call that raises has changed neither them nor the records, and has taken no random number."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyTensorStorage, ListStorage, TensorDictPrioritizedReplayBuffer

STORAGES = (LazyTensorStorage, ListStorage)


def filled(storage, num=4):
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=0.5, beta=1.0, eps=0.0, storage=storage(5), batch_size=3, generator=torch.Generator().manual_seed(2)
    )
    rb.extend(rows([float(i + 1) for i in range(num)]))
    return rb


def rows(errors):
    return TensorDict({"x": torch.arange(len(errors)), "td_error": torch.tensor(errors)}, [len(errors)])


def state(rb):
    kept = rb.sampler._kept[rb.storage]
    told = [rb.sampler.priorities(rb.storage), kept.tree, kept.seen, rb.storage.control, rb.generator.get_state()]
    return [tensor.tolist() for tensor in told]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("bad", [math.nan, -1.0, math.inf])
def test_a_bad_priority_changes_nothing_whichever_way_it_comes(storage, bad):
    rb = filled(storage)
    batch = rb.sample()
    batch["td_error"] = torch.tensor([7.0, 8.0, bad])
    before = state(rb)
    for call in (
        lambda: rb.update_priority(torch.tensor([0, 1]), torch.tensor([9.0, bad])),
        lambda: rb.update_tensordict_priority(batch),
        lambda: rb.extend(rows([9.0, bad])),
        lambda: rb.add(rows([bad])[0]),
    ):
        with pytest.raises(ValueError, match="finite number of at least 0"):
            call()
        assert state(rb) == before


@pytest.mark.parametrize("storage", STORAGES)
def test_a_bad_index_changes_nothing(storage):
    rb = filled(storage)
    before = state(rb)
    for index, error in (([0, 5], IndexError), ([-1, 0], IndexError), (torch.tensor([True, False]), TypeError)):
        with pytest.raises(error):
            rb.update_priority(index, torch.tensor([9.0, 9.0]))
        assert state(rb) == before


def test_a_draw_of_nothing_takes_no_random_number():
    rb = filled(LazyTensorStorage)
    rb.update_priority(torch.arange(4), 0.0)
    before = state(rb)
    with pytest.raises(RuntimeError, match="every record has the priority 0"):
        rb.sample()
    assert state(rb) == before


def test_a_state_that_is_none_changes_nothing():
    rb = filled(LazyTensorStorage)
    saved = rb.sampler.state_dict(rb.storage)
    before = state(rb)
    for bad in ({"alpha": -1.0}, {"slots": torch.tensor([0, 1, 2, 5])}, {"priorities": saved["priorities"] * math.nan}):
        with pytest.raises(ValueError):
            rb.sampler.load_state_dict(rb.storage, saved | {"beta": 0.1} | bad)
        assert state(rb) == before and rb.sampler.beta == 1.0
