"""The GPU chooses the twin's candidates, in every mode and by each of the searches."""

from __future__ import annotations

import random

import pytest
import torch

from tests.ops.test_balanced_subset import EPS64, INF, NAN, random_case
from torchrb.ops import reference_returns

CASES = {"address": 6, "thread": 3}  # of each test; elsewhere 40


def choose(kernels, returns, k, low, high, rounding, max_combinations):
    groups, n = returns.shape
    needed = torch.zeros(1, dtype=torch.int64)
    kernels.bytes(needed, groups, n, k, max_combinations)
    index, found = torch.full((groups, k), -7), torch.zeros(groups, dtype=torch.bool)
    memory = torch.full((int(needed),), 7, dtype=torch.uint8)
    waits = torch.full((groups,), 7, dtype=torch.uint8)
    kernels.choose(returns, groups, n, k, low, high, max_combinations, rounding, index, found, waits, memory)
    return index, found


def assert_like_twin(kernels, returns, *rest):
    got, expected = choose(kernels, returns, *rest), reference_returns.balanced_subset(returns, *_twin_order(*rest))
    assert torch.equal(got[1], expected[1]) and torch.equal(got[0], expected[0]), (returns, rest)


def _twin_order(k, low, high, rounding, max_combinations):
    return k, low, high, max_combinations, rounding


@pytest.mark.parametrize("max_combinations", [1, 40, 100_000])
def test_any_group(emulated, mode, max_combinations):
    kernels, rng = emulated("balanced_subset"), random.Random(max_combinations)
    for _ in range(CASES.get(mode, 40)):
        returns, *rest = random_case(rng, 9 if mode == "thread" else 14)
        assert_like_twin(kernels, torch.tensor([returns], dtype=torch.float64), *rest, max_combinations)


@pytest.mark.parametrize("max_combinations", [1, 30, 300, 100_000])
def test_many_groups_at_once(emulated, mode, max_combinations):
    torch.manual_seed(max_combinations)
    groups = 3 if mode in ("address", "thread") else 12
    for n, k in ((8, 4), (12, 6)):
        for returns in (torch.randint(0, 3, (groups, n)).double() / 2, torch.rand(groups, n, dtype=torch.float64)):
            returns[torch.rand(groups, n) < 0.05] = NAN
            args = k, 0.2, 0.8, EPS64, max_combinations
            assert_like_twin(emulated("balanced_subset"), returns, *args)


def test_subsets_that_swaps_hardly_meet(emulated, mode):
    """The last resort, in the second launch."""
    kernels, rng = emulated("balanced_subset"), random.Random(4)
    n, k = (14, 7) if mode in ("address", "thread") else (20, 10)
    for _ in range(2):
        returns = [float(rng.randrange(10**9)) for _ in range(n)]
        total = sum(rng.sample(returns, k))
        returns = torch.tensor([returns], dtype=torch.float64)
        low, high = (total - 0.5) / k, (total + 0.5) / k
        assert_like_twin(kernels, returns, k, low, high, EPS64, 1)
        index, found = choose(kernels, returns, k, low, high, EPS64, 1)
        assert found.all() and returns[0, index[0]].sum() == total


def test_groups_of_hundreds(emulated, mode):
    if mode in ("address", "thread"):
        pytest.skip("the sanitizers see the same code at smaller sizes")
    torch.manual_seed(0)
    assert_like_twin(emulated("balanced_subset"), torch.rand(2, 130, dtype=torch.float64), 40, 0.4, 0.6, EPS64, 1000)


def test_what_is_no_group(emulated):
    kernels = emulated("balanced_subset")
    for n in (0, 1, 2):
        assert_like_twin(kernels, torch.zeros(2, n, dtype=torch.float64), 3, -1.0, 1.0, EPS64, 10)
    assert_like_twin(kernels, torch.zeros(0, 4, dtype=torch.float64), 2, 0.0, 1.0, EPS64, 10)
    for returns, k in (([1e308, 1e308, 1e308, 0.0], 3), ([1e200, -1e200, 1.0, 0.0], 2), ([NAN, INF, 1.0, 0.5], 2)):
        for most in (1, 1000):
            assert_like_twin(kernels, torch.tensor([returns], dtype=torch.float64), k, -1.0, INF, EPS64, most)
