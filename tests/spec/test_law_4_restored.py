"""Law 4 across a load: whatever a sampler or writer keeps of the records, it notices that they are others now, in every
buffer on the storage, and in every process.
"""

from __future__ import annotations

import pytest
import torch

from tests.spec import processes
from tests.spec.processes import call
from tests.spec.restored import rows
from torchrb import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    PromptGroupSampler,
    SamplerWithoutReplacement,
    TensorDictMaxValueWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def grouped(storage, key="group"):
    sampler = PromptGroupSampler(samples_per_group=1, group_key=key, strategy="reward", reward_key="reward")
    return TensorDictReplayBuffer(
        storage=storage, sampler=sampler, writer=TensorDictRoundRobinWriter(track_generations=True)
    )


@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyStackStorage, LazyMemmapStorage])
@pytest.mark.parametrize("key", ["group", "text"])
def test_groups_and_rewards_are_those_of_the_loaded_records(tmp_path, kind, key):
    rb = grouped(kind(12), key)
    batch = rows(0, 9)
    batch["text"] = [f"g{i % 3}" for i in range(9)]
    rb.extend(batch)
    other = grouped(rb.storage, key)  # another buffer on the same storage
    expected = sorted(rb.sample(3)["n"].tolist())
    rb.dumps(tmp_path)
    state = rb.state_dict()
    changed = batch.clone()
    changed["group"], changed["reward"] = torch.zeros(9, dtype=torch.int64), -changed["reward"]
    changed["text"] = ["g0"] * 9
    for way in range(2):
        rb[:] = changed
        assert rb.stats()["num_groups"] == other.stats()["num_groups"] == 1
        assert other.sample(1)["reward"].item() == 0
        rb.loads(tmp_path) if way else rb.load_state_dict(state)
        for buffer in (rb, other):
            assert buffer.stats()["num_groups"] == 3
            assert sorted(buffer.sample(3)["n"].tolist()) == expected


def test_another_buffers_pass_does_not_outlive_its_records(tmp_path):
    storage = LazyTensorStorage(12)
    rb, other = (TensorDictReplayBuffer(storage=storage, sampler=SamplerWithoutReplacement()) for _ in range(2))
    rb.extend(rows(0, 6))
    rb.dumps(tmp_path)
    rb.extend(rows(6, 6))
    other.sample(5)
    rb.loads(tmp_path)
    assert sorted(other.sample(6)["n"].tolist()) == [0, 1, 2, 3, 4, 5]
    assert rb.sampler.stats(storage) == {"pass_size": 0, "pass_drawn": 0}


def test_a_writer_of_the_best_ranks_the_loaded_records(tmp_path):
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(3), writer=TensorDictMaxValueWriter(rank_key="reward"))
    batch = rows(0, 3)
    batch["reward"] = torch.tensor([5.0, 6.0, 7.0]).double()
    rb.extend(batch)
    rb.dumps(tmp_path)
    batch["reward"] += 100
    rb.extend(batch)
    rb.loads(tmp_path)
    batch["reward"] = torch.tensor([1.0, 6.5, 2.0]).double()
    rb.extend(batch)
    assert sorted(rb[:]["reward"].tolist()) == [6.0, 6.5, 7.0]


# --- other processes ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(processes.STORAGES))
@pytest.mark.parametrize("begun", [True, False])
def test_another_process_sees_what_this_one_loads(tmp_path, kind, begun):
    saved = processes.shared_buffer(kind, 6, range(4))
    saved.storage.dumps(tmp_path)
    rb = processes.shared_buffer(kind, 6, range(10, 15) if begun else ())
    if begun:
        assert call(processes.contents, rb) == [10, 11, 12, 13, 14]
    rb.storage.loads(tmp_path)
    assert call(processes.contents, rb) == [0, 1, 2, 3]
    index, generation = call(processes.extend, rb, [20, 21, 22])
    kept = dict(enumerate([0, 1, 2, 3])) | dict(zip(index, [20, 21, 22], strict=True))
    assert processes.contents(rb) == [kept[slot] for slot in sorted(kept)]
    assert all(number > 1000 for number in generation)  # of the new epoch, also where that process wrote


def _load(rb, place):
    rb.storage.loads(place)


@pytest.mark.parametrize("kind", list(processes.STORAGES))
def test_this_process_sees_what_another_one_loads(tmp_path, kind):
    saved = processes.shared_buffer(kind, 6, range(4))
    saved.storage.dumps(tmp_path)
    rb = processes.shared_buffer(kind, 6, range(10, 15), sampler=SamplerWithoutReplacement())
    rb.sample(2)
    call(_load, rb, tmp_path)
    assert processes.contents(rb) == [0, 1, 2, 3]
    assert sorted(rb.sample(4)["n"].tolist()) == [0, 1, 2, 3]
    index, generation = rb.extend(processes.records([20]), return_generations=True)
    assert int(generation) > 1000


def test_strings_cannot_be_loaded_into_shared_memory(tmp_path):
    saved = TensorDictReplayBuffer(storage=LazyTensorStorage(6))
    saved.extend(rows(0, 3))
    saved.dumps(tmp_path)
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(6), shared=True)
    with pytest.raises(TypeError, match=r"fields \['text'\] hold strings .* cannot be shared between processes"):
        rb.loads(tmp_path)
    assert len(rb) == 0 and rb.storage.structure is None
    rb.extend(torch.arange(3))
    assert rb[:].tolist() == [0, 1, 2]
