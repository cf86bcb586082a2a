"""`MCAdvantageSelector` chooses the same candidates as torchrl's on every small input."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from tensordict import TensorDict

from tests.parity.peer import both, outcome

BOUNDS = (None, (0.1, 0.9), (0.0, 1.0), (0.25, 0.5), (-1.0, 0.3), (0.6, 0.7))


def select(lib, returns, group_size, bounds, strategy="balanced", **kwargs):
    candidates = TensorDict({"return": torch.tensor(returns)}, [len(returns)])
    return lib.MCAdvantageSelector(strategy, **kwargs).select(
        candidates, group_size=group_size, keep_return_bounds=bounds
    )


def assert_same_choices(theirs, ours):
    """Equal, but where the means of two subsets are equally close to the middle, up to rounding.

    There this library decides by the sum of squared deviations, then by the order of the indices; torchrl, where the
    means are exact, by the largest difference, and otherwise by the rounding.
    """
    for (returns, k, bounds, a), (*_, b) in zip(theirs, ours, strict=True):
        if a == b:
            continue
        assert bounds is not None and a is not None and b is not None, (returns, k, bounds, a, b)
        chosen = [[returns[i] for i in subset] for subset in (a, b)]
        distance = [abs(sum(values) / k - sum(bounds) / 2) for values in chosen]
        deviations = [round(k * sum(v * v for v in values) - sum(values) ** 2, 9) for values in chosen]
        assert abs(distance[0] - distance[1]) < 1e-7, (returns, k, bounds, a, b)
        assert (-deviations[1], b) < (-deviations[0], a), (returns, k, bounds, a, b)


@pytest.mark.parametrize("strategy", ["balanced", "first", "uniform"])
@pytest.mark.parametrize("bounds", BOUNDS)
def test_every_group_of_few_values(strategy, bounds):
    def history(lib):
        told = []
        for n, values in ((1, (0.0, 0.25, 1.0)), (3, (0.0, 0.25, 1.0)), (4, (0.0, 1.0))):
            for returns in itertools.product(values, repeat=n):
                told += [(returns, k, bounds, select(lib, list(returns), k, bounds, strategy)) for k in range(1, n + 1)]
        return told

    assert_same_choices(*both(history))


@pytest.mark.parametrize("strategy", ["balanced", "first", "uniform"])
def test_random_groups(strategy):
    def history(lib):
        rng, told = random.Random(0), []
        for _ in range(150):
            n, bounds = rng.randrange(2, 9), rng.choice(BOUNDS)
            returns, k = [rng.randrange(0, 9) / 8 for _ in range(n)], rng.randrange(1, n + 1)
            told.append((returns, k, bounds, select(lib, returns, k, bounds, strategy)))
        return told

    assert_same_choices(*both(history))


def test_groups_in_which_no_two_subsets_are_equally_close():
    """Sums of powers of two are distinct, and so are their distances to a middle that lies between two of them."""

    def history(lib):
        rng, told = random.Random(1), []
        for n in range(1, 8):
            returns = [2.0**-i for i in range(n)]
            rng.shuffle(returns)
            told += [
                select(lib, returns, k, bounds)
                for k in range(1, n + 1)
                for bounds in ((0.0, 0.9), (0.1, 0.31), (0.3, 1.7))
            ]
        return told

    theirs, ours = both(history)
    assert ours == theirs


@pytest.mark.parametrize(
    ("returns", "group_size", "strategy"),
    [([0.0, 1.0], 3, "balanced"), ([0.0, 1.0], 3, "first"), ([0.0, 1.0], 3, "uniform"), ([0.0], 1, "best")],
)
def test_the_same_calls_are_refused(returns, group_size, strategy):
    assert both(lambda lib: outcome(lambda: select(lib, returns, group_size, None, strategy))) == (
        ValueError,
        ValueError,
    )


def test_a_subclass_may_choose_by_other_keys():
    def history(lib):
        class Longest(lib.MCAdvantageSelector):
            def select(self, candidates, *, group_size, keep_return_bounds=None):
                return candidates[self.in_keys[0]].topk(group_size).indices.sort().values.tolist()

        selector = Longest(in_keys=["length"])
        return selector.select(TensorDict({"length": torch.tensor([3, 9, 1, 7])}, [4]), group_size=2)

    assert both(history) == ([1, 3], [1, 3])


# --- different on purpose


def test_ties_are_broken_by_the_rule_and_not_by_rounding():
    """Means of 1/3 and 2/3 are equally far from 1/2: then the larger spread, then the first in lexicographic order."""
    assert both(lambda lib: select(lib, [1.0, 0.0, 0.0, 1.0], 3, (0.1, 0.9))) == ([0, 1, 3], [0, 1, 2])


def test_the_spread_is_that_of_all_chosen_and_not_of_two():
    """Both subsets have a mean 1/32 from the middle and a range of 1/2; the second deviates more."""
    returns = [0.75, 0.25, 0.625, 0.5, 0.25]
    assert both(lambda lib: select(lib, returns, 4, (0.0, 1.0))) == ([0, 1, 2, 3], [0, 1, 2, 4])


def test_the_fallback_finds_a_subset_where_there_is_one():
    """Beyond `max_combinations` torchrl searches greedily and gives up; with 40 candidates there is no need to."""
    returns = [0.0, 0.25, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert both(lambda lib: select(lib, returns, 2, (0.1, 0.5), max_combinations=1)) == (None, [0, 1])


def test_law_10_a_group_of_none_is_a_value_error():
    assert both(lambda lib: outcome(lambda: select(lib, [0.0, 1.0], 0, (0.1, 0.9)))) == (ZeroDivisionError, ValueError)
