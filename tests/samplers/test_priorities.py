"""`Priorities`: one storage's, as a sampler keeps them."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from torchrb import LazyTensorStorage, ListStorage, PrioritizedSampler, ReplayBuffer
from torchrb.samplers.priorities import Priorities

WEIGHTING = (0.5, 0.25)


def filled(num=5, capacity=20):
    storage = LazyTensorStorage(capacity)
    storage.append(torch.arange(num))
    kept = Priorities(storage)
    kept.catch_up(storage, WEIGHTING)
    return storage, kept


def put(storage, kept, slots, values, generations=None):
    kept.set(storage, WEIGHTING, torch.tensor(slots), generations, torch.tensor(values), "call")


def test_views_tell_priorities_and_weights():
    storage, kept = filled()
    put(storage, kept, [0, 3], [3.75, 8.75])
    assert kept.by_slot[:6].tolist() == [3.75, 1.0, 1.0, 8.75, 1.0, -1.0]
    assert kept.weights_by_slot[[0, 3, 5]].tolist() == pytest.approx([2.0, 3.0, 0.0])
    assert kept.greatest().item() == 8.75 and kept.num_updates == 1 and kept.drawable


def test_what_is_refused_is_forgotten_and_says_where():
    storage, kept = filled()
    with pytest.raises(ValueError, match="call: a priority .* got -1.0 in place 1"):
        put(storage, kept, [0, 3], [3.0, -1.0])
    with pytest.raises(IndexError, match="slots from 0 to 19, got 20"):
        put(storage, kept, [20], [3.0])
    put(storage, kept, [1], [2.0])
    assert kept.by_slot[:5].tolist() == [1.0, 2.0, 1.0, 1.0, 1.0]


def test_a_snapshot_shares_nothing():
    storage, kept = filled()
    snapshot = kept.snapshot()
    put(storage, kept, [0], [9.0])
    assert snapshot["priorities"].tolist() == [1.0] * 5 and snapshot["generations"].tolist() == [0] * 5
    assert snapshot["slots"].tolist() == list(range(5))


def test_another_weighting_is_seen_by_the_next_call():
    storage, kept = filled()
    kept.catch_up(storage, (1.0, 0.0))
    assert kept.weights_by_slot[:6].tolist() == [1.0] * 5 + [0.0]
    kept.catch_up(storage, (2.0, 1.0))
    assert kept.weights_by_slot[:6].tolist() == pytest.approx([4.0] * 5 + [0.0])


def test_room_is_made_where_a_storage_grows():
    storage = ListStorage()
    storage.append(list(range(100)))
    kept = Priorities(storage)
    put(storage, kept, [5], [7.0])
    storage.append(list(range(5000)))
    kept.catch_up(storage, WEIGHTING)
    assert kept.place.capacity == storage.tables[0].shape[0] > 5000
    assert kept.by_slot[5] == 7.0 and (kept.by_slot[100:5100] == 7.0).all() and (kept.by_slot[5100:] == -1).all()


def test_neither_priorities_nor_a_sampler_keep_a_storage_alive():
    sampler = PrioritizedSampler(10, 1.0, 1.0)
    rb = ReplayBuffer(storage=LazyTensorStorage(10), sampler=sampler, batch_size=2)
    rb.extend(torch.arange(3))
    rb.sample()
    gone = weakref.ref(rb.storage)
    del rb
    gc.collect()
    assert gone() is None
    assert sampler.default_priority == 1.0
