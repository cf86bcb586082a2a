"""Priorities through a buffer: from the data, from a learner, and in time."""

from __future__ import annotations

import threading

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictMaxValueWriter,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
    TensorDictRoundRobinWriter,
)


def priorities(rb):
    return rb.sampler.priorities(rb.storage).tolist()


def tensordicts(capacity=6, **options):
    return TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(capacity), batch_size=4, **options
    )


def rows(*errors):
    return TensorDict({"x": torch.arange(len(errors)), "td_error": torch.tensor(errors)}, [len(errors)])


def test_records_bring_their_priorities_along():
    rb = tensordicts()
    rb.extend(rows(1.0, 2.0, 5.0))
    rb.add(rows(4.0)[0])
    assert priorities(rb) == [1.0, 2.0, 5.0, 4.0, -1.0, -1.0]
    rb.extend(rows(0.5), update_priority=False)
    assert priorities(rb)[4] == 5.0
    rb.extend(rows(7.0, 8.0, 9.0))  # around the end
    assert priorities(rb) == [8.0, 9.0, 5.0, 4.0, 5.0, 7.0]


def test_data_without_the_key_is_new():
    rb = tensordicts(priority_key="other")
    rb.extend(rows(3.0, 4.0))
    assert priorities(rb)[:2] == [1.0, 1.0]
    nested = tensordicts(priority_key=("stats", "p"))
    nested.extend(TensorDict({"stats": {"p": torch.tensor([[3.0], [2.0]])}}, [2]))
    assert priorities(nested)[:2] == [3.0, 2.0]


def test_a_batch_larger_than_the_buffer_leaves_the_last_priorities():
    rb = tensordicts(3)
    rb.extend(rows(1.0, 2.0, 3.0, 4.0, 5.0))
    assert priorities(rb) == [4.0, 5.0, 3.0]


def test_a_list_of_records_is_taken_apart():
    rb = tensordicts()
    rb.extend([rows(3.0)[0], rows(2.0)[0]])
    assert priorities(rb)[:2] == [3.0, 2.0]


@pytest.mark.parametrize("bad", [float("nan"), -1.0, float("inf")])
def test_bad_priorities_in_the_data_write_nothing(bad):
    rb = tensordicts()
    rb.extend(rows(1.0))
    for write in (lambda: rb.extend(rows(2.0, bad)), lambda: rb.add(rows(bad)[0])):
        with pytest.raises(ValueError, match="finite number of at least 0"):
            write()
    assert len(rb) == 1 and rb.write_count == 1 and priorities(rb) == [1.0] + [-1.0] * 5


def test_a_learner_updates_what_it_has_seen():
    rb = tensordicts()
    rb.extend(rows(1.0, 2.0, 5.0))
    batch = rb.sample()
    assert {"index", "priority_weight", "x", "td_error"} == set(batch.keys())
    batch["td_error"] = (10 + batch["index"]).float()[:, None]
    rb.update_tensordict_priority(batch)
    assert [priorities(rb)[slot] for slot in batch["index"]] == (10 + batch["index"]).tolist()
    rb.update_tensordict_priority(batch[0])
    rb.update_tensordict_priority(batch.exclude("td_error"))
    assert {priorities(rb)[slot] for slot in batch["index"]} == {max(priorities(rb))}


def test_a_late_update_does_not_reach_the_next_record():
    rb = TensorDictReplayBuffer(
        storage=LazyTensorStorage(3), sampler=PrioritizedSampler(3, 1.0, 1.0, 0.0), batch_size=64,
        writer=TensorDictRoundRobinWriter(track_generations=True),
    )  # fmt: skip
    rb.extend(rows(1.0, 2.0, 3.0))
    batch = rb.sample()
    rb.extend(rows(7.0))
    batch["td_error"] = torch.full((64,), 100.0)
    rb.update_tensordict_priority(batch)
    seen = set(batch["index"].tolist())
    assert seen == {0, 1, 2} and priorities(rb) == [7.0, 100.0, 100.0]
    rb.update_priority(batch["index"], torch.full((64,), 5.0), generation=batch["index_generation"])
    assert priorities(rb) == [7.0, 5.0, 5.0]


def test_records_with_batch_dimensions_of_their_own_have_one_priority():
    rb = tensordicts(reduction="mean")
    rb.extend(TensorDict({"x": torch.zeros(3, 2), "td_error": torch.arange(6.0).view(3, 2)}, [3, 2]))
    assert priorities(rb)[:3] == [0.5, 2.5, 4.5]
    batch = rb.sample()
    batch["td_error"] = torch.ones(4, 2)
    rb.update_tensordict_priority(batch)
    assert {priorities(rb)[slot] for slot in batch["index"][:, 0]} == {1.0}


def test_what_a_sample_lacks_is_said():
    rb = tensordicts()
    rb.extend(rows(1.0))
    with pytest.raises(KeyError, match="the data has no 'index'"):
        rb.update_tensordict_priority(rows(1.0))
    TensorDictReplayBuffer(storage=LazyTensorStorage(3)).update_tensordict_priority(rows(1.0))  # keeps none


def test_a_writer_that_refuses_records_leaves_their_priorities_out():
    rb = tensordicts(2, writer=TensorDictMaxValueWriter(rank_key="x"))
    rb.extend(rows(9.0, 8.0, 7.0))  # x: 0, 1, 2
    assert sorted(priorities(rb)) == [7.0, 8.0]
    assert rb.add(rows(3.0)[0]) is None
    assert sorted(priorities(rb)) == [7.0, 8.0]


def test_two_buffers_share_what_they_share():
    first = PrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(4), batch_size=2)
    second = ReplayBuffer(storage=first.storage, sampler=first.sampler, batch_size=2)
    second.extend(torch.arange(3))
    second.update_priority([1], [9.0])
    assert priorities(first) == [1.0, 9.0, 1.0, -1.0]


def test_threads_that_write_update_and_draw_never_see_a_row_that_is_not_there():
    """Draws are of stored records, and the tree is whole when all is done."""
    rb = PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(64), batch_size=16)
    rb.extend(torch.arange(8))
    faults = []

    def work(turn):
        try:
            for i in range(60):
                if turn == 0:
                    rb.extend(torch.arange(i % 7))
                elif turn == 1:
                    rb.update_priority(torch.randint(0, 8, (16,)), torch.rand(16))
                else:
                    _, info = rb.sample(return_info=True)
                    assert (info["index"] < len(rb)).all() and (info["priority_weight"] <= 1).all()
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(turn % 3,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    kept = rb.sampler._kept[rb.storage]
    assert ((kept.by_slot >= 0) == (torch.arange(64) < len(rb))).all()
