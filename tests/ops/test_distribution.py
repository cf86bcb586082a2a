"""How draws are distributed over many seeds: groups and their members, alone, in pairs, and by place in the batch.

Some 45 tables are checked, each by its counts and by their sum of squares at a false-alarm rate of 1e-7 (`chance`):
below 1e-5 for all of them together. The seeds are 0, 1, 2, ..., and neighbours among them
must not be alike either.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from torch import Tensor

from tests.ops.cases import Index, op
from tests.ops.chance import FALSE_ALARM, assert_even, binomial_bounds, chi_square_tail
from tests.ops.test_sample_groups import stored
from torchrb.ops import loader
from torchrb.ops.schemas import CONTROL_LENGTH, CONTROL_SIZE

DRAWS = 6000 if loader.native_library is not None else 2000


def drawn(
    index: Index, groups: int, per_group: int, strategy: str = "random", num: int = DRAWS
) -> tuple[Tensor, Tensor]:
    """Ranks ``[num, groups]`` and slots ``[num, groups, per_group]``, one draw for each seed."""
    ranks, slots = [], []
    for seed in range(num):
        slots_of, drawn_of, _ = index.sample(seed, groups, per_group, strategy, 1)
        slots.append(slots_of)
        ranks.append([rank for rank, _, _ in drawn_of])
    return torch.tensor(ranks), torch.tensor(slots)


def each(values: Tensor, num: int) -> Tensor:
    return torch.bincount(values.reshape(-1), minlength=num)


def both(first: Tensor, second: Tensor, num: int) -> Tensor:
    """Counts of pairs, ``[num, num]``."""
    return torch.bincount(first * num + second, minlength=num * num).view(num, num)


def off_diagonal(table: Tensor) -> Tensor:
    assert not table.diagonal().any()
    return table[~torch.eye(len(table), dtype=torch.bool)]


# --- groups


@pytest.fixture(scope="module")
def seven_groups() -> tuple[Tensor, Tensor]:
    """Draws of 3 of 7 groups of 5 rows, 2 rows each; the rows lie scattered, row ``i`` of a group at 7 i + group."""
    index = stored([slot % 7 for slot in range(35)], [0.0] * 35)
    return drawn(index, 3, 2)


def test_every_group_is_in_a_batch_and_at_each_place_equally_often(seven_groups):
    ranks, _ = seven_groups
    assert_even(each(ranks, 7), DRAWS, 3 / 7)
    for place in range(3):
        assert_even(each(ranks[:, place], 7), DRAWS)


def test_every_pair_of_groups_meets_equally_often(seven_groups):
    ranks, _ = seven_groups
    for one, other in combinations(range(3), 2):
        assert_even(off_diagonal(both(ranks[:, one], ranks[:, other], 7)), DRAWS)


def test_missing_groups_are_drawn_anew_and_independently():
    """4 groups for 7 places: the first 4 in any order, the others uniform, whatever came before."""
    index = stored([slot % 4 for slot in range(12)], [0.0] * 12)
    ranks, _ = drawn(index, 7, 1)
    assert (ranks[:, :4].sort(1).values == torch.arange(4)).all()
    assert_even(
        each((ranks[:, :4] * 4 ** torch.arange(4)).sum(1).unique(return_inverse=True)[1], math.factorial(4)), DRAWS
    )
    for place in range(4, 7):
        assert_even(each(ranks[:, place], 4), DRAWS)
        assert_even(both(ranks[:, place - 1], ranks[:, place], 4), DRAWS)


# --- members


def test_every_member_is_drawn_and_stands_at_each_place_equally_often(seven_groups):
    _, slots = seven_groups
    members = slots.view(-1, 2) // 7
    assert_even(each(members, 5), len(members), 2 / 5)
    for place in range(2):
        assert_even(each(members[:, place], 5), len(members))


def test_every_pair_of_members_is_drawn_together_equally_often(seven_groups):
    _, slots = seven_groups
    members = slots.view(-1, 2) // 7
    assert_even(off_diagonal(both(members[:, 0], members[:, 1], 5)), len(members))


def test_members_do_not_depend_on_those_of_another_group_nor_on_the_groups(seven_groups):
    ranks, slots = seven_groups
    members = slots // 7
    assert_even(both(members[:, 0, 0], members[:, 1, 0], 5), DRAWS)
    assert_even(torch.bincount(ranks[:, 0] * 5 + members[:, 0, 0], minlength=35), DRAWS)


def test_one_draw_tells_nothing_of_the_next_seeds(seven_groups):
    ranks, slots = seven_groups
    assert_even(both(ranks[:-1, 0], ranks[1:, 0], 7), DRAWS - 1)
    members = slots[:, 0, 0] // 7
    assert_even(both(members[:-1], members[1:], 5), DRAWS - 1)


def test_a_group_drawn_again_gives_any_of_its_unused_members():
    """One group of 6 rows for two places of 2: every first pair, and every second pair of what is left of it."""
    _, slots = drawn(stored([0] * 6, [0.0] * 6), 2, 2)
    pairs = Counter(tuple(tuple(sorted(pair)) for pair in draw) for draw in slots.tolist())
    assert all(not set(first) & set(second) for first, second in pairs)
    assert len(pairs) == math.comb(6, 2) * math.comb(4, 2)
    assert_even(each(slots[:, 1, :], 6), DRAWS, 2 / 6)
    assert_even(torch.tensor(list(pairs.values())), DRAWS)


@pytest.mark.parametrize("strategy", ["random", "reward"])
def test_a_short_group_repeats_any_of_its_valid_members(strategy):
    rewards = [1.0, 2.0, math.nan, 3.0] if strategy == "reward" else [0.0] * 4
    _, slots = drawn(stored([0] * 4, rewards), 1, 7, strategy)
    if strategy == "reward":
        assert (slots[:, 0, :4] == torch.tensor([3, 1, 0, 2])).all() and not (slots[:, 0, 4:] == 2).any()
        slots = torch.where(slots == 3, 2, slots)
    valid = 3 if strategy == "reward" else 4
    for place in range(4, 7):
        assert_even(each(slots[:, 0, place], valid), DRAWS)
    assert_even(both(slots[:, 0, 5], slots[:, 0, 6], valid), DRAWS)


# --- uniform draws


def test_every_slot_is_drawn_at_each_place_and_beside_each_other_equally_often():
    length, draw = 9, op("draw_uniform")
    control = torch.zeros(CONTROL_SIZE, dtype=torch.int64)
    control[CONTROL_LENGTH] = length
    slots = torch.stack([draw(torch.tensor([seed]), control, 4) for seed in range(6000)])
    for place in range(4):
        assert_even(each(slots[:, place], length), len(slots))
    for one, other in combinations(range(4), 2):
        assert_even(both(slots[:, one], slots[:, other], length), len(slots))
    assert_even(both(slots[:-1, 0], slots[1:, 0], length), len(slots) - 1)


# --- the bounds themselves


@pytest.mark.parametrize(("trials", "chance"), [(20, 0.5), (1000, 1 / 7), (300, 0.9)])
def test_binomial_bounds_leave_out_what_they_say_and_no_more(trials, chance):
    mass = [math.comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(trials + 1)]
    for alarm in (0.1, 1e-4):
        low, high = binomial_bounds(trials, chance, alarm)
        assert sum(mass[:low]) <= alarm / 2 < sum(mass[: low + 1])
        assert sum(mass[high + 1 :]) <= alarm / 2 < sum(mass[high:])


def test_chi_square_tails_are_those_of_the_tables():
    for statistic, degrees, tail in (
        (3.841, 1, 0.05),
        (5.991, 2, 0.05),
        (16.812, 6, 0.01),
        (24.996, 15, 0.05),
        (85.351, 49, 0.001),
    ):
        assert chi_square_tail(statistic, degrees) == pytest.approx(tail, rel=1e-3)


@pytest.mark.parametrize("share", [0.7, 1.3])
def test_a_cell_that_is_drawn_too_often_or_too_seldom_is_noticed(share):
    counts = torch.full((7,), 1000)
    assert_even(counts, 7000)
    counts[3] = int(1000 * share)
    with pytest.raises(AssertionError, match="allowed are"):
        assert_even(counts, 7000, 1 / 7)
    spread = torch.full((50,), 1000) + torch.tensor([110, -110]).repeat(25)  # no cell by itself, all together
    low, high = binomial_bounds(50_000, 1 / 50, FALSE_ALARM / 50)
    assert low < 890 and 1110 < high
    with pytest.raises(AssertionError, match="chi-square"):
        assert_even(spread, 50_000)
