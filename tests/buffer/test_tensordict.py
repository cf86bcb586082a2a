"""What a tensordict buffer returns carries the handles of its records, and takes their priorities back."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict

from tests.cases import LAYOUTS, buffer
from torchrb import LazyTensorStorage, Sequence, TensorDictPrioritizedReplayBuffer


def rows(*numbers):
    return TensorDict({"x": torch.tensor(numbers), "y": torch.tensor(numbers, dtype=torch.float64)}, [len(numbers)])


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


def test_what_only_pads_a_sequence_gives_no_record_its_priority():
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=LazyTensorStorage(10), sample_unit=Sequence(4, traj_key="episode"), batch_size=1
    )
    rb.extend(TensorDict({"episode": torch.zeros(3, dtype=torch.int64)}, [3]))
    rb.update_priority(torch.arange(3), torch.tensor([1.0, 0.0, 0.0]))
    batch = rb.sample()
    assert batch["index"].tolist() == [0, 1, 2, 2] and batch["validity_mask"].tolist() == [True] * 3 + [False]
    batch["td_error"] = torch.tensor([1.0, 2.0, 3.0, 99.0])
    rb.update_tensordict_priority(batch)
    assert rb.sampler.priorities(rb.storage)[:3].tolist() == [1.0, 2.0, 3.0]
