"""Law 3 for priorities: what was learned of a record never becomes the priority of another one."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from torchrb import LazyTensorStorage, TensorDictPrioritizedReplayBuffer, TensorDictRoundRobinWriter


def filled():
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(3), batch_size=60,
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )  # fmt: skip
    rb.extend(TensorDict({"x": torch.arange(3)}, [3]))
    return rb


def overwrite(rb, way):
    one = TensorDict({"x": torch.tensor([7])}, [1])
    if way == "extend":
        rb.extend(one)
    elif way == "add":
        rb.add(one[0])
    elif way == "whole":
        rb[0] = one[0]
    elif way == "write_at":
        rb.writer.write_at(torch.tensor([0]), one)
    else:
        rb.empty()
        rb.extend(TensorDict({"x": torch.arange(3)}, [3]))


@pytest.mark.parametrize("way", ["extend", "add", "whole", "write_at", "empty"])
def test_a_late_update_leaves_the_next_record_alone(way):
    rb = filled()
    batch = rb.sample()
    assert set(batch["index"].tolist()) == {0, 1, 2}
    overwrite(rb, way)
    batch["td_error"] = torch.full((60,), 100.0)
    rb.update_tensordict_priority(batch)
    expected = [1.0] * 3 if way == "empty" else [1.0, 100.0, 100.0]
    assert rb.sampler.priorities(rb.storage).tolist() == expected


def test_a_patched_record_is_still_the_one_that_was_learned_of():
    rb = filled()
    batch = rb.sample()
    rb.set_("x", torch.zeros(3, dtype=torch.int64))
    batch["td_error"] = torch.full((60,), 100.0)
    rb.update_tensordict_priority(batch)
    assert rb.sampler.priorities(rb.storage).tolist() == [100.0] * 3


def test_a_saved_priority_is_that_of_its_record():
    rb = filled()
    rb.update_priority([0, 1, 2], [4.0, 5.0, 6.0])
    saved = rb.sampler.state_dict(rb.storage)
    overwrite(rb, "extend")
    rb.sampler.load_state_dict(rb.storage, saved)
    assert rb.sampler.priorities(rb.storage).tolist() == [6.0, 5.0, 6.0]
