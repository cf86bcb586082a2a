"""What the examples of the reference pages show: the same calls, with the import changed."""

from __future__ import annotations

import pytest
import torch
from tensordict import TensorDict
from torch.utils._pytree import tree_leaves, tree_map

from torchrb import (
    LazyMemmapStorage,
    LazyStackStorage,
    LazyTensorStorage,
    ListStorage,
    MCAdvantageSelector,
    PrioritizedSampler,
    PromptGroupSampler,
    ReplayBuffer,
    RoundRobinWriter,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
    traj,
)

# --- 003: the buffer ------------------------------------------------------------------------------------------------


def test_ints_in_a_list_storage_come_back_as_a_tensor():
    torch.manual_seed(0)
    buffer = ReplayBuffer(storage=ListStorage(max_size=1000), batch_size=5)
    numbers = range(10)
    slots = buffer.extend(numbers)
    assert torch.equal(slots, torch.arange(10))
    batch = buffer.sample()
    assert batch.dtype == torch.int64 and batch.shape == (5,) and set(batch.tolist()) <= set(numbers)
    assert buffer.sample(batch_size=3).shape == (3,)
    seen = []
    for step, batch in enumerate(buffer):
        seen.append(batch)
        if step == 3:
            break
    assert [batch.shape for batch in seen] == [(5,)] * 4


def test_records_of_any_kind_with_a_collate_fn_that_leaves_them_alone():
    torch.manual_seed(0)
    buffer = ReplayBuffer(storage=ListStorage(100), collate_fn=lambda records: records)
    buffer.extend(["prompt", 7, None])
    drawn = buffer.sample(30)
    assert isinstance(drawn, list) and len(drawn) == 30
    assert all(record in ("prompt", 7, None) for record in drawn) and len(set(drawn)) == 3


def test_a_pytree_of_tensors_comes_back_with_a_batch_dimension():
    """The example of the page; first without its transform."""
    buffer = ReplayBuffer(storage=LazyMemmapStorage(100))
    record = {"tokens": torch.randn(3), "inner": {"pair": (torch.zeros(2), [torch.ones(1)])}, 30: -torch.ones(())}
    buffer.add(record)
    batch = buffer.sample(10)
    assert list(batch) == list(record) and batch["tokens"].shape == (10, 3) and batch[30].tolist() == [-1.0] * 10
    zeros, (ones,) = batch["inner"]["pair"]
    assert zeros.shape == (10, 2) and ones.shape == (10, 1) and bool((ones == 1).all())

    buffer.append_transform(lambda tree: tree_map(lambda leaf: leaf * 0, tree))
    batch = buffer.sample(10)
    assert list(batch) == list(record) and batch["tokens"].shape == (10, 3)
    assert not any(leaf.any() for leaf in tree_leaves(batch))


def test_an_inverted_transform_changes_the_very_data_that_is_written():
    buffer = ReplayBuffer(storage=LazyMemmapStorage(10), batch_size=4)
    rollouts = TensorDict({"score": torch.zeros(10)}, [10])

    def one_more(batch):
        batch += 1
        return batch

    assert buffer.append_transform(one_more, invert=True) is buffer
    buffer.extend(rollouts)
    assert bool((rollouts == 1).all()) and bool((buffer.sample()["score"] == 1).all())


def test_extending_along_the_second_dimension_is_adding_its_slices_one_by_one():
    data = torch.arange(12.0).view(3, 4)
    whole, sliced = (ReplayBuffer(storage=LazyTensorStorage(10, ndim=2), dim_extend=1) for _ in range(2))
    for part in data.unbind(1):
        sliced.add(part)
    whole.extend(data)
    assert len(whole) == len(sliced) == 12 and whole.write_count == sliced.write_count
    assert torch.equal(whole[:], data) and torch.equal(sliced[:], data)


def test_a_buffer_with_priorities_is_saved_and_loaded(tmp_path):
    size = 1_000_000

    def empty_buffer():
        return TensorDictReplayBuffer(storage=LazyMemmapStorage(size), sampler=PrioritizedSampler(size, 1.1, 1.0))

    rb = empty_buffer()
    for _ in range(20):
        states = {"obs": torch.randn(100, 3, 4), "next": {"obs": torch.randn(100, 3, 4)}, "td_error": torch.rand(100)}
        rb.extend(TensorDict(states, [100]))
        rb.update_tensordict_priority(rb.sample(32))
    rb.dumps(tmp_path)
    loaded = empty_buffer()
    loaded.loads(tmp_path)
    assert len(rb) == len(loaded) == 2000 and torch.equal(rb[:]["next", "obs"], loaded[:]["next", "obs"])
    same = [buffer.sampler.priorities(buffer.storage) for buffer in (rb, loaded)]
    assert torch.equal(*same)


def test_a_snapshot_of_the_counters():
    buffer = ReplayBuffer(storage=LazyTensorStorage(10))
    buffer.extend(torch.arange(5))
    counters = buffer.stats()
    assert (counters["size"], counters["write_count"], counters["capacity"]) == (5, 5, 10)


def _tracked() -> TensorDictReplayBuffer:
    return TensorDictReplayBuffer(
        storage=LazyTensorStorage(10), writer=TensorDictRoundRobinWriter(track_generations=True), batch_size=4
    )


def test_a_sampled_batch_is_patched_by_its_handles():
    buffer = _tracked()
    buffer.extend(TensorDict({"logits": torch.zeros(10, 3)}, batch_size=[10]))
    batch = buffer.sample()
    result = buffer.update_if_present(
        index=batch["index"], generation=batch["index_generation"], patch={"logits": torch.ones(4, 3)}
    )
    distinct = len(set(batch["index"].tolist()))
    # Each record is written once; rows of a draw with repeats that address one again are neither written nor stale.
    assert (result.updated_count, result.stale_count, result.superseded_count) == (distinct, 0, 4 - distinct)
    assert buffer[:]["logits"].sum() == 3 * distinct


def test_a_patch_with_an_older_version_loses():
    buffer = _tracked()
    versions = torch.full((10,), 5, dtype=torch.int64)
    buffer.extend(TensorDict({"logits": torch.zeros(10, 3), "version": versions}, batch_size=[10]))
    batch = buffer.sample()
    result = buffer.update_if_present(
        index=batch["index"],
        generation=batch["index_generation"],
        patch={"logits": torch.ones(4, 3)},
        version_key="version",
        version=4,
        require_newer=True,
    )
    assert (result.updated_count, result.version_rejected_count) == (0, 4)
    assert not buffer[:]["logits"].any() and torch.equal(buffer[:]["version"], versions)


@pytest.mark.parametrize("end", [None, 2])
def test_reading_in_order_is_indexing_and_writing_back_is_assigning(end):
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    buffer.extend(torch.arange(6))
    rows = buffer.read_all_in_order(end)
    assert torch.equal(rows, buffer[:end])
    buffer.write_all(rows + 10, end)
    assert torch.equal(buffer[:end], rows + 10) and buffer.write_count == 6


# --- 000: groups ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", [LazyStackStorage, LazyTensorStorage])
def test_a_batch_of_two_whole_groups(storage):
    buffer = ReplayBuffer(
        storage=storage(100), sampler=PromptGroupSampler(num_groups=2, group_key="prompt"), batch_size=8
    )
    prompts = torch.arange(3).repeat_interleave(4)
    buffer.extend(TensorDict({"prompt": prompts, "score": torch.linspace(0, 1, 12)}, batch_size=[12]))
    for _ in range(5):
        batch = buffer.sample()
        assert int(batch["prompt"].unique().numel()) == 2 and int(batch.shape[0]) == 8
        assert batch["score"].unique().numel() == 8


# --- 002: the selector ----------------------------------------------------------------------------------------------


def test_one_of_the_zeros_goes_with_the_one():
    selector = MCAdvantageSelector()
    candidates = TensorDict({"return": torch.tensor([0.0, 0.0, 0.0, 1.0])}, [4])
    chosen = selector.select(candidates, group_size=2, keep_return_bounds=(0.1, 0.9))
    assert chosen == [0, 3] and isinstance(chosen, list)


def test_a_subclass_chooses_by_what_it_reads():
    class Shortest(MCAdvantageSelector):
        def __init__(self) -> None:
            super().__init__(in_keys=["length"])

        def select(self, candidates, *, group_size, keep_return_bounds=None):
            return candidates[self.in_keys[0]].argsort(stable=True)[:group_size].tolist()

    candidates = TensorDict({"length": torch.tensor([30, 10, 20])}, [3])
    assert Shortest().select(candidates, group_size=2) == [1, 2]


# --- 003: queries ---------------------------------------------------------------------------------------------------


def test_good_trajectories_are_found_and_read_whole():
    rb = TensorDictReplayBuffer(storage=LazyTensorStorage(200))
    lengths, rewards = (60, 40, 70, 20), (1.0, 9.0, 2.0, 1.0)
    ids = torch.arange(4).repeat_interleave(torch.tensor(lengths))
    reward = torch.tensor(rewards)[ids][:, None]
    rb.extend(TensorDict({"observation": torch.arange(190), "traj_ids": ids, "next": {"reward": reward}}, [190]))
    good_trajs = rb.query((traj.reward.sum() > 100) & (traj.length >= 50))
    observations = good_trajs[0].observation
    assert len(good_trajs) == 1 and observations.tolist() == list(range(100, 170))
    assert [t.length for t in rb.query()] == list(lengths)
    assert ((traj.reward.sum() > 100) & (traj.length >= 50)).required_keys() == {"reward"}


# --- 004: the writer ------------------------------------------------------------------------------------------------


def test_a_slot_tells_how_often_it_was_written():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4), writer=RoundRobinWriter(track_generations=True))
    slots = buffer.extend(torch.arange(4))
    assert buffer.writer.generations_of(slots).tolist() == [0, 0, 0, 0]
    buffer.extend(torch.arange(4, 6))
    assert buffer.writer.generations_of(slots).tolist() == [1, 1, 0, 0]
    assert buffer.writer.write_at(torch.tensor([3]), torch.tensor([9])).tolist() == [3]
    assert buffer.writer.generations_of(slots).tolist() == [1, 1, 0, 1] and buffer.storage.cursor == 2
    assert buffer.writer.tracks_generations


def test_a_writer_that_does_not_track_says_minus_one():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    slots = buffer.extend(torch.arange(4))
    assert buffer.writer.generations_of(slots).tolist() == [-1] * 4 and not buffer.writer.tracks_generations
    assert (
        buffer.writer.generations_of(2).shape == () and "index_generation" not in buffer.sample(2, return_info=True)[1]
    )
