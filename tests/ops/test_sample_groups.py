import itertools
import math
from fractions import Fraction

import pytest
import torch

from tests.ops.cases import (
    FLOATS,
    INTEGERS,
    Index,
    assert_op_is_sound,
    chances,
    lay_out,
    needs_kernel,
    op,
    random_values,
)
from tests.ops.test_write_rows import write
from torchrb.ops.schemas import FEW_GROUPS, NAN_DRAWN, SHORT_GROUP, STRATEGIES

NAN, INF = math.nan, math.inf


def stored(groups, rewards, dtype=torch.float64, shape=(), slots=None, kind="packed"):
    """An index over rows of (group, reward), written in this order, at slots 0.. unless told."""
    num_rows = len(groups)
    slots = list(range(num_rows)) if slots is None else slots
    records = lay_out([(torch.int64, ()), (dtype, shape)], max(slots) + 1, kind)
    rewards = torch.as_tensor(rewards, dtype=dtype).view(num_rows, *shape)
    write(records, torch.tensor(slots), [torch.tensor(groups), rewards], True)
    index = Index(records, 0)
    index.catch_up()
    return index


def random_index(chance, twin_too=False):
    num_groups, num_rows = chance.choice((1, 2, 5, 20)), chance.choice((1, 3, 20, 80))
    dtype, shape = chance.choice(INTEGERS + FLOATS), chance.choice(((), (), (1,), (3,), (2, 2)))
    groups = [chance.randrange(num_groups) for _ in range(num_rows)]
    slots = chance.sample(range(2 * num_rows), num_rows)
    index = stored(groups, random_values(chance, dtype, (num_rows, *shape)), dtype, shape, slots)
    if not twin_too:
        return index
    twin = Index(index.records, 0, twin=True)
    twin.catch_up()
    return index, twin


@needs_kernel
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", range(4))
def test_kernel_equals_twin(block, strategy):
    for chance in chances(block):
        mine, twin = random_index(chance, twin_too=True)
        groups, per_group = chance.choice((0, 1, 3, 8, 50)), chance.choice((0, 1, 2, 5, 9, 40))
        args = chance.randrange(-(2**63), 2**63), groups, per_group, strategy, 1
        assert mine.sample(*args) == twin.sample(*args)


@needs_kernel
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_large_enough_for_threads_equal_the_twin(strategy):
    num_rows = 22_000
    rewards = torch.randn(num_rows, generator=torch.Generator().manual_seed(0)).round(decimals=2)
    mine = stored((torch.arange(num_rows) % 5).tolist(), rewards, torch.float32)
    twin = Index(mine.records, 0, twin=True)
    twin.catch_up()
    for groups in (4, 7):
        assert mine.sample(9, groups, 600, strategy, 1) == twin.sample(9, groups, 600, strategy, 1)


# --- which groups


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_groups_are_distinct_while_there_are_enough(strategy):
    for chance in chances(0, 20):
        index = random_index(chance)
        members = index.members()
        groups = chance.randint(1, len(members) + 3)
        slots, drawn, flags = index.sample(chance.randrange(2**60), groups, 3, strategy, 1)
        ranks = [rank for rank, _, _ in drawn]
        distinct = min(groups, len(members))
        assert len(set(ranks[:distinct])) == distinct
        assert bool(flags & FEW_GROUPS) == (groups > len(members))
        for (rank, size, _), rows in zip(drawn, slots, strict=True):
            assert size == len(members[rank])
            assert set(rows) <= set(members[rank])


def test_every_group_is_equally_likely_and_every_pair():
    """Counts stay within five deviations: a false alarm in fewer than 1 of 10,000 runs."""
    num_groups, draws = 5, 2000
    index = stored(list(range(num_groups)), [0.0] * num_groups)
    single, pair = [0] * num_groups, {}
    for seed in range(draws):
        _, drawn, _ = index.sample(seed, 2, 1)
        ranks = tuple(rank for rank, _, _ in drawn)
        pair[ranks] = pair.get(ranks, 0) + 1
        for rank in ranks:
            single[rank] += 1
    assert len(pair) == num_groups * (num_groups - 1)
    for counts, chance in ((single, 2 / num_groups), (list(pair.values()), 1 / len(pair))):
        allowed = 5 * (draws * chance * (1 - chance)) ** 0.5
        assert max(abs(count - draws * chance) for count in counts) <= allowed


def test_the_groups_do_not_depend_on_the_order_of_rows():
    groups = [g for g in range(10) for _ in range(4)]
    order = torch.randperm(40).tolist()
    by_key = []
    for keys in (groups, [groups[i] for i in order]):
        index = stored(keys, [0.0] * 40)
        slots, _, _ = index.sample(3, 6, 2)
        by_key.append([keys[rows[0]] for rows in slots])
    assert by_key[0] == by_key[1]


def test_the_same_seed_draws_the_same_and_another_another():
    index = stored([i % 9 for i in range(90)], [0.0] * 90)
    assert index.sample(5, 4, 3) == index.sample(5, 4, 3)
    assert index.sample(5, 4, 3) != index.sample(6, 4, 3)


def test_a_group_drawn_again_gives_rows_the_batch_has_not_used():
    index = stored([0] * 10, list(range(10)))
    for strategy in STRATEGIES:
        slots, _, flags = index.sample(1, 4, 3, strategy, 1)
        assert flags & FEW_GROUPS
        first_three = [slot for rows in slots[:3] for slot in rows]
        assert len(set(first_three)) == 9
        (last,) = set(range(10)) - set(first_three)
        assert last in slots[3]
    assert index.sample(1, 3, 3, "reward", 1)[0] == [[9, 8, 7], [6, 5, 4], [3, 2, 1]]
    assert index.sample(1, 3, 3, "recency", 1)[0] == [[7, 8, 9], [4, 5, 6], [1, 2, 3]]


# --- which rows


def test_reward_takes_the_highest_in_falling_order():
    index = stored([0] * 6, [0.5, 3.0, -1.0, 2.0, -INF, INF])
    assert index.sample(0, 1, 3, "reward", 1)[0] == [[5, 1, 3]]
    assert index.sample(0, 1, 6, "reward", 1)[0] == [[5, 1, 3, 0, 2, 4]]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64])
def test_rewards_are_compared_in_their_own_type(dtype):
    if dtype == torch.int64:
        rewards = [2**63 - 2, -(2**63), 2**63 - 1, -(2**63) + 1, 2**53, 2**53 + 1]
    else:
        rewards = [1 + 2**-52, -1 - 2**-52, 1 + 2**-51, -1.0, 1.0, 1.0 + 2**-40]
    index = stored([0] * 6, rewards, dtype)
    by_value = sorted(range(6), key=lambda slot: -rewards[slot])
    assert index.sample(0, 1, 6, "reward", 1)[0] == [by_value]
    assert index.sample(0, 1, 2, "reward", 1)[0] == [by_value[:2]]


def test_equal_rewards_newer_first_then_lower_slot():
    slots = [4, 0, 3, 1]
    index = stored([0] * 4, [0.0, -0.0, 0.0, -0.0], slots=slots)
    assert index.sample(0, 1, 4, "reward", 1)[0] == [[1, 3, 0, 4]]
    assert index.sample(0, 1, 2, "reward", 1)[0] == [[1, 3]]
    index.records.stamps.fill_(5)
    assert index.sample(0, 1, 3, "reward", 1)[0] == [[0, 1, 3]]


def test_recency_takes_the_newest_oldest_first():
    index = stored([0] * 5, [0.0] * 5, slots=[3, 0, 4, 1, 2])
    assert index.sample(0, 1, 3, "recency")[0] == [[4, 1, 2]]
    records = index.records
    write(records, torch.tensor([3]), [torch.tensor([0]), torch.zeros(1, dtype=torch.float64)], True)
    write(records, torch.tensor([0]), [torch.ones(1, dtype=torch.float64)], False, records.part([1]))
    assert index.sample(0, 1, 3, "recency")[0] == [[1, 2, 3]]


def test_random_takes_every_row_equally_often():
    """Counts stay within five deviations: a false alarm in fewer than 1 of 100,000 runs."""
    index, draws = stored([0] * 7, [0.0] * 7), 2000
    counts, first = [0] * 7, [0] * 7
    for seed in range(draws):
        (rows,), _, _ = index.sample(seed, 1, 3)
        assert len(set(rows)) == 3
        first[rows[0]] += 1
        for slot in rows:
            counts[slot] += 1
    for seen, chance in ((counts, 3 / 7), (first, 1 / 7)):
        assert max(abs(count - draws * chance) for count in seen) <= 5 * (draws * chance * (1 - chance)) ** 0.5


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_variance_takes_the_subset_of_greatest_variance(dtype):
    for chance in chances(0):
        rewards = [chance.randint(-6, 6) for _ in range(chance.randint(2, 8))]
        k = chance.randint(1, len(rewards))
        index = stored([0] * len(rewards), rewards, dtype)
        (rows,), _, _ = index.sample(0, 1, k, "variance", 1)

        def merit(values):
            values = [Fraction(value) for value in values]
            return len(values) * sum(v * v for v in values) - sum(values) ** 2, sum(values)

        chosen = [rewards[slot] for slot in rows]
        assert chosen == sorted(chosen)
        assert merit(chosen) == max(merit(subset) for subset in itertools.combinations(rewards, k))


def test_variance_with_equal_rewards_takes_the_newer_rows_at_both_ends():
    index = stored([0] * 6, [0, 1, 0, 1, 0, 1])
    assert index.sample(0, 1, 2, "variance", 1)[0] == [[4, 5]]
    assert index.sample(0, 1, 4, "variance", 1)[0] == [[4, 2, 5, 3]]
    assert stored([0] * 4, [2, 2, 2, 2]).sample(0, 1, 2, "variance", 1)[0] == [[3, 2]]


def test_variance_of_integers_near_the_extremes():
    rewards = [2**63 - 1, 2**63 - 3, 2**63 - 2, 2**63 - 1 - 10]
    assert stored([0] * 4, rewards, torch.int64).sample(0, 1, 2, "variance", 1)[0] == [[3, 0]]
    rewards = [-(2**63), 2**63 - 1, 0, 5]
    assert stored([0] * 4, rewards, torch.int64).sample(0, 1, 2, "variance", 1)[0] == [[0, 1]]


def test_rows_without_a_reward_come_last():
    index = stored([0] * 6, [NAN, 1.0, -INF, NAN, 2.0, INF])
    assert index.sample(0, 1, 4, "reward", 1) == ([[5, 4, 1, 2]], [[0, 6, 4]], 0)
    assert index.sample(0, 1, 5, "reward", 1) == ([[5, 4, 1, 2, 3]], [[0, 6, 4]], NAN_DRAWN)
    assert index.sample(0, 1, 2, "variance", 1) == ([[1, 4]], [[0, 6, 2]], 0)
    assert index.sample(0, 1, 4, "variance", 1) == ([[1, 4, 5, 3]], [[0, 6, 2]], NAN_DRAWN)


def test_a_short_group_gives_each_row_once_then_valid_ones_again():
    index = stored([0] * 4, [NAN, 1.0, 3.0, NAN])
    later = set()
    for seed in range(40):
        (rows,), drawn, flags = index.sample(seed, 1, 9, "reward", 1)
        assert rows[:4] == [2, 1, 3, 0]
        assert drawn == [[0, 4, 2]]
        assert flags == SHORT_GROUP | NAN_DRAWN
        later |= set(rows[4:])
    assert later == {1, 2}
    only_nan = stored([0] * 2, [NAN, NAN])
    assert {slot for seed in range(40) for slot in only_nan.sample(seed, 1, 5, "reward", 1)[0][0][2:]} == {0, 1}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int16, torch.bool])
def test_a_reward_of_several_elements_counts_as_its_mean(dtype):
    rewards = torch.tensor([[1, 0, 0], [1, 1, 1], [0, 0, 0], [1, 1, 0]]).to(dtype)
    assert stored([0] * 4, rewards, dtype, (3,)).sample(0, 1, 4, "reward", 1)[0] == [[1, 3, 0, 2]]


@pytest.mark.parametrize("kind", ["packed", "columns"])
@pytest.mark.parametrize("dtype", [dtype for dtype in INTEGERS + FLOATS if dtype != torch.bool])
def test_every_dtype_of_reward(dtype, kind):
    rewards = [3, 0, 2, 1, 5, 4]
    index = stored([0] * 6, rewards, dtype, kind=kind)
    assert index.sample(0, 1, 3, "reward", 1)[0] == [[4, 5, 0]]
    assert index.sample(0, 1, 2, "variance", 1)[0] == [[1, 4]]


def test_opcheck_and_compile():
    index = stored([i % 3 for i in range(9)], [float(i) for i in range(9)])
    for strategy in STRATEGIES:
        for groups, per_group in ((0, 0), (2, 2), (5, 4)):
            assert_op_is_sound("sample_groups", index.sample_args(1, groups, per_group, strategy, 1))


@needs_kernel
def test_what_would_touch_foreign_memory_is_refused():
    index = stored([0, 1], [0.0, 1.0])
    with pytest.raises(RuntimeError, match="groups and per_group must not be negative"):
        index.sample(0, 1, -1)
    with pytest.raises(RuntimeError, match="is too large"):
        index.sample(0, 2**16, 2**48)  # whose product is 0 in 64 bits
    with pytest.raises(RuntimeError, match="strategy must be below 4, got 4"):
        op("sample_groups")(*index.sample_args(0, 1, 1, "random", 1)[:-1], 4)
    args = list(index.sample_args(0, 1, 1, "reward", 1))
    with pytest.raises(RuntimeError, match="reward_leaf must hold three numbers, got 0"):
        op("sample_groups")(*args[:4], [], *args[5:])
    with pytest.raises(RuntimeError, match="that orders, got ComplexFloat"):
        op("sample_groups")(*args[:5], torch.zeros(0, dtype=torch.complex64), *args[6:])
    empty = Index(lay_out(index.records.leaves, 3, "packed"), 0)
    with pytest.raises(RuntimeError, match="there must be at least one group"):
        empty.sample(0, 1, 1)


@needs_kernel
def test_a_group_drawn_again_and_again_costs_the_same_each_time():
    index = stored([0, 0, 0], [0.0, 1.0, 2.0])
    slots, _, _ = index.sample(0, 200_000, 1)  # minutes, if each draw looked at all before it
    assert sorted(slot for (slot,) in slots[:3]) == [0, 1, 2]
