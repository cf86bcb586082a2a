"""Field cases about what goes from groups to gradients (29 to 33), each with near relatives."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from tensordict import TensorDict

from torchrb import MCAdvantageSelector, group_advantages

NAN = math.nan


def select(returns, k: int, bounds=None, **kwargs) -> list[int] | None:
    returns = torch.as_tensor(returns)
    candidates = TensorDict({"return": returns}, [len(returns)])
    return MCAdvantageSelector(**kwargs).select(candidates, group_size=k, keep_return_bounds=bounds)


# --- 29 and 30: advantages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_case_29_a_nan_return_gets_0_and_the_others_are_computed_without_it(dtype):
    advantages = group_advantages(torch.tensor([[1.0, NAN, 0.0]], dtype=dtype))
    expected = torch.tensor([[math.sqrt(0.5), 0.0, -math.sqrt(0.5)]], dtype=dtype)
    torch.testing.assert_close(advantages, expected)
    assert advantages[0, 1] == 0


@pytest.mark.parametrize("kind", ["std", "mean", "leave_one_out"])
@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_case_29_wherever_the_bad_return_stands(kind, bad):
    good = torch.tensor([3.0, 1.0, 2.5, 0.0])
    expected = group_advantages(good[None], kind=kind)[0]
    for place in range(5):
        row = torch.cat([good[:place], torch.tensor([bad]), good[place:]])
        advantages = group_advantages(row[None], kind=kind)[0]
        assert advantages[place] == 0
        torch.testing.assert_close(torch.cat([advantages[:place], advantages[place + 1 :]]), expected)


@pytest.mark.parametrize("kind", ["std", "mean", "leave_one_out"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [0.7, 0.1, -1e30, 3.3e-5, 0.0])
@pytest.mark.parametrize("n", [1, 2, 7, 129])
def test_case_30_a_constant_group_is_exactly_0(kind, dtype, value, n):
    returns = torch.full((2, n), value, dtype=torch.float64).to(dtype)
    if torch.isfinite(returns).all():
        assert (group_advantages(returns, kind=kind) == 0).all()


# --- 31: the rule of the balanced choice ----------------------------------------------------------------------------


def best_subset(returns: list[float], k: int, low: float, high: float) -> list[int] | None:
    """The rule by exhaustion, in exact arithmetic."""
    exact = [Fraction(value) for value in returns]
    low, high = Fraction(low), Fraction(high)
    best = None
    for subset in itertools.combinations(range(len(exact)), k):
        mean = sum(exact[i] for i in subset) / k
        if low < mean < high:
            spread = sum((exact[i] - mean) ** 2 for i in subset)
            merit = (abs(mean - (low + high) / 2), -spread, subset)
            best = merit if best is None else min(best, merit)
    return None if best is None else list(best[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("returns", "k", "bounds", "expected"),
    [
        ([0.5, 0.5, 0.25, 0.75], 2, (0.1, 0.9), [2, 3]),
        ([0.0, 0.0, 0.0, 1.0], 2, (0.1, 0.9), [0, 3]),
        ([0.25, 0.75, 0.5, 0.5], 2, (0.1, 0.9), [0, 1]),
        ([0.5, 0.5, 0.5, 0.5], 2, (0.1, 0.9), [0, 1]),
        ([1.0, 0.0, 1.0, 0.0], 2, (0.1, 0.9), [0, 1]),
        ([0.0, 0.0, 0.0], 2, (0.1, 0.9), None),
        ([0.0, 1.0, 1.0, 1.0], 3, (0.1, 0.5), None),
        ([0.25, 0.25, 0.25], 2, (0.25, 0.75), None),  # on the bound is outside
    ],
)
def test_case_31_nearest_to_the_middle_then_widest_then_first(dtype, returns, k, bounds, expected):
    assert select(torch.tensor(returns, dtype=dtype), k, bounds) == expected


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0, 0.25, 0.5, 0.75, 1.0], [-2.0, 0.5, 3.0, 7.5], "any"])
def test_case_31_against_exhaustion(values):
    rng = random.Random(31)
    for _ in range(120):
        n = rng.randint(1, 8)
        k = rng.randint(1, n)
        returns = [rng.randint(-64, 64) / 16 if values == "any" else rng.choice(values) for _ in range(n)]
        low = rng.randint(-32, 16) / 16
        high = low + rng.randint(1, 48) / 16
        assert select(torch.tensor(returns), k, (low, high)) == best_subset(returns, k, low, high)


# --- 32: a subset is found whenever there is one --------------------------------------------------------------------


def reachable_sums(returns: list[int], k: int) -> set[int]:
    sums: list[set[int]] = [{0}] + [set() for _ in range(k)]
    for value in returns:
        for size in range(k, 0, -1):
            sums[size] |= {total + value for total in sums[size - 1]}
    return sums[k]


def check_choice(returns: list[int], k: int, low: float, high: float, **kwargs) -> None:
    exists = any(low < total / k < high for total in reachable_sums(returns, k))
    chosen = select(torch.tensor(returns, dtype=torch.float64), k, (low, high), **kwargs)
    assert (chosen is not None) == exists, f"{returns} k={k} bounds=({low}, {high}): {chosen}"
    if chosen is not None:
        assert len(set(chosen)) == k and chosen == sorted(chosen)
        assert low < sum(returns[i] for i in chosen) / k < high


def test_case_32_the_fallback_finds_the_subset_there_is():
    returns = [0.0, 0.25, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert select(torch.tensor(returns), 2, (0.1, 0.5), max_combinations=1) == [0, 1]


@pytest.mark.parametrize("max_combinations", [1, 50, 100_000])
def test_case_32_up_to_40_candidates_of_any_values(max_combinations):
    rng = random.Random(32)
    for n in (5, 12, 20, 40):
        for _ in range(3):
            k = rng.randint(1, 4 if n == 40 else n)  # more of 40 takes the plain path minutes
            returns = [rng.choice([-1, 1]) * rng.randint(0, 200) ** 2 for _ in range(n)]
            low = rng.randint(min(returns), max(returns)) + 0.25 / k
            check_choice(returns, k, low, low + 0.5 / k, max_combinations=max_combinations)


@pytest.mark.parametrize("max_combinations", [1, 50, 100_000])
def test_case_32_many_candidates_of_at_most_8_distinct_values(max_combinations):
    rng = random.Random(8)
    for n in (60, 120):
        values = [rng.randint(-300, 300) for _ in range(8)]
        for _ in range(3):
            k = rng.randint(1, 12)
            returns = [rng.choice(values) for _ in range(n)]
            low = rng.randint(min(returns), max(returns)) + 0.25 / k
            check_choice(returns, k, low, low + 0.5 / k, max_combinations=max_combinations)


# --- 33: flat rewards where groups are expected ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8,), (), (2, 2, 2)])
def test_case_33_rewards_that_are_not_groups_are_an_error(shape):
    rewards = torch.arange(8.0)[: math.prod(shape)].reshape(shape)
    with pytest.raises(ValueError, match=r"\[groups, n\]"):
        group_advantages(rewards)
    with pytest.raises(ValueError, match=r"\[groups, n\]"):
        MCAdvantageSelector().select_batch(rewards, group_size=1, keep_return_bounds=(0.0, 1.0))


def test_case_33_flat_returns_are_taken_with_their_groups():
    returns = torch.tensor([1.0, 5.0, 3.0, 5.0])
    advantages = group_advantages(returns, group_ids=torch.tensor([4, 2, 4, 2]), kind="mean")
    assert advantages.tolist() == [-1.0, 0.0, 1.0, 0.0]


def test_case_33_ids_that_do_not_match_the_returns_are_an_error():
    for returns, ids in ((torch.zeros(4), torch.zeros(3)), (torch.zeros(2, 2), torch.zeros(2))):
        with pytest.raises(ValueError, match=r"\[B\]"):
            group_advantages(returns, group_ids=ids.long())
