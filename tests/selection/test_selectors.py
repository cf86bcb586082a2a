"""`MCAdvantageSelector`: the page's words, the cases from the field, and the answers where the page is silent."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from tensordict import LazyStackedTensorDict, TensorDict

from torchrb.selection import MCAdvantageSelector

NAN, INF = math.nan, math.inf
STRATEGIES = ("first", "uniform", "balanced")


def candidates(returns, key="return", dtype=torch.float32) -> TensorDict:
    returns = torch.as_tensor(returns, dtype=dtype)
    return TensorDict({key: returns}, [returns.shape[0]])


def select(returns, k, bounds=None, strategy="balanced", dtype=torch.float32, **options):
    selector = MCAdvantageSelector(strategy, **options)
    return selector.select(candidates(returns, dtype=dtype), group_size=k, keep_return_bounds=bounds)


# --- the rule of "balanced" -----------------------------------------------------------------------------------------


def test_the_example_of_the_page():
    assert select([0.0, 0.0, 0.0, 1.0], 2, (0.1, 0.9)) == [0, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("returns", "bounds", "expected"),
    [
        ([0.5, 0.5, 0.25, 0.75], (0.1, 0.9), [2, 3]),  # the larger spread
        ([0.4, 0.6, 0.5, 0.5], (0.1, 0.9), [0, 1]),  # the same, in decimals
        ([0.7, 0.7, 0.6, 0.8], (0.5, 0.9), [2, 3]),
        ([0.3, 0.3, 0.3, 0.1, 0.5], (0.1, 0.5), [3, 4]),
        ([1 / 3, 2 / 3, 0.0, 1.0], (0.0, 1.0), [2, 3]),
        ([1.0, 0.0, 1.0, 0.0], (0.1, 0.9), [0, 1]),  # the lexicographically first
        ([0.5, 0.0, 1.0, 0.0, 1.0], (0.1, 0.9), [1, 2]),
        ([0.2, 0.8, 0.8, 0.2], (0.1, 0.9), [0, 1]),
        ([0.25, 0.75, 1.0, 1.0], (0.4, 0.6), [0, 1]),  # the closest to the middle
    ],
)
def test_among_equally_close_subsets(returns, bounds, expected, dtype):
    assert select(returns, 2, bounds, dtype=dtype) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("value", [0.1, 0.9, 0.0, 1.0])
def test_the_interval_is_exclusive(value, strategy, dtype):
    assert select([value] * 6, 4, (0.1, 0.9), strategy, dtype=dtype) is None


def test_nine_of_ten_lie_on_the_bound_of_nine_tenths():
    assert select([1.0] * 9 + [0.0] * 1, 10, (0.1, 0.9)) is None
    assert select([1.0] * 9 + [0.0] * 2, 10, (0.1, 0.9)) is not None


def test_a_mean_inside_by_little_is_inside():
    assert select([0.0, 0.0, 0.0, 0.0, 1e-3], 4, (0.0, 1e6)) == [0, 1, 2, 4]
    assert select([1.0, 1.0, 1.0, 1.0 - 1e-3], 3, (0.5, 1.0), dtype=torch.float64) == [0, 1, 3]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((0.1, INF), [0, 2]), ((-INF, 0.9), [0, 2]), ((-INF, INF), [0, 2]), ((0.0, 1.7e308), [0, 2])],
)
def test_an_open_interval_ends_at_the_outermost_return(bounds, expected):
    assert select([0.0, 0.0, 1.0, 1.0], 2, bounds) == expected


def test_case_32_the_fallback_finds_what_there_is():
    assert select([0, 0.25, 0, 0, 1, 0, 0], 2, (0.1, 0.5), max_combinations=1) == [0, 1]


@pytest.mark.parametrize("max_combinations", [1, 100_000])
@pytest.mark.parametrize("ones", range(1, 32))
def test_zeros_and_ones_are_mixed_as_well_as_can_be(ones, max_combinations):
    got = select([1.0] * ones + [0.0] * (32 - ones), 8, (0.0, 1.0), max_combinations=max_combinations)
    assert sum(i < ones for i in got) == min(4, ones) if ones < 28 else 8 - min(4, 32 - ones)


def test_groups_that_cannot_be_balanced_are_skipped():
    assert select([0.0] * 8, 4, (0.1, 0.9)) is None
    assert select([1.0] * 8, 4, (0.1, 0.9)) is None


# --- where the page is silent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_as_many_candidates_as_needed_are_all_of_them_in_order(strategy):
    assert select([3.0, 1.0, 2.0, 0.0], 4, None, strategy) == [0, 1, 2, 3]
    assert select([3.0, 1.0, 2.0, 0.0], 4, (1.0, 2.0), strategy) == [0, 1, 2, 3]
    assert select([3.0, 1.0, 2.0, 0.0], 4, (2.0, 3.0), strategy) is None


def test_first_takes_the_first():
    assert select([3.0, 1.0, 2.0, 0.0], 2, None, "first") == [0, 1]
    assert select([3.0, 1.0, 2.0, 0.0], 2, (1.9, 2.1), "first") == [0, 1]
    assert select([3.0, 1.0, 2.0, 0.0], 2, (1.0, 1.6), "first") is None


@pytest.mark.parametrize("strategy", ["uniform", "balanced"])
@pytest.mark.parametrize(
    ("returns", "k", "expected"),
    [
        ([3.0, 1.0, 2.0, 0.0], 2, [3, 0]),
        ([3.0, 1.0, 2.0, 0.0, 5.0, 9.0], 3, [3, 2, 5]),
        (list(range(10)), 4, [0, 3, 6, 9]),
        ([1.0, 0.0, 1.0, 0.0, 1.0, 0.0], 4, [1, 5, 0, 4]),
        (list(range(7)), 1, [3]),
    ],
)
def test_without_bounds_ranks_are_evenly_spaced(returns, k, expected, strategy):
    assert select(returns, k, None, strategy) == expected


def test_uniform_with_bounds_is_judged_by_them():
    assert select([0.0, 0.0, 0.0, 1.0], 2, (0.1, 0.9), "uniform") == [0, 3]
    assert select([0.0, 0.25, 0.0, 0.0, 1.0], 2, (0.1, 0.4), "uniform") is None


def test_non_finite_returns_are_left_for_last():
    assert select([NAN, 0, 1, 1, INF, -INF], 2, (0.1, 0.9)) == [1, 2]
    assert select([NAN, 0, INF, 1, NAN], 2, None, "uniform") == [1, 3]
    assert select([NAN, 0, -INF, 1, NAN], 3, None, "uniform") == [1, 3, 0]
    assert select([NAN, 0, NAN, 1, NAN], 3, (0.1, 0.9)) is None
    assert select([NAN, 0, 1], 3, (0.1, 0.9)) is None
    assert select([NAN, 0, 1], 2, (0.1, 0.9), "first") is None
    assert select([NAN, 0, 1], 2, None, "first") == [0, 1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.uint8, torch.float16])
def test_any_real_dtype(dtype):
    assert select([0, 0, 0, 1], 2, (0.1, 0.9), dtype=dtype) == [0, 3]


def test_one_number_a_candidate_in_a_column_under_a_nested_key_or_lazily_stacked():
    column = TensorDict({"a": {"b": torch.tensor([[0.0], [0.0], [1.0]])}, "return": torch.zeros(3)}, [3])
    selector = MCAdvantageSelector(in_keys=[("a", "b")])
    assert selector.select(column, group_size=2, keep_return_bounds=(0.1, 0.9)) == [0, 2]
    rows = [TensorDict({"return": torch.tensor(r), "trajectories": torch.zeros(n)}) for n, r in ((1, 0.0), (2, 1.0))]
    stacked = LazyStackedTensorDict.lazy_stack(rows)
    assert MCAdvantageSelector().select(stacked, group_size=2, keep_return_bounds=(0.1, 0.9)) == [0, 1]


def test_a_subclass_reads_other_keys():
    class Shortest(MCAdvantageSelector):
        def __init__(self):
            super().__init__(in_keys=["length"])

        def select(self, candidates, *, group_size, keep_return_bounds=None):
            return candidates[self.in_keys[0]].argsort(stable=True)[:group_size].tolist()

    assert Shortest().select(candidates([5, 2, 9, 3], "length"), group_size=2) == [1, 3]


def test_what_goes_in_is_left_alone():
    data = candidates([0.3, 0.1, 0.2, 0.9])
    before = data.clone()
    MCAdvantageSelector().select(data, group_size=2, keep_return_bounds=(0.1, 0.9))
    assert (data == before).all()


def test_returns_with_gradient():
    data = TensorDict({"return": torch.tensor([0.0, 0.0, 1.0], requires_grad=True)}, [3])
    assert MCAdvantageSelector().select(data, group_size=2, keep_return_bounds=(0.1, 0.9)) == [0, 2]


# --- many groups at once --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("strategy", "bounds"), list(itertools.product(STRATEGIES, [None, (0.3, 0.7), (0.0, INF)])))
@pytest.mark.parametrize("k", [1, 4, 7])
def test_a_batch_is_its_groups_one_by_one(strategy, bounds, k):
    returns = torch.randint(0, 5, (40, 7)) / 4
    returns[::5, 2] = NAN
    selector = MCAdvantageSelector(strategy)
    index, found = selector.select_batch(returns, group_size=k, keep_return_bounds=bounds)
    assert index.dtype == torch.int64 and index.shape == (40, k) and found.dtype == torch.bool
    for row, chosen, any_ in zip(returns, index.tolist(), found.tolist(), strict=True):
        alone = selector.select(candidates(row), group_size=k, keep_return_bounds=bounds)
        assert alone == (chosen if any_ else None)
        assert any_ or chosen == [0] * k


def test_a_batch_of_no_groups():
    index, found = MCAdvantageSelector().select_batch(torch.zeros(0, 5), group_size=2, keep_return_bounds=(0, 1))
    assert index.shape == (0, 2) and found.shape == (0,)


def test_a_batch_may_be_a_view():
    returns = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 0.0]]).T
    index, _ = MCAdvantageSelector().select_batch(returns, group_size=2, keep_return_bounds=(0.1, 0.9))
    assert index.tolist() == [[0, 2], [0, 1]]


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"strategy": "best"}, "'balanced', got 'best'"),
        ({"max_combinations": 0}, "at least 1, got 0"),
        ({"max_combinations": 1.5}, "got 1.5"),
        ({"in_keys": []}, r"got \[\]"),
        ({"in_keys": "return"}, "got 'return'"),
    ],
)
def test_bad_options(options, words):
    with pytest.raises(ValueError, match=words):
        MCAdvantageSelector(**options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("k", "bounds", "words"),
    [
        (0, None, "at least 1, got 0"),
        (-1, None, "got -1"),
        (True, None, "got True"),
        (5, None, "at least 5 candidates, got 4"),
        (5, (0.1, 0.9), "at least 5 candidates, got 4"),
        (2, (0.9, 0.1), r"low < high.*got \(0.9, 0.1\)"),
        (2, (0.5, 0.5), "low < high"),
        (2, (0.1, NAN), "low < high"),
        (2, (0.1,), "two numbers"),
        (2, 0.5, "two numbers"),
        (2, ("a", "b"), "two numbers"),
    ],
)
def test_bad_arguments(k, bounds, words, strategy):
    with pytest.raises(ValueError, match=words):
        select([0.0, 0.0, 0.0, 1.0], k, bounds, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("shape", [(4, 2), (4, 0), (2, 2)])
def test_more_or_less_than_one_number_a_candidate(shape, strategy):
    data = TensorDict({"return": torch.zeros(shape)}, shape[:1])
    with pytest.raises(ValueError, match=rf"one number for each candidate.*got .*\[{shape[0]}, {shape[1]}\]"):
        MCAdvantageSelector(strategy).select(data, group_size=1)


def test_candidates_without_a_dimension_of_their_own():
    with pytest.raises(ValueError, match=r"batch size \[\] and shape \[4\]"):
        MCAdvantageSelector().select(TensorDict({"return": torch.zeros(4)}, []), group_size=2)


def test_a_missing_key_is_named():
    with pytest.raises(KeyError, match="'return'.*'score'"):
        MCAdvantageSelector().select(candidates([0.0, 1.0], "score"), group_size=1)


@pytest.mark.parametrize("shape", [(4,), (2, 2, 1)])
def test_case_33_a_batch_must_show_its_groups(shape):
    with pytest.raises(ValueError, match=r"shape \[groups, n\], got"):
        MCAdvantageSelector().select_batch(torch.zeros(shape), group_size=1)
