"""`PrioritizedSampler`: who is drawn how often, and what its priorities follow."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.cases import STORAGES
from torchrb import (
    LazyTensorStorage,
    ListStorage,
    PrioritizedReplayBuffer,
    PrioritizedSampler,
    RandomSampler,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
)
from torchrb.ops.schemas import PRIORITY_VISITED


def buffer(capacity=8, storage=LazyTensorStorage, **settings):
    settings = {"alpha": 1.0, "beta": 1.0, "eps": 0.0} | settings
    generator = torch.Generator().manual_seed(0)
    return PrioritizedReplayBuffer(storage=storage(capacity), generator=generator, batch_size=4, **settings)


def priorities(rb):
    return rb.sampler.priorities(rb.storage).tolist()


@pytest.mark.parametrize("storage", [name for name in STORAGES if name != "stack"])
def test_draws_are_in_proportion_whatever_the_storage(storage):
    """Counts of 20,000 draws within five deviations: a false alarm once in 500,000 runs."""
    rb = buffer(6, STORAGES[storage])
    rb.extend([torch.tensor(i) for i in range(5)])
    given = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    rb.update_priority(torch.arange(5), given)
    counts = torch.bincount(rb.sample(20_000, return_info=True)[1]["index"], minlength=5)
    p = given / given.sum()
    assert counts.shape == (5,)
    assert ((counts - 20_000 * p).abs() <= 5 * (20_000 * p * (1 - p)).sqrt()).all()


@pytest.mark.parametrize(
    ("alpha", "beta", "eps"), [(0.0, 1.0, 1e-8), (0.6, 0.4, 1e-8), (1.0, 1.0, 0.5), (2.0, 0.0, 0.0)]
)
def test_importance_weights_are_the_probabilities_over_the_smallest(alpha, beta, eps):
    rb = buffer(alpha=alpha, beta=beta, eps=eps)
    rb.extend(torch.arange(6))
    given = torch.tensor([0.5, 1.0, 2.0, 0.25, 4.0, 3.0])
    rb.update_priority(torch.arange(6), given)
    _, info = rb.sample(64, return_info=True)
    p = (given + eps) ** alpha
    assert torch.allclose(info["priority_weight"], (p[info["index"]] / p.min()) ** -beta, rtol=1e-5)
    assert info["priority_weight"].dtype == torch.float32
    assert buffer(dtype=torch.float64).sampler.dtype == torch.float64


def test_weights_are_of_the_dtype_asked_for():
    rb = buffer(dtype=torch.float64)
    rb.extend(torch.arange(3))
    assert rb.sample(return_info=True)[1]["priority_weight"].dtype == torch.float64


def test_a_new_record_has_the_greatest_priority_there_is():
    rb = buffer(4)
    rb.extend(torch.arange(4))
    assert priorities(rb) == [1.0] * 4 and rb.sampler.default_priority == 1.0
    rb.update_priority(torch.arange(4), torch.tensor([5.0, 2.0, 3.0, 0.5]))
    assert rb.sampler.default_priority == 5.0
    rb.add(torch.tensor(7))  # over the greatest
    assert priorities(rb) == [3.0, 2.0, 3.0, 0.5]
    rb[3] = torch.tensor(9)
    assert priorities(rb) == [3.0, 2.0, 3.0, 3.0]
    rb.empty()
    rb.extend(torch.arange(2))
    assert priorities(rb) == [1.0, 1.0, -1.0, -1.0]


def test_each_write_counts_by_itself_however_late_the_draw():
    """Two writes one after the other are two, whether or not something was drawn between them."""
    outcomes = []
    for draws in (True, False):
        rb = buffer(4)
        rb.extend(torch.arange(4))
        rb.update_priority(torch.arange(4), torch.tensor([10.0, 5.0, 2.0, 1.0]))
        for _ in range(2):
            rb.add(torch.tensor(7))
            if draws:
                rb.sample()
        outcomes.append(priorities(rb))
    assert outcomes[0] == outcomes[1] == [5.0, 5.0, 2.0, 1.0]


def test_fields_changed_in_place_leave_the_priority():
    rb = buffer()
    rb.extend({"a": torch.arange(3), "b": torch.zeros(3)})
    rb.update_priority([0, 1, 2], [1.0, 2.0, 3.0])
    rb.set_at_("b", torch.ones(2), torch.tensor([0, 2]))
    rb.set_("b", torch.ones(3))
    assert priorities(rb)[:3] == [1.0, 2.0, 3.0]


def test_writes_through_another_buffer_are_seen():
    rb = buffer(4)
    other = ReplayBuffer(storage=rb.storage)
    other.extend(torch.arange(4))
    rb.update_priority(torch.arange(4), torch.tensor([0.0, 0.0, 9.0, 0.0]))
    assert set(rb.sample(50, return_info=True)[1]["index"].tolist()) == {2}
    other.extend(torch.arange(3))  # over the greatest, too
    assert priorities(rb) == [0.0, 0.0, 0.0, 0.0]
    with pytest.raises(RuntimeError, match="every record has the priority 0"):
        rb.sample()


def test_alpha_eps_and_beta_can_be_set_at_any_time():
    rb = buffer()
    rb.extend(torch.arange(3))
    rb.update_priority(torch.arange(3), torch.tensor([1.0, 4.0, 9.0]))
    rb.sampler.alpha = 0.5
    rb.sampler.eps = 0.25
    rb.sampler.beta = 0.5
    assert (rb.sampler.alpha, rb.sampler.eps, rb.sampler.beta) == (0.5, 0.25, 0.5)
    _, info = rb.sample(64, return_info=True)
    p = torch.tensor([1.25, 4.25, 9.25]) ** 0.5
    assert torch.allclose(info["priority_weight"], (p[info["index"]] / p.min()) ** -0.5)
    assert priorities(rb)[:3] == [1.0, 4.0, 9.0]


@pytest.mark.parametrize("reduction", ["max", "min", "median", "mean"])
def test_several_numbers_of_a_record_are_reduced(reduction):
    sampler = PrioritizedSampler(4, 1.0, 1.0, reduction=reduction)
    values = torch.tensor([[[1.0, 2.0], [3.0, 10.0]], [[4.0, 4.0], [0.5, 1.0]]])
    expected = {"max": [10.0, 4.0], "min": [1.0, 0.5], "median": [2.0, 1.0], "mean": [4.0, 2.375]}[reduction]
    assert sampler.reduced(values, False, "call").tolist() == expected
    assert sampler.reduced(values[0], True, "call").tolist() == expected[:1]


def test_one_number_is_everybodys_and_an_int_is_one_slot():
    rb = buffer()
    rb.extend(torch.arange(4))
    rb.update_priority([0, 2], 3.0)
    rb.update_priority(1, torch.tensor(7.0))
    rb.update_priority((torch.tensor([3]),), torch.tensor([[2]], dtype=torch.int32))
    assert priorities(rb)[:4] == [3.0, 7.0, 3.0, 2.0]
    rb.mark_update([0, 3])
    assert priorities(rb)[:4] == [7.0, 7.0, 3.0, 7.0]


def test_of_equal_slots_the_last_counts():
    rb = buffer()
    rb.extend(torch.arange(3))
    rb.update_priority(torch.tensor([1, 1, 0, 1]), torch.tensor([5.0, 6.0, 2.0, 7.0]))
    assert priorities(rb)[:3] == [2.0, 7.0, 1.0]


@pytest.mark.parametrize(
    ("index", "priority", "error", "message"),
    [
        (
            [0],
            [math.nan],
            ValueError,
            "finite number of at least 0, got nan in place 0; nothing was changed. Pass td_error.abs",
        ),
        ([1, 0], [1.0, -0.5], ValueError, "got -0.5 in place 1"),
        ([0], [math.inf], ValueError, "got inf in place 0"),
        ([0, 9], [1.0, 1.0], IndexError, "slots from 0 to 7, got 9 in place 1; nothing was changed. Use the index"),
        ([-1], [1.0], IndexError, "got -1 in place 0"),
        ([0, 1], [1.0, 2.0, 3.0], ValueError, r"one for each of 2 slots, got shape \[3\]"),
        (torch.tensor([True, False]), [1.0], TypeError, "got a mask"),
        ([0.5], [1.0], TypeError, "index must be integers"),
        (slice(0, 2), 1.0, TypeError, "Use torch.arange"),
        ([0], [1j], TypeError, "real numbers"),
    ],
)
def test_a_bad_update_says_so_and_changes_nothing(index, priority, error, message):
    rb = buffer()
    rb.extend(torch.arange(3))
    with pytest.raises(error, match=message):
        rb.update_priority(index, priority)
    assert priorities(rb) == [1.0] * 3 + [-1.0] * 5
    rb.update_priority([0], [2.0])
    assert priorities(rb)[0] == 2.0


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0, 1.0, 1.0), ValueError, "max_capacity must be a positive int, got 0"),
        ((4, -1.0, 1.0), ValueError, "alpha must be a finite number of at least 0, got -1.0"),
        ((4, 1.0, math.nan), ValueError, "beta must be"),
        ((4, 1.0, 1.0, -1e-8), ValueError, "eps must be"),
        ((4, 1.0, 1.0, 1e-8, torch.float16), TypeError, "dtype must be torch.float32 or torch.float64"),
        ((4, 1.0, 1.0, 1e-8, torch.float32, "sum"), ValueError, "reduction must be one of"),
        ((4, "x", 1.0), TypeError, "alpha must be a number"),
    ],
)
def test_a_bad_setting_says_so(arguments, error, message):
    with pytest.raises(error, match=message):
        PrioritizedSampler(*arguments)


def test_a_storage_that_holds_more_is_refused():
    rb = ReplayBuffer(storage=LazyTensorStorage(10), sampler=PrioritizedSampler(5, 1.0, 1.0), batch_size=2)
    with pytest.raises(ValueError, match="max_capacity must be at least the storage's, got 5 and 10"):
        rb.extend(torch.arange(3))
    with pytest.raises(ValueError, match="Leave device out"):
        ReplayBuffer(
            storage=LazyTensorStorage(5), sampler=PrioritizedSampler(5, 1.0, 1.0, device="meta"), batch_size=2
        ).extend(torch.arange(2))


def test_an_empty_storage_is_refused_and_nothing_is_there_to_be_set():
    rb = buffer()
    with pytest.raises(RuntimeError, match="empty storage"):
        rb.sample()
    rb.update_priority([0], [1.0])
    rb.mark_update([0])
    with pytest.raises(RuntimeError, match="not been used with a storage yet"):
        PrioritizedSampler(4, 1.0, 1.0).update_priority([0], [1.0])
    assert PrioritizedSampler(4, 1.0, 1.0).default_priority == 1.0


def test_other_samplers_have_no_priorities():
    rb = ReplayBuffer(storage=LazyTensorStorage(4), sampler=RandomSampler(), batch_size=2)
    rb.extend(torch.arange(2), update_priority=True)
    rb.update_priority([0], [-1.0])
    rb.mark_update([0])
    assert "priority_weight" not in rb.sample(return_info=True)[1]


def test_a_list_without_bound_may_grow():
    rb = PrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, storage=ListStorage(10_000), sampler=PrioritizedSampler(10**6, 1.0, 1.0, 0.0), batch_size=4
    )
    rb.set_storage(ListStorage())
    rb.extend(list(range(1000)))
    rb.update_priority(torch.arange(1000), torch.arange(1000.0))
    rb.extend(list(range(3000)))
    kept = rb.sampler.priorities(rb.storage)
    assert kept[:1000].tolist() == list(range(1000)) and (kept[1000:4000] == 999).all()


def test_two_storages_have_priorities_of_their_own():
    sampler = PrioritizedSampler(8, 1.0, 1.0)
    first, second = (ReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler, batch_size=2) for _ in range(2))
    first.extend(torch.arange(2))
    second.extend(torch.arange(3))
    first.update_priority([0], [5.0])
    assert priorities(first)[:3] == [5.0, 1.0, -1.0] and priorities(second)[:3] == [1.0] * 3


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
def test_a_copy_begins_anew(copied):
    rb = buffer(alpha=0.5)
    rb.extend(torch.arange(2))
    rb.update_priority([0], [5.0])
    again = copied(rb.sampler)
    assert repr(again) == repr(rb.sampler) == "PrioritizedSampler(alpha=0.5, beta=1.0, eps=0.0, reduction=max)"
    rb.set_sampler(again)
    assert priorities(rb)[:2] == [1.0, 1.0]


def test_what_a_draw_looks_at_is_what_was_written_since():
    rb = buffer(1000)
    rb.extend(torch.arange(900))
    kept = rb.sampler._kept[rb.storage]
    before = int(kept.state[PRIORITY_VISITED])
    rb.sample(64)
    rb.update_priority(torch.arange(64), torch.rand(64))
    rb.sample(64)
    assert int(kept.state[PRIORITY_VISITED]) == before
    rb.add(torch.tensor(1))
    assert int(kept.state[PRIORITY_VISITED]) == before + 1


def test_a_snapshot_brings_priorities_back():
    rb = buffer()
    rb.extend(torch.arange(5))
    rb.update_priority(torch.arange(5), torch.rand(5))
    state, before = rb.sampler.state_dict(rb.storage), priorities(rb)
    draws = rb.sample(50, return_info=True)[1]["index"]
    rb.update_priority(torch.arange(5), torch.rand(5))
    assert priorities(rb) != before
    rb.sampler.load_state_dict(rb.storage, state)
    assert priorities(rb) == before
    rb.generator.manual_seed(0)
    assert torch.equal(rb.sample(50, return_info=True)[1]["index"], draws)
    rb.add(torch.tensor(9))
    rb[1] = torch.tensor(3)
    rb.update_priority([1], [77.0])
    rb.sampler.load_state_dict(rb.storage, state)
    assert priorities(rb)[1] == 77.0  # another record than the one of the snapshot
    assert priorities(rb)[2:5] == before[2:5]


@pytest.mark.parametrize(
    "change",
    [
        {"priorities": torch.tensor([1.0, math.nan], dtype=torch.float64)},
        {"priorities": torch.ones(3, dtype=torch.float64)},
        {"slots": torch.tensor([0, 99])},
        {"generations": torch.tensor([0.0, 1.0])},
        {"alpha": -1.0},
        {"reduction": "sum"},
        {"beta": None},
    ],
)
def test_a_bad_snapshot_is_refused_whole(change):
    rb = buffer()
    rb.extend(torch.arange(2))
    rb.update_priority([0, 1], [2.0, 3.0])
    state = rb.sampler.state_dict(rb.storage) | {"alpha": 0.3} | change
    with pytest.raises(ValueError, match="PrioritizedSampler"):
        rb.sampler.load_state_dict(rb.storage, state)
    with pytest.raises(ValueError, match="no entry"):
        rb.sampler.load_state_dict(rb.storage, {"alpha": 0.3})
    assert priorities(rb)[:2] == [2.0, 3.0] and rb.sampler.alpha == 1.0


def test_what_is_spent_is_not_drawn_and_the_rest_keeps_its_priorities():
    rb = ReplayBuffer(
        storage=LazyTensorStorage(6), sampler=PrioritizedSampler(6, 1.0, 1.0, 0.0), batch_size=64,
        consume_after_n_samples=1,
    )  # fmt: skip
    rb.extend(torch.arange(6))
    rb.update_priority(torch.arange(6), torch.tensor([5.0, 0.0, 1.0, 0.0, 2.0, 0.0]))
    _, info = rb.sample(return_info=True)
    assert sorted(info["index"].tolist()) == [0, 2, 4]
    assert info["priority_weight"].shape == (3,)
    with pytest.raises(RuntimeError, match="priority 0"):
        rb.sample()
    rb.update_priority([3], [1.0])
    assert rb.sample().tolist() == [3]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3, 16, 17, 40]))
def test_any_history_leaves_what_the_plainest_words_say(seed, capacity):
    """Priorities, and where masses fall, against dictionaries and running sums."""
    chance = random.Random(seed)
    rb = buffer(capacity)
    kept: dict[int, float] = {}

    def wrote(slots):
        for slot in slots:
            kept.pop(slot, None)
        first = max(kept.values(), default=1.0)
        kept.update(dict.fromkeys(slots, first))

    for _ in range(12):
        step = chance.choice(("extend", "add", "set", "update", "update", "empty", "sample"))
        if step == "extend":
            wrote(rb.extend(torch.arange(chance.randrange(1, capacity + 1))).tolist())
        elif step == "add":
            wrote([rb.add(torch.tensor(0))])
        elif step == "set" and kept:
            slot = chance.choice(list(kept))
            rb[slot] = torch.tensor(1)
            wrote([slot])
        elif step == "update":
            slots = [chance.randrange(capacity) for _ in range(chance.randrange(6))]
            values = [chance.choice((0.0, 1.0, 0.5, chance.random())) for _ in slots]
            rb.update_priority(torch.tensor(slots, dtype=torch.int64), torch.tensor(values, dtype=torch.float64))
            kept.update({slot: value for slot, value in zip(slots, values, strict=True) if slot in kept})
        elif step == "empty" and chance.random() < 0.3:
            rb.empty()
            kept.clear()
        assert priorities(rb) == [kept.get(slot, -1.0) for slot in range(capacity)] or not kept
        if any(kept.values()):
            drawn = rb.sample(8, return_info=True)[1]["index"].tolist()
            assert all(kept[slot] > 0 for slot in drawn)
            assert_masses_fall_right(rb, kept)


def assert_masses_fall_right(rb, kept):
    """The middle of each row's part of the sum, in the order of slots, falls on that row."""
    ends = list(itertools.accumulate((kept.get(slot, 0.0) for slot in range(rb.storage.max_size)), initial=0.0))
    masses = [(a + b) / 2 for a, b in itertools.pairwise(ends)]
    tree = rb.sampler._kept[rb.storage]
    slots, _ = torch.ops.torchrb.draw_priorities(
        torch.tensor([0]),
        torch.tensor(masses, dtype=torch.float64),
        tree.tree,
        tree.place.capacity,
        len(masses),
        1.0,
        True,
    )
    for slot, found in enumerate(slots.tolist()):
        if kept.get(slot, 0.0) > 1e-6:
            assert found == slot


def test_the_page_s_example_draws_and_updates():
    size = 1_000_000
    rb = TensorDictPrioritizedReplayBuffer(alpha=1.1, beta=1.0, storage=LazyTensorStorage(size))
    for _ in range(3):
        rb.extend(TensorDict({"obs": torch.randn(100, 3, 4), "td_error": torch.rand(100)}, [100]))
        rb.update_tensordict_priority(rb.sample(32))
    assert len(rb) == 300


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex64])
@pytest.mark.parametrize("reduction", ["max", "min", "median", "mean"])
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_a_batch_whose_priorities_are_no_real_numbers_is_not_written(dtype, reduction, shape):
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, reduction=reduction, storage=LazyTensorStorage(4), batch_size=2
    )
    with pytest.raises(TypeError, match="extend: priorities must be real numbers"):
        rb.extend(TensorDict({"td_error": torch.ones(shape, dtype=dtype)}, [3]))
    assert (len(rb), rb.write_count) == (0, 0)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn])
@pytest.mark.parametrize("reduction", ["max", "min", "median", "mean"])
@pytest.mark.parametrize("shape", [(3,), (3, 2)])
def test_priorities_are_of_any_real_dtype(dtype, reduction, shape):
    rb = TensorDictPrioritizedReplayBuffer(
        alpha=1.0, beta=1.0, reduction=reduction, storage=LazyTensorStorage(3), batch_size=2
    )
    index = rb.extend(TensorDict({"td_error": torch.full(shape, 2.0).to(dtype)}, [3]))
    assert priorities(rb) == [2.0] * 3
    rb.update_priority(index, torch.full((3,), 4.0).to(dtype))
    assert priorities(rb) == [4.0] * 3


@pytest.mark.parametrize("shape", [(0,), (0, 2)])
def test_a_batch_without_records_may_have_a_priority_key(shape):
    rb = TensorDictPrioritizedReplayBuffer(alpha=1.0, beta=1.0, storage=LazyTensorStorage(3), batch_size=2)
    assert rb.extend(TensorDict({"td_error": torch.zeros(shape)}, [0])).shape == (0,)
