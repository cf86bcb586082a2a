"""Law 6: values are compared in their own type. NaN never beats a number; ties follow one rule.

The rule, said here once more in exact arithmetic over all subsets, is what every draw is held against.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from tensordict import TensorDict

from tests.spec.builders import grouped_buffer
from torchrb import LazyTensorStorage, PromptGroupSampler, ReplayBuffer, TensorDictMaxValueWriter

NAN, INF = math.nan, math.inf
NEAR = math.nextafter(1.0, 2.0)

# Values that a narrower type, or a float for integers, cannot tell apart, and the extremes of each type.
VALUES: dict[torch.dtype, list] = {
    torch.int64: [2**63 - 1, 2**63 - 2, 2**53, 2**53 + 1, 2**53 + 2, 0, -1, -(2**53) - 1, -(2**63), -(2**63) + 1],
    torch.int32: [2**31 - 1, 2**31 - 2, 2**24, 2**24 + 1, 0, -1, -(2**31), -(2**31) + 1],
    torch.int16: [32767, 32766, 2049, 2048, -32768, 0],
    torch.int8: [127, -128, 0, 1, -1],
    torch.uint8: [255, 254, 128, 127, 1, 0],
    torch.uint16: [65535, 65534, 0, 1],
    torch.uint32: [2**32 - 1, 2**32 - 2, 2**31, 0],
    torch.bool: [True, False],
    torch.float64: [1.0, NEAR, 2**53 + 0.0, 2**53 + 2.0, 1e308, -1e308, 5e-324, 0.0, -5e-324, 1e9, 1e9 + 1e-7],
    torch.float32: [1.0, 1.0 + 2**-23, 2.0**24, 2.0**24 + 2, 1e-45, 0.0, -1e-45, 3e38, -3e38],
    torch.float16: [1.0, 1.0 + 2**-10, 65504.0, 65472.0, 6e-8, 0.0, -6e-8, -65504.0],
    torch.bfloat16: [1.0, 1.0 + 2**-7, 3e38, 2.98e38, 1e-40, 0.0, -1e-40, -3e38],
}
DTYPES = list(VALUES)
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]


def exactly(value: float | int) -> Fraction | None:
    """A finite value as it is; None for the others."""
    return None if isinstance(value, float) and not math.isfinite(value) else Fraction(value)


def draw(
    rewards: torch.Tensor, strategy: str, k: int, layout: str = "packed", write_order: list[int] | None = None
) -> list[int]:
    """The slots that one group of these rewards gives. ``write_order``: slots, in the order of their last write."""
    n = len(rewards)
    rb = grouped_buffer(
        torch.zeros(n).long(), rewards, strategy=strategy, k=k, storage=LazyTensorStorage(n, layout=layout)
    )
    for slot in write_order or []:
        rb[slot] = rb[slot].exclude("index")
    return rb.sample(k, return_info=True)[1]["index"].tolist()


def by_reward(rewards: list, k: int, write_order: list[int]) -> list[int]:
    """Highest first, -inf last of the numbers, NaN after them; the newer write first, then the lower slot."""

    def rank(slot: int) -> tuple:
        value = rewards[slot]
        if value != value:
            return (1, 0, -write_order.index(slot), slot)
        if value in (INF, -INF):
            return (0, -value, -write_order.index(slot), slot)
        return (0, -Fraction(value), -write_order.index(slot), slot)

    return sorted(range(len(rewards)), key=rank)[:k]


def best_values_by_variance(rewards: list, k: int) -> tuple:
    """The values of the subset of greatest variance, then of higher total, then with more of the largest; ascending."""
    exact = sorted(Fraction(value) for value in rewards)
    best = None
    for subset in itertools.combinations(exact, k):
        squares, total = sum(x * x for x in subset), sum(subset)
        merit = (k * squares - total * total, total, sorted(subset, reverse=True))
        if best is None or merit > best[0]:
            best = (merit, subset)
    return best[1]


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reward_ranks_every_pair_of_values_exactly(dtype, layout):
    values = torch.tensor(VALUES[dtype], dtype=dtype)
    for i, j in itertools.permutations(range(len(values)), 2):
        pair = values[[i, j]]
        high = pair.tolist().index(max(pair.tolist()))
        assert pair[0] != pair[1] and draw(pair, "reward", 1, layout) == [high]


@pytest.mark.parametrize("dtype", [torch.uint64, torch.float8_e5m2, torch.complex64], ids=str)
@pytest.mark.parametrize("strategy", ["reward", "variance"])
def test_a_type_that_cannot_be_ranked_exactly_is_refused_not_ranked_by_a_copy(dtype, strategy):
    with pytest.raises(TypeError, match="reward_key"):
        draw(torch.zeros(3).to(dtype), strategy, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_reward_orders_many_rows_and_breaks_ties_by_write_then_slot(dtype):
    rng = random.Random(str(dtype))
    for _ in range(12):
        n = rng.randint(2, 9)
        values = VALUES[dtype] + ([NAN, NAN, INF, -INF] if dtype.is_floating_point else [])
        rewards = torch.tensor([rng.choice(values) for _ in range(n)], dtype=dtype)
        order = rng.sample(range(n), n)
        k = rng.randint(1, n)
        if sum(value == value for value in rewards.tolist()) < k:
            k = max(1, sum(value == value for value in rewards.tolist()))
        if all(value != value for value in rewards.tolist()):
            continue
        assert draw(rewards, "reward", k, write_order=order) == by_reward(rewards.tolist(), k, order)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("strategy", ["reward", "variance"])
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_nan_rows_come_after_all_numbers_and_only_when_these_run_out(strategy, dtype):
    rng = random.Random(0)
    for _ in range(10):
        n = rng.randint(3, 9)
        rewards = torch.tensor([rng.choice([NAN, 1.0, 2.0, 3.0]) for _ in range(n)], dtype=dtype)
        finite = [slot for slot in range(n) if rewards[slot] == rewards[slot]]
        for k in range(1, n + 1):
            slots = draw(rewards, strategy, k)
            assert set(slots[: len(finite)]) <= set(finite) and len(set(slots)) == k
            assert len(set(slots) & set(finite)) == min(k, len(finite))


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.filterwarnings("ignore:PromptGroupSampler")
def test_variance_counts_infinite_rewards_as_nan(dtype, bad):
    rewards = torch.tensor([3.0, bad, 1.0, bad, 2.0], dtype=dtype)
    assert draw(rewards, "variance", 2) == [2, 0]
    assert draw(rewards, "variance", 3) == [2, 4, 0]
    assert draw(rewards, "variance", 4)[:3] == [2, 4, 0]


SPREADS: dict[str, tuple[torch.dtype, list]] = {
    "float64 near 1e9": (torch.float64, [1e9 + step for step in (0, 1, 2, 3, 5)]),
    "float64 near 2**52": (torch.float64, [2.0**52 + step for step in (0, 1, 2, 3)]),
    "int64 near 2**62": (torch.int64, [2**62 + step for step in (0, 1, 2, 5)]),
    "int64 about zero": (torch.int64, [-3, -1, 0, 1, 2]),
    "int32 near its end": (torch.int32, [2**31 - 1 - step for step in (0, 1, 2, 4)]),
    "uint8": (torch.uint8, [0, 1, 128, 254, 255]),
    "bool": (torch.bool, [False, True]),
    "float32 eighths": (torch.float32, [step / 8 for step in range(-4, 5)]),
    "float32 near 2**23": (torch.float32, [2.0**23 + step for step in (0, 1, 2, 3)]),
    "float16": (torch.float16, [0.0, 0.5, 1.0, 2048.0, 2050.0]),
    "bfloat16": (torch.bfloat16, [-1.0, 0.0, 1.0, 256.0]),
}


@pytest.mark.parametrize("layout", ["packed", "columns"])
@pytest.mark.parametrize("spread", SPREADS)
def test_variance_takes_the_best_of_all_subsets(spread, layout):
    dtype, values = SPREADS[spread]
    rng = random.Random(spread)
    for _ in range(25):
        n = rng.randint(1, 8)
        k = rng.randint(1, n)
        rewards = torch.tensor([rng.choice(values) for _ in range(n)], dtype=dtype)
        exact = [Fraction(value) for value in rewards.tolist()]
        slots = draw(rewards, "variance", k, layout)
        assert len(set(slots)) == k
        assert [exact[slot] for slot in slots] == list(best_values_by_variance(rewards.tolist(), k)), f"{rewards} k={k}"


def test_variance_breaks_ties_among_equal_values_by_write_then_slot():
    rewards = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])
    assert draw(rewards, "variance", 2, write_order=[0, 1, 2, 3, 4, 5]) == [4, 5]
    assert draw(rewards, "variance", 2, write_order=[4, 5, 2, 3, 0, 1]) == [0, 1]
    assert draw(rewards, "variance", 2, write_order=[2, 1, 0, 5, 4, 3]) == [4, 3]


def test_zeros_of_both_signs_tie():
    rewards = torch.tensor([0.0, -0.0, 0.0, -0.0])
    assert draw(rewards, "reward", 4, write_order=[2, 0, 3, 1]) == [1, 3, 0, 2]


def test_a_row_with_several_rewards_counts_as_their_mean_in_float64():
    tiny = 2.0**-30  # lost in a float32 sum, kept in a float64 one
    rewards = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, tiny], [1.0, 1.0, -tiny], [3.0, NAN, 3.0]])
    assert draw(rewards, "reward", 3) == [1, 0, 2]
    integers = torch.tensor([[2**60, 1, 0], [2**60, 2**10, 0], [0, 0, 2**61]])
    assert draw(integers, "reward", 3) == [2, 1, 0]


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_a_single_reward_of_any_shape_is_compared_as_it_is(shape):
    rewards = torch.tensor([2**53, 2**53 + 1, 2**53 - 1]).reshape(3, *shape)
    assert draw(rewards, "reward", 3) == [1, 0, 2]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.float64, torch.float32, torch.uint8])
def test_versions_are_compared_in_their_own_type(dtype):
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    high = torch.tensor(info.max, dtype=dtype)
    low = torch.nextafter(high, torch.zeros_like(high)) if dtype.is_floating_point else high - 1
    for stored, given, accepted, newer in (
        (low, high, True, True),
        (high, high, True, False),
        (high, low, False, False),
    ):
        for require_newer, expected in ((False, accepted), (True, newer)):
            rb = grouped_buffer(torch.zeros(1).long(), v=stored[None], k=1)
            index = torch.tensor([0])
            result = rb.update_if_present(
                index=index, generation=rb.writer.generations_of(index), patch={"id": torch.tensor([7])},
                version_key="v", version=given[None], require_newer=require_newer,
            )  # fmt: skip
            assert result.updated.tolist() == [expected] and result.version_rejected.tolist() == [not expected]


def test_a_nan_version_is_rejected_and_a_stored_nan_gives_way():
    rb = grouped_buffer(torch.zeros(2).long(), v=torch.tensor([1.0, NAN]), k=1)
    index = torch.tensor([0, 1])
    generation = rb.writer.generations_of(index)
    patch = {"id": torch.tensor([7, 8])}
    result = rb.update_if_present(index=index, generation=generation, patch=patch, version_key="v", version=NAN)
    assert result.version_rejected.tolist() == [True, True] and rb[:]["id"].tolist() == [0, 1]
    result = rb.update_if_present(index=index, generation=generation, patch=patch, version_key="v", version=-5.0)
    assert result.updated.tolist() == [False, True] and rb[:]["v"].tolist() == [1.0, -5.0]


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1e308, -1e308, 0.0, 1.0, 2.0], [-1e308, 1e308]),
        ([1e200, -1e200, 1.0, 2.0, 3.0], [-1e200, 1e200]),
        ([1.7e308, 1e307, 0.0], [0.0, 1.7e308]),
        ([-1.7e308, -1e307, 0.0], [-1.7e308, 0.0]),
    ],
)
def test_variance_holds_up_to_the_ends_of_float64(rewards, expected):
    sampler = PromptGroupSampler(num_groups=1, group_key="g", strategy="variance", reward_key="r")
    rb = ReplayBuffer(storage=LazyTensorStorage(8), sampler=sampler, batch_size=2)
    rb.extend({"g": torch.zeros(len(rewards)).long(), "r": torch.tensor(rewards, dtype=torch.float64)})
    assert rb.sample()["r"].tolist() == expected


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one_by_one", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_are_kept_by_their_own_values(dtype, one_by_one):
    """By exact arithmetic: number > -inf > NaN, and of equals those that came first."""
    chance, extremes = random.Random(1), [NAN, -INF, INF] if dtype.is_floating_point else []
    for capacity in (1, 2, 4):
        values = [chance.choice(VALUES[dtype] + extremes) for _ in range(24)]
        stored = torch.tensor(values, dtype=dtype)
        worth = [(value == value, exactly(value) or value if value == value else 0) for value in stored.tolist()]
        ranked = sorted(range(24), key=lambda i: (worth[i][0], worth[i][1], -i))
        rb = ReplayBuffer(storage=LazyTensorStorage(capacity), writer=TensorDictMaxValueWriter(rank_key="r"))
        rows = TensorDict({"r": stored, "id": torch.arange(24)}, [24])
        for batch in rows.split(1) if one_by_one else [rows]:
            rb.extend(batch)
        assert sorted(rb[:]["id"].tolist()) == sorted(ranked[-capacity:])
