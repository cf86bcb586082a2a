"""Field cases about priorities (25 and 26), each with near relatives."""

from __future__ import annotations

import random

import pytest
import torch
from tensordict import TensorDict

from torchrb import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
)
from torchrb.ops.priority_tree import PriorityTree

STORAGES = (LazyTensorStorage, ListStorage)


def prioritized(capacity, storage=LazyTensorStorage, alpha=1.0, eps=0.0, **options):
    return PrioritizedReplayBuffer(
        alpha=alpha, beta=1.0, eps=eps, storage=storage(capacity), batch_size=64,
        generator=torch.Generator().manual_seed(1), **options,
    )  # fmt: skip


def priorities(rb):
    return rb.sampler.priorities(rb.storage)


def drawn(rb, num=64):
    return rb.sample(num, return_info=True)[1]["index"]


# --- 25: no index beyond the rows, no row of priority zero ----------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(("capacity", "rows"), [(500, 100), (500, 500), (129, 1), (17, 16)])
def test_case_25_every_index_is_a_row_of_positive_priority(storage, capacity, rows):
    rb = prioritized(capacity, storage)
    rb.extend(torch.arange(rows))
    chance = random.Random(rows)
    for _ in range(40):
        slots = torch.tensor([chance.randrange(rows) for _ in range(20)])
        rb.update_priority(slots, torch.tensor([chance.choice((0.0, 1e-3, 1.0, 1e6)) for _ in range(20)]))
        if (priorities(rb) > 0).any():
            index = drawn(rb, 256)
            assert ((index >= 0) & (index < rows)).all()
            assert (priorities(rb)[index] > 0).all()


def masses_fall_on(weights, masses):
    """The rows that masses fall on, where a storage of just these weights is asked."""
    num = len(weights)
    rb = prioritized(num)
    rb.extend(torch.arange(num))
    rb.update_priority(torch.arange(num), torch.tensor(weights, dtype=torch.float64))
    kept = rb.sampler._kept[rb.storage]
    slots, _ = torch.ops.torchrb.draw_priorities(
        torch.tensor([0]), torch.tensor(masses, dtype=torch.float64), kept.tree, num, len(masses), 1.0, False
    )
    return slots.tolist()


def test_case_25_masses_fall_on_the_rows_that_they_are_of():
    assert masses_fall_on([1.0, 1.0, 1.0], [0.5, 1.5, 2.5]) == [0, 1, 2]


@pytest.mark.parametrize("num", [1, 2, 3, 4, 5, 7, 16, 17, 31, 100, 257, 1000])
def test_case_25_at_every_capacity(num):
    assert masses_fall_on([1.0] * num, [i + 0.5 for i in range(num)]) == list(range(num))


@pytest.mark.parametrize(
    "weights", [[0.1] * 10 + [0.0] * 5, [1 / 3, 0.0, 1 / 7, 0.0], [1e-300, 1e300, 0.0], [0.0, 1.0]]
)
def test_case_25_a_mass_that_rounding_leaves_beyond_falls_on_the_last_positive_row(weights):
    last = max(i for i, weight in enumerate(weights) if weight > 0)
    total = sum(weights)
    assert masses_fall_on(weights, [total, total * (1 + 1e-15), 2 * total]) == [last] * 3


def test_case_25_after_empty_and_a_few_rows_only_those_are_drawn():
    rb = prioritized(50)
    rb.extend(torch.arange(50))
    rb.update_priority(torch.arange(50), torch.rand(50) * 100)
    rb.empty()
    rb.extend(torch.arange(3))
    assert set(drawn(rb, 500).tolist()) == {0, 1, 2}
    assert int(PriorityTree(50).size) == rb.sampler._kept[rb.storage].tree.shape[0]


def test_case_25_a_row_that_left_takes_its_mass_along():
    """Were the mass of an overwritten row left in a sum above it, its neighbour would get it."""
    rb = prioritized(4)
    rb.extend(torch.arange(4))
    rb.update_priority(torch.arange(4), torch.tensor([1e9, 1.0, 1.0, 1.0]))
    rb.add(torch.tensor(9))
    assert priorities(rb).tolist() == [1.0] * 4
    counts = torch.bincount(drawn(rb, 4000), minlength=4)
    assert ((counts - 1000).abs() < 5 * (4000 * 0.25 * 0.75) ** 0.5).all()


# --- 26: what priority a new row has --------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 1.1])
@pytest.mark.parametrize("storage", STORAGES)
def test_case_26_the_greatest_of_the_rows_now_there_and_alpha_once(alpha, storage):
    rb = prioritized(4, storage, alpha=alpha, eps=0.5)
    rb.extend(torch.arange(3))
    rb.update_priority(torch.arange(3), torch.tensor([2.0, 8.0, 4.0]))
    rb.add(torch.tensor(7))
    assert priorities(rb)[3] == 8.0
    weights = rb.sampler._kept[rb.storage].weights_by_slot
    assert weights.tolist() == pytest.approx([(p + 0.5) ** alpha for p in (2.0, 8.0, 4.0, 8.0)])


def test_case_26_a_greatest_row_that_was_overwritten_does_not_count():
    rb = prioritized(3)
    rb.extend(torch.arange(3))
    rb.update_priority(torch.arange(3), torch.tensor([100.0, 2.0, 3.0]))
    rb.add(torch.tensor(7))
    assert priorities(rb).tolist() == [3.0, 2.0, 3.0]


def test_case_26_nor_one_that_the_same_batch_overwrites():
    rb = prioritized(4)
    rb.extend(torch.arange(4))
    rb.update_priority(torch.arange(4), torch.tensor([5.0, 100.0, 2.0, 3.0]))
    rb.extend(torch.arange(2))
    assert priorities(rb).tolist() == [3.0, 3.0, 2.0, 3.0]


def test_case_26_nor_one_whose_priority_was_lowered():
    rb = prioritized(4)
    rb.extend(torch.arange(2))
    rb.update_priority([0], [50.0])
    rb.update_priority([0], [0.5])
    rb.add(torch.tensor(7))
    assert priorities(rb).tolist() == [0.5, 1.0, 1.0, -1.0]


def test_case_26_one_where_there_is_none():
    rb = prioritized(4)
    rb.extend(torch.arange(2))
    assert priorities(rb).tolist() == [1.0, 1.0, -1.0, -1.0]
    rb.update_priority([0, 1], [40.0, 50.0])
    rb.extend(torch.arange(8))  # all at once: none is left
    assert priorities(rb).tolist() == [1.0] * 4


def test_case_26_whole_records_written_in_place_are_new_and_patched_ones_are_not():
    rb = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, eps=0.0, storage=LazyTensorStorage(3), batch_size=2)
    rb.extend(TensorDict({"x": torch.arange(3)}, [3]))
    rb.update_priority([0, 1, 2], [1.0, 2.0, 3.0])
    rb.set_at_("x", torch.tensor([9]), torch.tensor([0]))
    rb[1] = TensorDict({"x": torch.tensor(5)}, [])
    assert priorities(rb).tolist() == [1.0, 3.0, 3.0]


# --- duplicates and bad values --------------------------------------------------------------------------------------


def test_of_several_updates_of_one_row_in_a_call_the_last_counts():
    rb = prioritized(3)
    rb.extend(torch.arange(3))
    rb.update_priority(torch.tensor([1, 0, 1, 1]), torch.tensor([9.0, 2.0, 8.0, 7.0]))
    assert priorities(rb).tolist() == [2.0, 7.0, 1.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), -1e-9])
def test_what_is_no_priority_is_refused_with_the_whole_call(bad):
    rb = prioritized(3)
    rb.extend(torch.arange(3))
    with pytest.raises(ValueError, match="finite number of at least 0"):
        rb.update_priority(torch.tensor([0, 1]), torch.tensor([5.0, bad]))
    assert priorities(rb).tolist() == [1.0] * 3


def test_the_sampler_works_in_any_buffer():
    rb = ReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(10, 1.1, 1.0), batch_size=4)
    rb.extend(torch.arange(5))
    assert set(rb.sample(200).tolist()) == set(range(5))
