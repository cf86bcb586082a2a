"""Balanced groups: which groups, which rows in each, and what is said when there are too few."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensordict import TensorDict

from tests.cases import DTYPES, LAYOUTS, buffer
from tests.oracle import Row, assert_group
from torchrb import LazyTensorStorage, PromptGroupSampler, ReplayBuffer, TensorStorage
from torchrb.groups import GroupIndex

STRATEGIES = ("random", "recency", "reward", "variance")
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
each_storage = pytest.mark.parametrize("kind", [*LAYOUTS, "stack"])


def rollouts(groups, rewards, dtype=torch.float32):
    return TensorDict({"g": torch.as_tensor(groups), "r": torch.tensor(rewards, dtype=dtype)}, [len(groups)])


def grouped(strategy, groups, rewards=None, kind="packed", dtype=torch.float32, seed=0, capacity=None, **counts):
    sampler = PromptGroupSampler(group_key="g", reward_key="r", strategy=strategy, **(counts or {"num_groups": 1}))
    rb = buffer(kind, capacity or len(groups), sampler=sampler)
    rb.generator.manual_seed(seed)
    rb.extend(rollouts(groups, rewards if rewards is not None else [0] * len(groups), dtype))
    return rb


def draw(rb, size):
    """Slots drawn, and the information that comes with them."""
    info = rb.sample(size, return_info=True)[1]
    return info["index"].tolist(), info


@each_storage
@each_strategy
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_any_batch_obeys_the_rule_of_its_strategy(strategy, kind, data):
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    groups = data.draw(st.permutations([g for g, size in enumerate(sizes) for _ in range(size)]))
    numbers = st.sampled_from([-2.0, -0.5, 0.0, 0.0, 0.25, 1.0, 3.0, math.nan, math.inf, -math.inf])
    rewards = data.draw(st.lists(numbers, min_size=len(groups), max_size=len(groups)))
    num_groups, k = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    rb = grouped(strategy, groups, rewards, kind, seed=data.draw(st.integers(0, 99)), num_groups=num_groups)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        index, info = draw(rb, num_groups * k)

    used: dict[int, list[int]] = {}
    for place in range(num_groups):
        drawn = index[place * k : (place + 1) * k]
        group = groups[drawn[0]]
        rows = [Row(i, i, rewards[i]) for i in range(len(groups)) if groups[i] == group]
        assert_group(strategy, rows, drawn, used.get(group, ()))
        used.setdefault(group, []).extend(drawn)
        assert info["group_size"][place] == len(rows) and bool(info["short_group"][place]) == (len(rows) < k)
    assert len(used) == min(num_groups, len(sizes)), "a group was repeated before all were used"
    assert info["num_groups"] == len(sizes) and info["num_singleton_groups"] == sizes.count(1)


@each_strategy
def test_either_count_says_the_same(strategy):
    groups, rewards = [0, 0, 1, 1, 2, 2, 0, 1, 2], [float(n % 4) for n in range(9)]
    one = grouped(strategy, groups, rewards, num_groups=2)
    other = grouped(strategy, groups, rewards, samples_per_group=3)
    assert draw(one, 6)[0] == draw(other, 6)[0]


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.complex64])
def test_rewards_rank_in_their_own_type(dtype):
    values = [0, 1] if dtype == torch.bool else [3, 120, 7, 0, 64]
    big = {torch.int64: [2**62, 2**62 + 1, 2**62 - 1], torch.float64: [1e15, 1e15 + 0.125, 1e15 - 0.125]}
    for rewards in (values, big.get(dtype, values)):
        rb = grouped("reward", [0] * len(rewards), rewards, dtype=dtype)
        order = sorted(range(len(rewards)), key=lambda i: -rewards[i])
        for k in range(1, len(rewards) + 1):
            assert draw(rb, k)[0] == order[:k]


@each_storage
def test_several_rewards_count_as_their_mean(kind):
    rb = grouped("reward", [0] * 3, [[5.0, 5.0], [11.0, 0.0], [0.0, 10.0]], kind)
    assert draw(rb, 3)[0] == [1, 2, 0]  # equal means: the newer first


def test_equal_rewards_go_to_the_newer_record_then_to_the_lower_slot():
    rb = grouped("reward", [0] * 4, [1.0] * 4)
    assert draw(rb, 4)[0] == [3, 2, 1, 0]
    rb[1] = rollouts([0], [1.0])[0]
    assert draw(rb, 2)[0] == [1, 3]


@each_storage
@each_strategy
def test_groups_do_not_depend_on_the_order_of_arrival(strategy, kind):
    drawn = set()
    for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [2, 5, 0, 1, 4, 3]):
        rb = grouped(strategy, [7 * (g // 2) for g in order], [float(g) for g in order], kind, num_groups=2)
        drawn.add(tuple(tuple(rb.sample(4)["g"].tolist()) for _ in range(5)))
    assert len(drawn) == 1


def test_each_group_and_each_row_is_equally_likely():
    rb, trials = grouped("random", [0, 1, 1, 2, 2, 2], num_groups=2, capacity=6), 250
    first, pairs, rows = torch.zeros(3), torch.zeros(3), torch.zeros(6)
    for _ in range(trials):
        batch, info = rb.sample(2, return_info=True)
        first[batch["g"][0]] += 1
        pairs[3 - int(batch["g"].sum())] += 1  # named by the group that is missing
        rows[info["index"]] += 1
    for counts, chance in ((first, 1 / 3), (pairs, 1 / 3), (rows[:1], 2 / 3), (rows[1:3], 1 / 3), (rows[3:], 2 / 9)):
        assert (counts / trials - chance).abs().max() < 4.5 * (chance * (1 - chance) / trials) ** 0.5


@pytest.mark.parametrize(
    ("groups", "rewards", "counts", "size", "message", "entry", "told"),
    [
        ([0, 0], [0, 1], {"num_groups": 2}, 4, "fewer groups are stored than num_groups=2", "num_groups", 1),
        ([0, 1], [0, 1], {"num_groups": 2}, 4, "fewer than samples_per_group=2 records", "short_group", [True, True]),
        ([0] * 3, [0, math.nan, math.nan], {"num_groups": 1}, 2, "samples_per_group=2 valid rewards", "num_valid", [1]),
    ],
)
def test_a_shortfall_is_said_once_and_told_each_time(groups, rewards, counts, size, message, entry, told):
    rb = grouped("reward", groups, rewards, **counts)
    with pytest.warns(UserWarning, match=f"PromptGroupSampler: .*{message}.* info.'{entry}'. tells each time") as said:
        rb.sample(size)
    assert len(said) == 1
    info = rb.sample(size, return_info=True)[1]  # a second warning would be an error here
    assert (info[entry].tolist() if isinstance(info[entry], torch.Tensor) else info[entry]) == told


@each_storage
def test_every_kind_of_write_is_seen_by_the_next_draw(kind):
    rb = grouped("reward", [0, 0, 1, 1], [0, 1, 0, 1], kind, num_groups=2, capacity=5)

    def best():
        batch = rb.sample(2)
        return dict(zip(batch["g"].tolist(), batch["r"].tolist(), strict=True))

    assert best() == {0: 1, 1: 1}
    rb.set_at_("r", torch.tensor([5.0]), [0])
    assert best() == {0: 5, 1: 1}
    rb.set_("g", torch.tensor([0, 2, 2, 0]))
    assert best() == {0: 5, 2: 1}
    rb.update_({"r": torch.tensor([1.0, 2.0, 3.0, 4.0])})
    assert best() == {0: 4, 2: 3}
    rb[3] = rollouts([2], [9.0])[0]
    rb.writer.write_at(torch.tensor([0]), rollouts([7], [8.0]))
    assert best() == {2: 9, 7: 8}
    rb.write_all(rollouts([1, 1, 3, 3], [1, 2, 3, 4]))
    ReplayBuffer(storage=rb.storage).extend(rollouts([3], [6.0]))
    assert best() == {1: 2, 3: 6}
    rb.empty()
    rb.extend(rollouts([4, 5], [1, 2]))
    assert best() == {4: 1, 5: 2}


def test_keys_changed_behind_the_storage_are_seen_when_asked_for():
    groups, sampler = torch.tensor([0, 0, 1, 1]), {"num_groups": 2, "group_key": "g"}
    rb = buffer(
        TensorStorage(TensorDict({"g": groups}, [4])), sampler=PromptGroupSampler(**sampler, cache_groups=False)
    )
    assert set(rb.sample(4)["g"].tolist()) == {0, 1}
    groups.copy_(torch.tensor([5, 6, 5, 6]))
    assert set(rb.sample(4)["g"].tolist()) == {5, 6} and rb.stats()["num_groups"] == 2


def test_one_sampler_serves_several_storages_in_turn():
    sampler = PromptGroupSampler(num_groups=1, group_key="g")
    one, other = (buffer(LazyTensorStorage(4), sampler=sampler) for _ in range(2))
    one.extend(rollouts([0, 0], [0, 0])), other.extend(rollouts([1, 1], [0, 0]))
    for _ in range(2):
        assert one.sample(2)["g"].tolist() == [0, 0] and other.sample(2)["g"].tolist() == [1, 1]


def test_singletons_are_counted():
    rb = grouped("random", [0, 1, 2, 2], num_groups=2)
    assert rb.stats()["num_groups"] == 3 and rb.stats()["num_singleton_groups"] == 2
    rb.empty()
    assert rb.stats()["num_groups"] == rb.stats()["num_singleton_groups"] == 0


@pytest.mark.parametrize(
    ("kwargs", "error", "message"),
    [
        (
            {},
            TypeError,
            "exactly one of num_groups and samples_per_group, got num_groups=None and samples_per_group=None",
        ),
        ({"num_groups": 2, "samples_per_group": 2}, TypeError, "exactly one"),
        ({"num_groups": 0}, ValueError, "num_groups must be a positive int, got 0"),
        ({"samples_per_group": 1.5}, ValueError, "samples_per_group must be a positive int"),
        ({"num_groups": True}, ValueError, "num_groups must be a positive int"),
        ({"num_groups": 1, "strategy": "best"}, ValueError, "strategy must be one of .*'variance'.*got 'best'"),
    ],
)
def test_a_sampler_that_makes_no_sense_is_refused(kwargs, error, message):
    with pytest.raises(error, match=f"PromptGroupSampler: .*{message}"):
        PromptGroupSampler(**kwargs)


@pytest.mark.parametrize(
    ("counts", "size"), [({"num_groups": 4}, 10), ({"samples_per_group": 4}, 10), ({"num_groups": 4}, 2)]
)
def test_a_batch_that_does_not_divide_is_refused(counts, size):
    rb = grouped("random", [0, 1], **counts)
    (name,) = counts
    with pytest.raises(ValueError, match=f"multiple of {name}, got batch_size={size} and {name}=4"):
        rb.sample(size)


@each_storage
def test_fields_that_are_not_stored_or_no_reward_are_refused(kind):
    rb = buffer(kind, 4, sampler=PromptGroupSampler(num_groups=1, group_key="no"))
    rb.extend(rollouts([0, 0], [0, 1]).set("z", torch.ones(2) * 1j).set("e", torch.ones(2, 0)))
    with pytest.raises(KeyError, match="no field 'no' is stored"):
        rb.sample(2)
    for key, error in (("no", KeyError), ("z", TypeError), ("e", TypeError)):
        rb.set_sampler(PromptGroupSampler(num_groups=1, group_key="g", reward_key=key, strategy="reward"))
        with pytest.raises(error, match=key):
            rb.sample(2)


def test_a_list_of_objects_has_no_groups():
    rb = buffer("list", sampler=PromptGroupSampler(num_groups=1))
    rb.extend(rollouts([0], [0]))
    with pytest.raises(TypeError, match="ListStorage cannot group"):
        rb.sample(1)


@each_strategy
def test_both_layouts_draw_the_same(strategy):
    drawn = []
    for kind in LAYOUTS:
        rb = grouped(strategy, [2, 2, 0, 0, 1, 1, 1], [0.5, 0.25, 1, 2, 3, 3, 1], kind, num_groups=2)
        drawn.append([draw(rb, 4)[0] for _ in range(4)])
    assert drawn[0] == drawn[1]


def test_two_storages_may_share_a_sampler_at_the_same_time(monkeypatch):
    sampler = PromptGroupSampler(num_groups=1, group_key="g")
    ours, other = (buffer(sampler=sampler, batch_size=4) for _ in range(2))
    ours.extend(TensorDict({"g": torch.zeros(4)}, [4]))
    other.extend(TensorDict({"g": torch.arange(8.0) // 4}, [8]))
    catch_up, others = GroupIndex.catch_up, []

    def interrupted(index, **kwargs):
        catch_up(index, **kwargs)
        if not others:  # another thread draws for its own storage, whose lock is another one
            others.append(None)
            other.sample()

    monkeypatch.setattr(GroupIndex, "catch_up", interrupted)
    assert sorted(ours.sample()["index"].tolist()) == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_a_key_that_no_backend_compares_is_refused_by_all(dtype):
    rb = buffer(sampler=PromptGroupSampler(num_groups=1, group_key="g"), batch_size=2)
    rb.extend(TensorDict({"g": torch.zeros(4).to(dtype)}, [4]))
    with pytest.raises(TypeError, match="group_key 'g' must hold integers"):
        rb.sample()
