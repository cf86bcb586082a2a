"""The op `balanced_subset`: the rule against a brute force, the twin against the kernel, and what it may not miss."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
import torch

from tests.ops.cases import assert_op_is_sound
from torchrb import ops
from torchrb.ops import reference_returns

EPS32, EPS64 = 2.0**-23, 2.0**-48
NAN, INF = math.nan, math.inf


def brute_force(returns: list[float], k: int, low: float, high: float, rounding: float) -> list[int] | None:
    """The rule of the schema, word by word, over all subsets of candidates."""
    finite = [i for i, value in enumerate(returns) if math.isfinite(value)]
    if len(finite) < k:
        return None
    start = low if math.isfinite(low) else min(returns[i] for i in finite)
    end = high if math.isfinite(high) else max(returns[i] for i in finite)
    middle = 0.5 * start + 0.5 * end
    scored = []
    for subset in itertools.combinations(finite, k):
        total = squares = 0.0
        for value in sorted(returns[i] for i in subset):
            total += value
            squares += (value - middle) * (value - middle)
        above = total > (k * (low + rounding * abs(low)) if math.isfinite(low) else low)
        below = total < (k * (high - rounding * abs(high)) if math.isfinite(high) else high)
        if above and below:
            scored.append((abs(total - k * middle), total, squares, list(subset)))
    if not scored:
        return None
    nearest = min(scored)[0]
    begin, end = k * middle - nearest, k * middle + nearest
    begin, end = begin - rounding * abs(begin), end + rounding * abs(end)
    near = [s for s in scored if s[0] <= nearest or begin <= s[1] <= end]
    widest = max(s[2] for s in near)
    least = widest - 2 * rounding * (widest + abs(middle) * math.sqrt(k * widest))
    return min(s[3] for s in near if s[2] >= least)


def random_group(rng: random.Random, n: int) -> list[float]:
    """Returns as they come: verified rewards, graded ones, decimals, reals, outliers, NaN."""
    kind = rng.randrange(7)
    values: list[Callable[[], float]] = [
        lambda: float(rng.random() < 0.3),
        lambda: rng.randrange(5) / 4,
        lambda: rng.randrange(11) / 10,
        lambda: rng.gauss(0.3, 1.0),
        lambda: rng.choice([-0.0, 0.0, -1.0, 1.0 / 3.0, 2.0 / 3.0]),
        lambda: rng.choice([rng.random(), 1e9 * rng.random(), -1e-9]),
        lambda: rng.choice([rng.random(), rng.random(), NAN, INF, -INF]),
    ]
    return [values[kind]() for _ in range(n)]


def random_case(rng: random.Random, largest: int) -> tuple[list[float], int, float, float, float]:
    n = rng.randrange(1, largest + 1)
    low = rng.choice([0.0, 0.1, -0.5, rng.random(), -INF])
    high = rng.choice([low + 0.4, low + 0.8, low + 1e-3, INF]) if math.isfinite(low) else rng.choice([0.5, INF])
    returns = random_group(rng, n)
    if rng.random() < 0.5:
        returns = torch.tensor(returns, dtype=torch.float32).double().tolist()
    return returns, rng.randrange(1, n + 1), low, high, rng.choice([EPS32, EPS64])


def chosen(returns, k, low, high, rounding, max_combinations=100_000) -> list[int] | None:
    index, found = ops.balanced_subset(
        torch.tensor([returns], dtype=torch.float64), k, low, high, max_combinations, rounding
    )
    assert found or not index.any()
    return index[0].tolist() if found else None


def test_the_exact_search_is_the_rule():
    rng = random.Random(1)
    for _ in range(3000):
        returns, *rest = random_case(rng, 9)
        assert chosen(returns, *rest) == brute_force(returns, *rest), (returns, *rest)


@pytest.mark.parametrize("max_combinations", [1, 40, 100_000])
def test_twin_and_kernel_agree(max_combinations):
    rng = random.Random(max_combinations)
    for _ in range(300):
        returns, k, low, high, rounding = random_case(rng, 16)
        group = torch.tensor([returns], dtype=torch.float64)
        expected = reference_returns.balanced_subset(group, k, low, high, max_combinations, rounding)
        got = ops.balanced_subset(group, k, low, high, max_combinations, rounding)
        assert torch.equal(got[0], expected[0]) and torch.equal(got[1], expected[1]), (returns, k, low, high)


@pytest.mark.parametrize("max_combinations", [1, 40])
def test_beyond_the_exact_search_a_subset_is_found_whenever_there_is_one(max_combinations):
    rng = random.Random(2)
    for _ in range(600):
        returns, k, low, high, rounding = random_case(rng, 9)
        expected = brute_force(returns, k, low, high, rounding)
        got = chosen(returns, k, low, high, rounding, max_combinations)
        assert (got is None) == (expected is None), (returns, k, low, high)
        if got is not None:
            assert got == sorted(set(got)) and len(got) == k
            total = math.fsum(returns[i] for i in got)
            assert k * low < total < k * high


def test_halves_within_the_budget_keep_closeness_and_spread():
    rng = random.Random(3)
    for _ in range(300):
        returns = [rng.randrange(32) / 8 for _ in range(14)]
        k, middle = rng.randrange(4, 8), 2.0
        best = brute_force(returns, k, 1.0, 3.0, EPS64)
        got = chosen(returns, k, 1.0, 3.0, EPS64, max_combinations=256)

        def merit(subset: list[int] | None, returns=returns, middle=middle) -> tuple[float, float]:
            values = [returns[i] for i in subset or []]
            return abs(sum(values) - len(values) * middle), sum((v - middle) ** 2 for v in values)

        assert merit(got) == merit(best)


# In the next two, swaps alone would hardly meet the sum that is asked for.
def test_many_candidates_with_few_accepted_subsets():
    rng = random.Random(4)
    returns = [float(rng.randrange(10**9)) for _ in range(34)]
    k = 17
    hidden = sorted(rng.sample(range(34), k))
    total = sum(returns[i] for i in hidden)
    low, high = (total - 0.5) / k, (total + 0.5) / k
    got = chosen(returns, k, low, high, EPS64, max_combinations=1)
    assert got is not None and sum(returns[i] for i in got) == total


def test_eight_values_with_few_accepted_subsets():
    rng = random.Random(5)
    values = [float(rng.randrange(10**6)) for _ in range(8)]
    returns = [value for value in values for _ in range(12)]
    rng.shuffle(returns)
    k = 24
    total = sum(returns[i] for i in rng.sample(range(96), k))
    got = chosen(returns, k, (total - 0.5) / k, (total + 0.5) / k, EPS64, max_combinations=1)
    assert got is not None and sum(returns[i] for i in got) == total


def test_many_candidates_are_chosen_by_best_effort():
    returns = torch.rand(2, 300, dtype=torch.float64)
    index, found = ops.balanced_subset(returns, 64, 0.4, 0.6, 1000, EPS64)
    assert found.all()
    means = returns.gather(1, index).mean(1)
    assert ((means - 0.5).abs() < 1e-3).all()
    assert (index.diff(dim=1) > 0).all()


@pytest.mark.parametrize("n", [0, 1, 2])
def test_fewer_candidates_than_needed_are_not_a_group(n):
    index, found = ops.balanced_subset(torch.zeros(2, n, dtype=torch.float64), 3, -1.0, 1.0, 10, EPS64)
    assert not found.any() and index.shape == (2, 3)


def test_sums_and_squares_beyond_float64_do_no_harm():
    assert chosen([1e308, 1e308, 1e308, 0.0], 3, -INF, INF, EPS64) is None
    assert chosen([1e200, -1e200, 1.0, 0.0], 2, -1.0, 1.0, EPS64) == [0, 1]
    assert chosen([1e200, -1e200, 1.0, 0.0, 3.0], 2, -1.0, 1.0, EPS64, max_combinations=1) is not None


def test_no_groups():
    index, found = ops.balanced_subset(torch.zeros(0, 4, dtype=torch.float64), 2, 0.0, 1.0, 10, EPS64)
    assert index.shape == (0, 2) and found.shape == (0,)


def test_a_group_does_not_depend_on_its_neighbours():
    returns = torch.randint(0, 5, (200, 12)).double() / 4
    index, found = ops.balanced_subset(returns, 5, 0.2, 0.8, 100_000, EPS64)
    for group in range(0, 200, 17):
        alone, alone_found = ops.balanced_subset(returns[group : group + 1], 5, 0.2, 0.8, 100_000, EPS64)
        assert torch.equal(alone[0], index[group]) and alone_found[0] == found[group]


def test_opcheck_and_compile():
    for groups in (0, 3):
        returns = torch.rand(groups, 6, dtype=torch.float64)
        assert_op_is_sound("balanced_subset", (returns, 2, 0.2, 0.8, 100, EPS64))
